"""From chunks to mentions and facts, and from questions to keywords."""
