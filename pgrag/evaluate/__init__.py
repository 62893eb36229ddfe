"""How well a workspace answers questions: find, measure, compare, report."""
