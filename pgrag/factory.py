"""What the settings name, made: the server, the models (keyless ones where none is named), and what works by them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal

import anyio.to_thread
import asyncpg
from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.database.pool import read_workspace
from pgrag.database.store import Store
from pgrag.database.workspace import check_identity
from pgrag.embedding.keyless import KeylessEmbedder
from pgrag.embedding.litellm_embedder import LiteLLMEmbedder
from pgrag.errors import ConfigError
from pgrag.extraction.keyless.extractor import KeylessExtractor, KeylessKeywords, KeylessModels
from pgrag.extraction.llm.extractor import LLMExtractor
from pgrag.graph.ingest import Ingestor
from pgrag.graph.reembed import Reembedder
from pgrag.graph.refresh import Refresher
from pgrag.graph.summaries import Summariser
from pgrag.llm.gateway import Gateway
from pgrag.llm.requests import Server
from pgrag.llm.spending import Bills
from pgrag.search.answer import Answerer, LLMAnswerer, QuotingAnswerer
from pgrag.search.keywords import LLMKeywords
from pgrag.search.searcher import Searcher
from pgrag.server.embedded import EmbeddedServer
from pgrag.text.tokens import Tokenizer
from pgrag.types import DocumentChunker, Embedder, Extractor, KeywordExtractor


class Models:
    """The models of one `PgRAG`, made when first needed; the caller's own go before those of the settings."""

    def __init__(
        self,
        settings: Settings,
        embedder: Embedder | None = None,
        extractor: Extractor | None = None,
        keyword_extractor: KeywordExtractor | None = None,
        *,
        gateway: Gateway | None = None,
    ) -> None:
        self._settings = settings
        self._given = embedder, extractor, keyword_extractor
        self._embedder = embedder
        self._extractor = extractor
        self._keyword_extractor = keyword_extractor
        self._keyless = KeylessModels()
        self._gateway = gateway or Gateway(settings)

    def keeping_in(self, store: Store) -> Models:
        """The same models, which keep responses and usage in this workspace; they share limits, budget, connections."""
        gateway = Gateway(self._settings, store, requests=self._gateway.requests)
        return Models(self._settings, *self._given, gateway=gateway)

    async def aclose(self) -> None:
        """Closes the connections to model servers."""
        await self._gateway.aclose()

    def tally(self) -> AbstractContextManager[Bills]:
        """Records what the requests of this task, and of the tasks that it starts, cost until it is closed."""
        return self._gateway.requests.spending.tally()

    @property
    def paid_extraction(self) -> str | None:
        """The LLM that extracts; None where none does, or the caller's own extractor."""
        if self._extractor is not None and not isinstance(self._extractor, LLMExtractor):
            return None
        return self._settings.extraction_model or self._settings.llm_model

    @property
    def paid_embedding(self) -> str | None:
        """The embedding model on a server; None for the keyless one and the caller's own."""
        if self._embedder is not None and not isinstance(self._embedder, LiteLLMEmbedder):
            return None
        return self._settings.embedding_model

    @property
    def embedding_name(self) -> str:
        """The model whose vectors a workspace has or will have."""
        return self._embedder.model if self._embedder else self._settings.embedding_model or KeylessEmbedder.model

    async def cost(self, server: Server, model: str, prompt_tokens: int, completion_tokens: int = 0) -> Decimal | None:
        """US dollars by LiteLLM's local price map; None for a model it does not know. Raises ModelAccessError."""
        found = await self._gateway.requests.model(server, model)
        return found.bill(prompt_tokens, completion_tokens, embedding=server == "embedding").cost

    async def embedder(self, dimension: int | None = None) -> Embedder:
        """`dimension` is the workspace's, for a model whose own is not known. Raises ModelError."""
        if self._embedder is None:
            if self._settings.embedding_model is None:
                self._embedder = KeylessEmbedder()
            else:
                self._embedder = await LiteLLMEmbedder.open(self._gateway, dimension)
        return self._embedder

    def extractor(self) -> Extractor:
        """By the setting extraction_model (or llm_model), else without an LLM."""
        if self._extractor is None:
            model = self._settings.extraction_model or self._settings.llm_model
            if model is None:
                self._extractor = KeylessExtractor(self._keyless)
            else:
                self._extractor = LLMExtractor(
                    self._gateway,
                    model,
                    entity_types=self._settings.entity_types,
                    output_language=self._settings.output_language,
                    gleaning=self._settings.gleaning,
                )
        return self._extractor

    def keyword_extractor(self) -> KeywordExtractor:
        """By the setting keyword_model (or llm_model), else without an LLM."""
        if self._keyword_extractor is None:
            model = self._settings.keyword_model or self._settings.llm_model
            if model is None:
                self._keyword_extractor = KeylessKeywords(self._keyless)
            else:
                self._keyword_extractor = LLMKeywords(self._gateway, model)
        return self._keyword_extractor

    def answerer(self, store: Store, tokenizer: Tokenizer) -> Answerer:
        """By the setting answer_model (or llm_model), else quotations."""
        model = self._settings.answer_model or self._settings.llm_model
        return (
            QuotingAnswerer(store, tokenizer) if model is None else LLMAnswerer(store, self._gateway, model, tokenizer)
        )

    @property
    def gateway(self) -> Gateway:
        """The way to language models."""
        return self._gateway

    def evaluation_model(self, purpose: str) -> str:
        """The LLM of the setting evaluate_model (or llm_model), for `purpose` in the words of a user.

        Raises ConfigError without an LLM.
        """
        model = self._settings.evaluate_model or self._settings.llm_model
        if model is None:
            raise ConfigError(f"{purpose} needs an LLM: set PGRAG_LLM_MODEL (or PGRAG_EVALUATE_MODEL)")
        return model

    def summariser(self, tokenizer: Tokenizer) -> Summariser | None:
        """By the setting extraction_model (or llm_model); none without an LLM."""
        model = self._settings.extraction_model or self._settings.llm_model
        if model is None:
            return None
        return Summariser(
            self._gateway,
            model,
            tokenizer,
            min_fragments=self._settings.summary_fragments,
            min_tokens=self._settings.summary_above_tokens,
            max_tokens=self._settings.summary_tokens,
            context_tokens=self._settings.summary_context_tokens,
            output_language=self._settings.output_language,
        )


