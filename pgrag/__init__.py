"""Graph RAG in one PostgreSQL database.

What is listed in `__all__` is the public API, with `pgrag.sync.PgRAG`; everything below it may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgrag.version import __version__

__all__ = [
    "AnswerStream",
    "BudgetError",
    "Chunk",
    "ChunkRanking",
    "ChunkerFunction",
    "CodeTreeError",
    "ConfigError",
    "DatabaseError",
    "DeleteReport",
    "DependentObjectsError",
    "DimensionError",
    "Document",
    "DocumentError",
    "DocumentFailure",
    "DocumentInfo",
    "DraftedQuestions",
    "Embedder",
    "EvaluationReport",
    "EvaluationSet",
    "ExtractedFact",
    "ExtractedMention",
    "Extraction",
    "ExtractionError",
    "Extractor",
    "FactEntity",
    "Filter",
    "Gold",
    "IngestEstimate",
    "IngestProgress",
    "IngestReport",
    "KeywordExtractor",
    "Keywords",
    "MissingExtensionError",
    "MissingExtraError",
    "MissingRightError",
    "Mode",
    "ModelAccessError",
    "ModelError",
    "PgRAG",
    "PgragError",
    "QueryResult",
    "Question",
    "ReembedReport",
    "Reference",
    "RefreshReport",
    "RefusedValueError",
    "Retrieval",
    "RetrievedChunk",
    "RetrievedEntity",
    "RetrievedRelation",
    "Role",
    "SearchOptions",
    "ServerError",
    "Settings",
    "StatementCancelledError",
    "Stats",
    "UnreadableAnswerError",
    "UsageError",
    "UsageRow",
    "WorkspaceError",
    "__version__",
    "initialise_workspace",
    "limit_blas_threads",
    "load_layout",
    "load_questions",
    "load_settings",
    "prepare_connection",
    "tables",
]

if TYPE_CHECKING:
    from pgrag.config import SearchOptions, Settings, load_settings
    from pgrag.database import tables
    from pgrag.database.pool import prepare_connection
    from pgrag.embedding.keyless import limit_blas_threads
    from pgrag.errors import (
        BudgetError,
        CodeTreeError,
        ConfigError,
        DatabaseError,
        DependentObjectsError,
        DimensionError,
        DocumentError,
        ExtractionError,
        MissingExtensionError,
        MissingExtraError,
        MissingRightError,
        ModelAccessError,
        ModelError,
        PgragError,
        RefusedValueError,
        ServerError,
        StatementCancelledError,
        UnreadableAnswerError,
        UsageError,
        WorkspaceError,
    )
    from pgrag.evaluate.drafting import DraftedQuestions
    from pgrag.evaluate.layouts import EvaluationSet, load_layout
    from pgrag.evaluate.questions import load_questions
    from pgrag.evaluate.results import EvaluationReport, Gold, Question
    from pgrag.factory import initialise_workspace
    from pgrag.rag import PgRAG
    from pgrag.search.filters import Filter
    from pgrag.search.searcher import AnswerStream
    from pgrag.types import (
        Chunk,
        ChunkerFunction,
        ChunkRanking,
        DeleteReport,
        Document,
        DocumentFailure,
        DocumentInfo,
        Embedder,
        ExtractedFact,
        ExtractedMention,
        Extraction,
        Extractor,
        FactEntity,
        IngestEstimate,
        IngestProgress,
        IngestReport,
        KeywordExtractor,
        Keywords,
        Mode,
        QueryResult,
        ReembedReport,
        Reference,
        RefreshReport,
        Retrieval,
        RetrievedChunk,
        RetrievedEntity,
        RetrievedRelation,
        Role,
        Stats,
        UsageRow,
    )

_MODULES = {
    "pgrag.config": "SearchOptions Settings load_settings",
    "pgrag.database": "tables",
    "pgrag.database.pool": "prepare_connection",
    "pgrag.embedding.keyless": "limit_blas_threads",
    "pgrag.evaluate.drafting": "DraftedQuestions",
    "pgrag.evaluate.layouts": "EvaluationSet load_layout",
    "pgrag.evaluate.questions": "load_questions",
    "pgrag.evaluate.results": "EvaluationReport Gold Question",
    "pgrag.factory": "initialise_workspace",
    "pgrag.rag": "PgRAG",
    "pgrag.search.filters": "Filter",
    "pgrag.search.searcher": "AnswerStream",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: `pgrag --help` needs no database driver."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name == "tables":
        return importlib.import_module("pgrag.database.tables")
    home = _HOMES.get(name) or ("pgrag.errors" if name.endswith("Error") else "pgrag.types")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
