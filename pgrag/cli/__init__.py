"""The `pgrag` command. Nothing heavy is imported before a command needs it: `pgrag --help` must be quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code for the shell."""
    from pgrag.cli.app import run

    return run(sys.argv[1:] if argv is None else list(argv))
