"""Ingest, refresh and what else changes the graph."""
