"""Folding, tokens, sentences: what is done to texts before they are models' or the database's."""
