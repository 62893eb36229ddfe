"""Extraction without a language model: names by taggers, each sentence a fact."""
