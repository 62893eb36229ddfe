"""Graph RAG in one PostgreSQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgrag.version import __version__

__all__ = ["Document", "Filter", "Keywords", "Mode", "PgRAG", "PgragError", "Settings", "__version__"]

if TYPE_CHECKING:
    from pgrag.config import Settings
    from pgrag.errors import PgragError
    from pgrag.rag import PgRAG
    from pgrag.search.filters import Filter
    from pgrag.types import Document, Keywords, Mode

_HOMES = {
    "Document": "pgrag.types",
    "Filter": "pgrag.search.filters",
    "Keywords": "pgrag.types",
    "Mode": "pgrag.types",
    "PgRAG": "pgrag.rag",
    "PgragError": "pgrag.errors",
    "Settings": "pgrag.config",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: `pgrag --help` needs no database driver."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
