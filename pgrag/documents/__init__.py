"""From files to documents and their chunks."""
