"""Models that make vectors."""
