"""The workspace in PostgreSQL."""
