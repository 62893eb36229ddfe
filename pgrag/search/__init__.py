"""From a question to rows, a context and an answer."""
