"""How long tests wait: at least ten times what it takes on a quiet machine, so that a busy one fails nothing."""

from __future__ import annotations

PROGRAM_SECONDS = 600
"""For a program under test; the longest takes a minute. What hangs fails by the limit of pytest, a little later."""