@dataclass(frozen=True, slots=True)
class OpenWorkspace:
    """A workspace that was checked, and what works on it."""

    settings: Settings
    store: Store
    models: Models
    embedder: Embedder
    tokenizer: Tokenizer

    @classmethod
    async def open(cls, pool: asyncpg.Pool, settings: Settings, models: Models, tokenizer: Tokenizer) -> OpenWorkspace:
        """Raises WorkspaceError if there is none, CodeTreeError, DimensionError, DatabaseError, ModelError."""
        meta = await read_workspace(pool, settings)
        store = Store(pool, settings, meta.dimension)
        own = models.keeping_in(store)
        embedder = await own.embedder(meta.dimension)
        check_identity(meta, embedder, settings)
        return cls(settings, store, own, embedder, tokenizer)

    def refresher(self) -> Refresher:
        """Derives anew what is stale."""
        summariser = self.models.summariser(self.tokenizer)
        return Refresher(self.store, self.embedder, self.tokenizer, self.settings.embedding_batch, summariser)

    def ingestor(self, chunker: DocumentChunker) -> Ingestor:
        """Puts documents in, cut by `chunker`."""
        s = self.settings
        return Ingestor(
            self.store,
            self.embedder,
            self.models.extractor(),
            self.tokenizer,
            chunker,
            self.refresher(),
            embedding_batch=s.embedding_batch,
            claim_batch=s.claim_batch,
            workers=s.workers,
            refresh_chunks=s.refresh_chunks,
            refresh_seconds=s.refresh_seconds,
            max_attempts=s.max_attempts,
        )

    def reembedder(self) -> Reembedder:
        """Makes all vectors again."""
        return Reembedder(self.store, self.embedder, self.refresher(), self.settings.embedding_batch)

    def answerer(self) -> Answerer:
        """Writes or quotes answers."""
        return self.models.answerer(self.store, self.tokenizer)

    def searcher(self) -> Searcher:
        """Answers questions."""
        return Searcher(
            self.store, self.settings, self.embedder, self.models.keyword_extractor(), self.answerer(), self.tokenizer
        )


async def resolve_server(settings: Settings) -> Settings:
    """The settings with a DSN: their own, or that of the embedded server, which is started if need be."""
    if settings.dsn is not None:
        return settings
    dsn = await anyio.to_thread.run_sync(EmbeddedServer(settings.home).start)
    return settings.model_copy(update={"dsn": SecretStr(dsn)})


async def initialise_workspace(settings: Settings, embedder: Embedder | None = None) -> bool:
    """Makes the workspace (schema, tables, code): True if it was made, False if it was there and fits.

    Raises DimensionError, WorkspaceError, MissingExtensionError, MissingRightError, DatabaseError.
    """
    from pgrag.database import migrate  # here: alembic and SQLAlchemy take a second that a query need not wait for

    resolved = await resolve_server(settings)
    if embedder is not None:
        return await anyio.to_thread.run_sync(migrate.initialise, resolved, embedder)
    models = Models(resolved)
    try:
        return await anyio.to_thread.run_sync(migrate.initialise, resolved, await models.embedder())
    finally:
        await models.aclose()
