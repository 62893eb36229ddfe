"""The library: documents in, cited answers out, over one PostgreSQL workspace."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio.to_thread
import asyncpg

from pgrag.config import Settings, load_settings
from pgrag.database.pool import open_pool, stored_dimension
from pgrag.documents.custom_chunker import chunker_of
from pgrag.documents.reading import DocumentDefaults, Source
from pgrag.errors import UsageError, WorkspaceError
from pgrag.evaluate.drafting import DraftedQuestions, draft_questions
from pgrag.evaluate.results import EvaluationReport, Question
from pgrag.evaluate.run import KS, Evaluator
from pgrag.evaluate.run import Progress as EvaluationProgress
from pgrag.evaluate.variants import grid, with_baseline
from pgrag.evaluate.verdicts import check_pair, judged
from pgrag.factory import Models, OpenWorkspace, initialise_workspace, resolve_server
from pgrag.graph.estimate import Estimator
from pgrag.graph.ingest import Ingestor, Progress
from pgrag.llm.prompts import RESPONSE_TYPE
from pgrag.search.answer import AnswerOptions
from pgrag.search.filters import Filter
from pgrag.search.options import QueryOptions, query_options
from pgrag.search.searcher import AnswerStream
from pgrag.text.folding import clean
from pgrag.text.tokens import Tokenizer
from pgrag.types import (
    ChunkerFunction,
    DeleteReport,
    Document,
    DocumentFailure,
    DocumentInfo,
    Embedder,
    Extractor,
    IngestEstimate,
    IngestReport,
    KeywordExtractor,
    Keywords,
    Mode,
    QueryResult,
    ReembedReport,
    RefreshReport,
    Retrieval,
    Stats,
    UsageRow,
)


class PgRAG:
    """A workspace, open between `async with` and its end. Safe to share between tasks of one event loop.

    `async with PgRAG() as rag: await rag.ingest(["docs/"]); print((await rag.query("Who runs checkout?")).answer)`

    Without a `dsn` (nor `PGRAG_DSN`, nor `dsn` in pgrag.toml) the embedded server is started. `pool` uses the caller's
    connections instead: an asyncpg pool made with `init=pgrag.prepare_connection`; it is never closed. `chunker` cuts
    documents instead of pgrag: a function from a `Document` to its `Chunk`s or their texts; when it is to cut
    otherwise, give it another name or attribute `digest`. Any setting of `pgrag.Settings` may be given by name.
    Raises ConfigError for settings, and on opening DatabaseError.
    """

    def __init__(
        self,
        dsn: str | None = None,
        workspace: str | None = None,
        *,
        settings: Settings | None = None,
        pool: asyncpg.Pool | None = None,
        embedder: Embedder | None = None,
        extractor: Extractor | None = None,
        keyword_extractor: KeywordExtractor | None = None,
        chunker: ChunkerFunction | None = None,
        **overrides: Any,
    ) -> None:
        if settings is not None and (dsn or workspace or overrides):
            raise UsageError("give either settings, or dsn, workspace and single settings")
        self.settings = settings or load_settings({"dsn": dsn, "workspace": workspace, **overrides})
        self._models = Models(self.settings, embedder, extractor, keyword_extractor)
        self._tokenizer = Tokenizer(self.settings.tokenizer)
        self._chunker = chunker_of(self.settings, self._tokenizer, chunker)
        self._given_pool = pool
        self._stack = AsyncExitStack()
        self._pool: asyncpg.Pool | None = None
        self._workspace: OpenWorkspace | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._given_pool is not None:
                self._pool = self._given_pool
            else:
                self.settings = await resolve_server(self.settings)
                self._pool = await stack.enter_async_context(open_pool(self.settings))
            stack.push_async_callback(self._models.aclose)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool = self._workspace = None
        await self._stack.aclose()

    # ------------------------------------------------------------ in

    async def ingest(
        self,
        sources: Iterable[Source] | Source,
        *,
        labels: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        published_at: datetime | None = None,
        progress: Progress | None = None,
    ) -> IngestReport:
        """Ingests files, folders (recursively) and `Document`s, and returns when they are extracted and refreshed.

        All of them get the `labels` besides their own, and `metadata` and `published_at` where they say nothing.
        Makes the workspace if there is none (with a pool of your own it must be there). What is unchanged is skipped;
        what cannot be read or extracted is in the report and stops nothing else. Raises DatabaseError,
        MissingExtraError, ModelError if the profiles cannot be embedded, and BudgetError at the setting max_cost;
        then, or when cancelled, it leaves a state that the same call takes up again.
        """
        defaults = DocumentDefaults(labels, metadata or {}, published_at)
        return await (await self._ingestor()).run(_listed(sources), defaults, progress=progress)

    async def estimate(
        self,
        sources: Iterable[Source] | Source,
        *,
        labels: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        published_at: datetime | None = None,
    ) -> IngestEstimate:
        """What `ingest` of the same would do and cost; asks no model and writes nothing. The workspace need not exist.

        Raises DatabaseError, and ModelAccessError for a model that LiteLLM cannot place.
        """
        pool = self._open_pool()
        exists = await stored_dimension(pool, self.settings) is not None
        store = (await self._opened()).store if exists else None
        estimator = Estimator(self.settings, self._models, self._chunker, self._tokenizer, store)
        return await estimator.run(_listed(sources), DocumentDefaults(labels, metadata or {}, published_at))

    async def ingest_texts(
        self,
        texts: Sequence[str],
        *,
        uris: Sequence[str] | None = None,
        titles: Sequence[str] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        labels: Sequence[str] = (),
        published_at: Sequence[datetime | None] | None = None,
        progress: Progress | None = None,
    ) -> IngestReport:
        """Ingests texts; the other lists are parallel to `texts`. A text without a uri gets one from its content.

        Raises UsageError when a list has another length than `texts`; else as `ingest`.
        """
        if isinstance(texts, str):
            raise UsageError("ingest_texts takes a list of texts, not one text")
        for name, values in (
            ("uris", uris),
            ("titles", titles),
            ("metadata", metadata),
            ("published_at", published_at),
        ):
            if values is not None and len(values) != len(texts):
                raise UsageError(f"{name} has {len(values)} items for {len(texts)} texts")
        documents = [
            Document(
                uri=uris[i] if uris else content_uri(text),
                body=text,
                title=titles[i] if titles else "",
                metadata=metadata[i] if metadata else {},
                published_at=published_at[i] if published_at else None,
            )
            for i, text in enumerate(texts)
        ]
        return await self.ingest(documents, labels=labels, progress=progress)

    async def refresh(self) -> RefreshReport:
        """Recomputes entities and relations whose sources changed. Raises DatabaseError, ModelError."""
        return await (await self._opened()).refresher().run()

    async def reembed(self) -> ReembedReport:
        """Makes the workspace one of this embedder: all vectors again, nothing extracted again. Resumable.

        Searches meanwhile find only what already has a vector. Raises DimensionError, DatabaseError, ModelError.
        """
        from pgrag.database import migrate  # here: alembic and SQLAlchemy take a second that a query need not wait for

        if self._pool is None:
            raise UsageError("PgRAG is not open: use `async with PgRAG(...) as rag`")
        if self._given_pool is not None:
            raise UsageError("reembed changes tables: open PgRAG with a dsn, not with a pool")
        await anyio.to_thread.run_sync(migrate.change_model, self.settings, await self._models.embedder())
        await self._pool.expire_connections()  # their prepared statements know the old type
        return await (await self._opened()).reembedder().run()

    async def retry(self, *, progress: Progress | None = None) -> IngestReport:
        """Tries chunks that failed again, and works on all that still wait; `chunks` of the report is how many.

        Errors as `ingest`.
        """
        workspace = await self._opened()
        await workspace.store.retry_chunks()
        return await workspace.ingestor(self._chunker).resume(progress=progress)

    async def delete(self, uris: Sequence[str] | str) -> DeleteReport:
        """Deletes documents and every trace of what only they said. Unknown uris are reported, not an error."""
        wanted = list(dict.fromkeys(map(clean, [uris] if isinstance(uris, str) else uris)))
        gone = await (await self._opened()).store.delete_documents(wanted)
        found = set(gone["uris"])
        return DeleteReport(
            len(found), gone["chunks"], gone["entities"], gone["relations"], gone["facts"],
            tuple(uri for uri in wanted if uri not in found),
        )  # fmt: skip

    # ------------------------------------------------------------ out

    async def query(
        self,
        /,
        question: str,
        *,
        mode: Mode | str = Mode.MIX,
        keywords: Keywords | None = None,
        filter: Filter | None = None,
        only_context: bool = False,
        only_prompt: bool = False,
        response_type: str = RESPONSE_TYPE,
        user_prompt: str = "",
        conversation_history: Sequence[Mapping[str, str]] = (),
        **options: Any,
    ) -> QueryResult:
        """Answers a question with numbered references to the passages it rests on.

        Options are the fields of `pgrag.SearchOptions`, by name, each defaulting to the setting.
        `keywords` replaces the extraction of keywords; under a `filter` other documents might as well not be there.
        With an LLM, `response_type` is the form of the answer, `user_prompt` more instructions, `conversation_history`
        the turns before ({"role": "user" | "assistant", "content"}); `only_context` and `only_prompt` stop before the
        answer call, `result.context` and `result.prompt` hold what it would get. At most two LLM calls, both cached.
        Raises UsageError for a wrong mode or option, WorkspaceError, DatabaseError, ModelError, BudgetError.
        """
        chosen = self._options(mode, options, filter)
        answer_options = _answer_options(response_type, user_prompt, conversation_history)
        searcher = (await self._opened()).searcher()
        return await searcher.query(
            question, chosen, keywords, answer_options, only_context=only_context, only_prompt=only_prompt
        )

    async def stream(
        self,
        /,
        question: str,
        *,
        mode: Mode | str = Mode.MIX,
        keywords: Keywords | None = None,
        filter: Filter | None = None,
        response_type: str = RESPONSE_TYPE,
        user_prompt: str = "",
        conversation_history: Sequence[Mapping[str, str]] = (),
        **options: Any,
    ) -> AnswerStream:
        """As `query`, with the answer in pieces: `async for piece in await rag.stream(...)`."""
        chosen = self._options(mode, options, filter)
        answer_options = _answer_options(response_type, user_prompt, conversation_history)
        return await (await self._opened()).searcher().stream(question, chosen, keywords, answer_options)

    async def retrieve(
        self,
        /,
        question: str,
        *,
        mode: Mode | str = Mode.MIX,
        keywords: Keywords | None = None,
        filter: Filter | None = None,
        **options: Any,
    ) -> Retrieval:
        """The entities, relations and passages for a question, best first; options and errors as `query`."""
        chosen = self._options(mode, options, filter)
        return await (await self._opened()).searcher().retrieve(question, chosen, keywords)

    async def evaluate(
        self,
        questions: Sequence[Question],
        *,
        modes: Sequence[Mode | str] = (Mode.NAIVE, Mode.MIX),
        options: Mapping[str, Sequence[Any]] | None = None,
        filter: Filter | None = None,
        baseline: str = "",
        ks: Sequence[int] = KS,
        answers: bool = False,
        response_type: str = RESPONSE_TYPE,
        judge: tuple[str, str] | None = None,
        name: str = "",
        concurrency: int = 4,
        progress: EvaluationProgress | None = None,
    ) -> EvaluationReport:
        """How well the workspace answers questions: by each mode with each combination of the `options`' values.

        Gains are over the `baseline`, the label of a variant (without one: naive). With `answers` it answers too;
        `response_type` is then the form of the answers, for a language model. All search under the `filter`. `judge`
        names two variants whose answers an LLM compares. `progress` is told how many of how many questions are done.
        The run stops at max_cost: the report holds what was done until then. Raises UsageError, WorkspaceError, and
        BudgetError or ModelAccessError if no question could be done.
        """
        variants, base = with_baseline(self.settings, grid(self.settings, modes, options or {}), baseline)
        if judge is not None:
            check_pair(judge, [variant.label for variant in variants])
            self._models.evaluation_model("a judge")
        workspace = await self._opened()
        models = workspace.models
        state = await workspace.store.corpus_state()  # before the first search: the answers quote these texts
        evaluator = Evaluator(
            workspace.store, self.settings, workspace.embedder, models.keyword_extractor(), workspace.answerer(),
            self._tokenizer, models.tally,
        )  # fmt: skip
        report = await evaluator.run(
            questions, variants, name=name or self.settings.workspace, ks=ks, answers=answers or judge is not None,
            answer_options=AnswerOptions(response_type), baseline=base, filter=filter, concurrency=concurrency,
            progress=progress,
        )  # fmt: skip
        if judge is None or "stopped" in report.settings:
            return report
        model = models.evaluation_model("a judge")
        return await judged(report, judge, models.gateway, model, state)

    async def draft_questions(self, count: int) -> DraftedQuestions:
        """At most `count` questions with answers and evidence, made by an LLM from passages of the workspace.

        Raises UsageError, ConfigError without an LLM, DatabaseError, ModelError, BudgetError.
        """
        model = self._models.evaluation_model("drafting questions")
        workspace = await self._opened()
        return await draft_questions(workspace.store, workspace.models.gateway, model, count)

    async def documents(self, status: str | None = None) -> list[DocumentInfo]:
        """The documents, by uri; `status` is pending, complete, failed or empty. Raises UsageError, DatabaseError."""
        if status is not None and status not in ("pending", "complete", "failed", "empty"):
            raise UsageError(f"unknown status {status!r}: use pending, complete, failed or empty")
        return await (await self._opened()).store.documents(status)

    async def failures(self) -> list[DocumentFailure]:
        """Chunks that failed and why."""
        rows = await (await self._opened()).store.failures()
        return [DocumentFailure(row["uri"], row["error"], row["ordinal"]) for row in rows]

    async def usage(self) -> list[UsageRow]:
        """Model calls, tokens and cost so far, by purpose and model."""
        return await (await self._opened()).store.usage()

    async def stats(self) -> Stats:
        """Size and state of the workspace."""
        return await (await self._opened()).store.stats()

    # ------------------------------------------------------------ parts

    async def _opened(self) -> OpenWorkspace:
        """The workspace, checked. Raises WorkspaceError if there is none yet."""
        pool = self._open_pool()
        if self._workspace is None:
            self._workspace = await OpenWorkspace.open(pool, self.settings, self._models, self._tokenizer)
        return self._workspace

    def _open_pool(self) -> asyncpg.Pool:
        if self._pool is None:
            raise UsageError("PgRAG is not open: use `async with PgRAG(...) as rag`")
        return self._pool

    async def _ingestor(self) -> Ingestor:
        try:
            workspace = await self._opened()
        except WorkspaceError:
            if self._given_pool is not None:  # a dsn from the environment may be another database
                raise
            await initialise_workspace(self.settings, await self._models.embedder())
            if self._pool is not None:  # its connections were made before there was a type of vectors
                await self._pool.expire_connections()
            workspace = await self._opened()
        return workspace.ingestor(self._chunker)

    def _options(self, mode: Mode | str, options: Mapping[str, Any], filter: Filter | None) -> QueryOptions:
        return query_options(self.settings, mode, options, filter)


def content_uri(text: str) -> str:
    """`text:` and the digest of the text: the same text is the same document."""
    return f"text:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _listed(sources: Iterable[Source] | Source) -> Iterable[Source]:
    return [sources] if isinstance(sources, str | Path | Document) else sources


def _answer_options(response_type: str, user_prompt: str, history: Sequence[Mapping[str, str]]) -> AnswerOptions:
    if isinstance(history, str) or not all(isinstance(turn, Mapping) for turn in history):
        raise UsageError('conversation_history is a list of turns: {"role": "user" or "assistant", "content": "..."}')
    return AnswerOptions(response_type, user_prompt, tuple(dict(turn) for turn in history))
