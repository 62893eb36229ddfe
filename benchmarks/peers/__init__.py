"""Other graph RAG systems, each run in an environment of its own: none is a dependency of pgrag."""
