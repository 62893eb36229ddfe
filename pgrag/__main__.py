"""`python -m pgrag` is the `pgrag` command."""

from __future__ import annotations

import sys

from pgrag.cli import main

if __name__ == "__main__":
    sys.exit(main())
