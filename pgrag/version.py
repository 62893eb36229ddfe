"""The version of the package, said once: here."""

from __future__ import annotations

__version__ = "0.1.0"
