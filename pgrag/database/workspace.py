"""What a workspace was made with, and whether the models and settings at hand fit it."""

from __future__ import annotations

from dataclasses import dataclass

from pgrag.config import Settings
from pgrag.errors import DimensionError, WorkspaceError
from pgrag.text.folding import FOLDING_VERSION
from pgrag.types import EmbedderIdentity

MAX_DIMENSION = 4000  # of an indexed halfvec


@dataclass(frozen=True, slots=True)
class WorkspaceMeta:
    """The row of table `meta`, without its date."""

    embedding_model: str
    dimension: int
    query_prefix: str
    passage_prefix: str
    tokenizer: str
    folding_version: int


def check_dimension(embedder: EmbedderIdentity) -> None:
    """Raises DimensionError if vectors of this length cannot be stored with an index."""
    if embedder.dimension > MAX_DIMENSION:
        raise DimensionError(
            f"{embedder.model} gives vectors of {embedder.dimension} dimensions; pgvector indexes {MAX_DIMENSION} at "
            "most: ask the model for fewer (its `dimensions` option), or take another model"
        )
    if embedder.dimension < 1:
        raise DimensionError(
            f"{embedder.model} says its vectors have {embedder.dimension} dimensions: it needs at least 1"
        )


def check_identity(meta: WorkspaceMeta, embedder: EmbedderIdentity, settings: Settings) -> None:
    """Raises DimensionError or WorkspaceError if models and settings are not those the workspace was made with."""
    where = f"workspace {settings.workspace}"
    reembed = "open it with that model, or run `pgrag reembed` to change its vectors"
    if meta.dimension != embedder.dimension:
        raise DimensionError(
            f"{where} holds vectors of {meta.dimension} dimensions ({meta.embedding_model}); "
            f"{embedder.model} gives {embedder.dimension}: {reembed}"
        )
    if meta.embedding_model != embedder.model:
        raise WorkspaceError(f"{where} holds vectors of {meta.embedding_model}, not of {embedder.model}: {reembed}")
    prefixes = (meta.query_prefix, meta.passage_prefix)
    if prefixes != tuple(embedder.prefixes):
        raise WorkspaceError(
            f"{where} was embedded with the prefixes {prefixes!r} (query, passage); {embedder.model} is now set to "
            f"{tuple(embedder.prefixes)!r}: set them as they were, or run `pgrag reembed` to change its vectors"
        )
    if meta.tokenizer != settings.tokenizer:
        raise WorkspaceError(
            f"{where} counts tokens with {meta.tokenizer}; the setting tokenizer says {settings.tokenizer}: "
            f"set it to {meta.tokenizer}, or ingest into a new workspace"
        )
    if meta.folding_version != FOLDING_VERSION:
        raise WorkspaceError(
            f"{where} has names and words folded by version {meta.folding_version}, this release of pgrag folds by "
            f"version {FOLDING_VERSION}: use the release it was made with, or ingest into a new workspace"
        )
