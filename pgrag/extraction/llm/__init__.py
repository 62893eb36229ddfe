"""Extraction by a language model: what it is asked, and how its answers are read."""
