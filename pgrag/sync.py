"""`PgRAG` for programs without asyncio: the same methods, which block until they are done."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from anyio import ClosedResourceError, EndOfStream, create_memory_object_stream
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pgrag import rag as asynchronous
from pgrag.config import Settings
from pgrag.errors import UsageError
from pgrag.search.searcher import AnswerStream
from pgrag.types import ChunkerFunction, Embedder, Extractor, KeywordExtractor, QueryResult, Reference, Retrieval

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[asynchronous.PgRAG, P], Awaitable[T]],
) -> Callable[Concatenate[PgRAG, P], T]:
    """The method of the asynchronous class, blocking: same arguments, same result, same errors."""

    def call(self: PgRAG, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(functools.partial(method, self._rag, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _streaming(
    method: Callable[Concatenate[asynchronous.PgRAG, P], Awaitable[AnswerStream]],
) -> Callable[Concatenate[PgRAG, P], BlockingAnswerStream]:
    """The same for the method that streams."""

    def call(self: PgRAG, /, *args: P.args, **kwargs: P.kwargs) -> BlockingAnswerStream:
        return BlockingAnswerStream(self, self._wait(functools.partial(method, self._rag, *args, **kwargs)))

    functools.update_wrapper(call, method)
    call.__doc__ = "As `query`, with the answer in pieces: `for piece in rag.stream(...)`."
    return call


class PgRAG:
    """A workspace, open between `with` and its end: `with PgRAG() as rag: print(rag.query("Who runs it?").answer)`.

    Arguments as `pgrag.PgRAG`, without `pool`. The work is done by an event loop in a thread of its own, so that an
    instance may be used by several threads at once, and inside a running event loop (which it blocks). Callbacks such
    as `progress` are called in that thread.
    """

    def __init__(
        self,
        dsn: str | None = None,
        workspace: str | None = None,
        *,
        settings: Settings | None = None,
        embedder: Embedder | None = None,
        extractor: Extractor | None = None,
        keyword_extractor: KeywordExtractor | None = None,
        chunker: ChunkerFunction | None = None,
        **overrides: Any,
    ) -> None:
        if "pool" in overrides:
            raise UsageError("a pool belongs to its own event loop: give pgrag.sync.PgRAG a dsn, or use pgrag.PgRAG")
        self._rag = asynchronous.PgRAG(
            dsn, workspace, settings=settings, embedder=embedder, extractor=extractor,
            keyword_extractor=keyword_extractor, chunker=chunker, **overrides,
        )  # fmt: skip
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._streams: set[Future[None]] = set()

    def __enter__(self) -> Self:
        if self._portal is not None:
            raise UsageError("this PgRAG is open already")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(name="pgrag"))
            stack.enter_context(portal.wrap_async_context_manager(self._rag))
            self._portal = portal
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        for stream in tuple(self._streams):  # that nobody reads to its end: closing would wait for them
            stream.cancel()
        self._stack.close()

    @property
    def settings(self) -> Settings:
        """The settings; once open, with the DSN of the server."""
        return self._rag.settings

    ingest = _blocking(asynchronous.PgRAG.ingest)
    ingest_texts = _blocking(asynchronous.PgRAG.ingest_texts)
    estimate = _blocking(asynchronous.PgRAG.estimate)
    refresh = _blocking(asynchronous.PgRAG.refresh)
    reembed = _blocking(asynchronous.PgRAG.reembed)
    retry = _blocking(asynchronous.PgRAG.retry)
    delete = _blocking(asynchronous.PgRAG.delete)
    query = _blocking(asynchronous.PgRAG.query)
    stream = _streaming(asynchronous.PgRAG.stream)
    retrieve = _blocking(asynchronous.PgRAG.retrieve)
    evaluate = _blocking(asynchronous.PgRAG.evaluate)
    draft_questions = _blocking(asynchronous.PgRAG.draft_questions)
    documents = _blocking(asynchronous.PgRAG.documents)
    failures = _blocking(asynchronous.PgRAG.failures)
    usage = _blocking(asynchronous.PgRAG.usage)
    stats = _blocking(asynchronous.PgRAG.stats)

    def _start(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        if self._portal is None:
            raise UsageError("PgRAG is not open: use `with PgRAG(...) as rag`")
        return self._portal.start_task_soon(work)

    def _wait(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result; whatever interrupts the waiting, Ctrl-C for one, cancels the work."""
        future = self._start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class BlockingAnswerStream:
    """An answer in pieces: iterate over it, once. What was found is there at once, `result` after the last piece."""

    def __init__(self, rag: PgRAG, answer: AnswerStream) -> None:
        self._rag = rag
        self._answer = answer

    @property
    def retrieval(self) -> Retrieval:
        """The three layers that were found."""
        return self._answer.retrieval

    @property
    def references(self) -> Sequence[Reference]:
        """Where the numbered passages stand."""
        return self._answer.references

    @property
    def result(self) -> QueryResult | None:
        """The whole, after the last piece."""
        return self._answer.result

    def __iter__(self) -> Iterator[str]:
        send, receive = create_memory_object_stream[str]()

        async def read() -> None:  # one task reads it all: time-outs must begin and end in the same
            async with receive, send, aclosing(self._answer) as pieces:
                async for piece in pieces:
                    await send.send(piece)

        reading = self._rag._start(read)
        self._rag._streams.add(reading)
        reading.add_done_callback(self._rag._streams.discard)
        try:
            while True:
                try:
                    piece = self._rag._wait(receive.receive)
                except (EndOfStream, ClosedResourceError):
                    reading.result()  # raises what ended it
                    return
                yield piece
        finally:
            reading.cancel()
