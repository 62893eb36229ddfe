"""The blocking twin: the same words, from threads, inside a running event loop, and stopped in the middle."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

import pgrag
from pgrag import Document, PgragError, Settings
from pgrag.errors import DatabaseError, ModelError, UsageError
from pgrag.sync import PgRAG
from tests.support.llm import llm_settings, think
from tests.support.models import FixedKeywords, WordEmbedder
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.rag import extractor, value

TEXTS = {"a": "Alder met Birch.", "b": "Cedar met Dogwood."}


def open_sync(dsn: str, **parts: Any) -> PgRAG:
    given: dict[str, Any] = {
        "embedder": WordEmbedder(),
        "extractor": extractor(),
        "keyword_extractor": FixedKeywords(),
        "settings": Settings(dsn=dsn),
        **parts,
    }
    return PgRAG(**given)


def pgrag_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "pgrag"]


def test_the_same_methods_with_the_same_arguments() -> None:
    asynchronous = {
        name: member
        for name, member in vars(pgrag.PgRAG).items()
        if inspect.iscoroutinefunction(member) and not name.startswith("_")
    }
    assert len(asynchronous) > 10
    for name, method in asynchronous.items():
        twin = getattr(PgRAG, name)
        assert not inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(method), name
        assert twin.__doc__
    assert not [
        name
        for name in vars(PgRAG)
        if not name.startswith("_") and not hasattr(pgrag.PgRAG, name) and name != "settings"
    ]


def test_documents_in_answers_out_and_no_thread_left(words_dsn: str) -> None:
    told: list[str] = []
    with open_sync(words_dsn) as rag:
        assert rag.settings.dsn is not None
        texts = list(TEXTS.values())
        report = rag.ingest_texts(
            texts, uris=list(TEXTS), progress=lambda _: told.append(threading.current_thread().name)
        )
        assert (report.added, report.failures) == (2, ())
        assert rag.ingest([Document(uri, text) for uri, text in TEXTS.items()]).skipped == 2
        assert rag.estimate(Document("c", "Elm met Fir.")).documents_new == 1
        result = rag.query("Whom met Cedar?")
        assert "Cedar met Dogwood." in result.answer
        assert [d.uri for d in rag.documents()] == ["a", "b"]
        assert rag.retrieve("Birch?").chunks
        assert (rag.stats().documents, rag.failures(), rag.usage()) == (2, [], [])
        assert (rag.refresh().entities, rag.retry().chunks) == (0, 0)
        assert rag.delete("a").documents == 1
        assert set(told) == set(pgrag_threads()) == {"pgrag"}
    assert pgrag_threads() == []
    with pytest.raises(UsageError, match="PgRAG is not open: use `with"):
        rag.stats()
    with rag:  # and may be opened again
        assert rag.stats().documents == 1


def test_errors_are_the_same_and_leave_it_usable(words_dsn: str) -> None:
    with open_sync(words_dsn) as rag:
        with pytest.raises(UsageError, match="the question is empty"):
            rag.query(" ")
        with pytest.raises(UsageError, match="open already"):
            rag.__enter__()
        assert rag.stats().documents == 0
    with open_sync("postgresql://ann@127.0.0.1:1/x") as rag, pytest.raises(DatabaseError, match=r"127\.0\.0\.1"):
        rag.stats()
    assert pgrag_threads() == []
    with pytest.raises(UsageError, match="a pool belongs to its own event loop"):
        PgRAG("postgresql://x", pool=object())


def test_inside_a_running_event_loop(words_dsn: str) -> None:
    async def main() -> str:
        with open_sync(words_dsn) as rag:
            rag.ingest([Document("a", TEXTS["a"])])
            return rag.query("Whom met Alder?").answer

    assert "Alder met Birch." in asyncio.run(main())


def test_two_threads_share_one_and_have_one_each(words_dsn: str) -> None:
    both = threading.Barrier(2, timeout=300)

    def shared(name: str) -> list[str]:
        both.wait()
        rag.ingest_texts([f"{name} met Birch{i}." for i in range(3)], uris=[f"{name}{i}" for i in range(3)])
        return [rag.query(f"Whom met {name}?").references[0].uri for _ in range(3)]

    def own(name: str) -> list[str]:
        with open_sync(words_dsn) as mine:
            both.wait()
            return [mine.query(f"Whom met {name}?").references[0].uri for _ in range(3)]

    with ThreadPoolExecutor(2) as threads, open_sync(words_dsn) as rag:
        for found in (threads.map(shared, ("Alder", "Cedar")), threads.map(own, ("Alder", "Cedar"))):
            assert [{uri[:-1] for uri in uris} for uris in found] == [{"Alder"}, {"Cedar"}]
        assert rag.stats().documents == 6
    assert pgrag_threads() == []


class Slow(WordEmbedder):
    """Never comes back for a text about Elm, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.cancelled = threading.Event()

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Any:
        if any("Elm" in text for text in texts):
            self.began.set()
            try:
                await asyncio.sleep(60)
            finally:
                self.cancelled.set()
        return await super().embed(texts, kind)


def test_ctrl_c_cancels_the_work_and_the_next_call_finishes_it(words_dsn: str) -> None:
    import signal

    slow = Slow()
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        assert slow.began.wait(30)
        signal.pthread_kill(main, signal.SIGINT)

    pressing = threading.Thread(target=press)
    with open_sync(words_dsn, embedder=slow) as rag:
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            rag.ingest_texts(["Elm met Fir."], uris=["elm"])
        pressing.join()
        assert slow.cancelled.wait(5)
        assert rag.stats().chunks_pending == 1
    with open_sync(words_dsn) as rag:
        assert rag.retry().failures == ()
        assert rag.documents()[0].status == "complete"
    assert value(words_dsn, "select count(*) from chunk where lease_token is not null") == 0


# ---------------------------------------------------------------- streams


def test_a_stream_is_a_plain_iterator(words_dsn: str) -> None:
    with OpenAIServer() as llm:
        brain = think(llm, answer=Reply("They met at the sea [1].", piece_delay=0.02))
        with open_sync(words_dsn, keyword_extractor=None, settings=llm_settings(words_dsn, llm)) as rag:
            rag.ingest([Document("a", TEXTS["a"])])
            stream = rag.stream("Whom met Alder?", response_type="one sentence")
            assert (stream.references[0].uri, stream.retrieval.chunks[0].uri, stream.result) == ("a", "a", None)
            pieces = list(stream)
            assert (len(pieces) > 2, "".join(pieces)) == (True, "They met at the sea [1].")
            assert stream.result is not None
            assert stream.result.answer == "They met at the sea [1]."
            assert "one sentence" in brain.of("answer")[0].body["messages"][0]["content"]
            assert rag.query("Whom met Alder?", response_type="one sentence").answer == stream.result.answer
            assert brain.counts["answer"] == 1, "the second came from the cache"


def test_a_stream_that_is_left_ends_its_request_and_one_that_fails_says_why(words_dsn: str) -> None:
    with OpenAIServer() as llm:
        brain = think(llm, answer=Reply(" ".join(["word"] * 200), piece_delay=0.05))
        settings = llm_settings(words_dsn, llm, llm_retries=0)
        with open_sync(words_dsn, keyword_extractor=FixedKeywords(), settings=settings) as rag:
            rag.ingest([Document("a", TEXTS["a"])])
            started = time.monotonic()
            for piece in rag.stream("Whom met Alder?"):
                assert piece == "word"
                break
            assert rag.stats().documents == 1, "nothing hangs"
            assert time.monotonic() - started < 5
            brain.replies["answer"] = Reply(status=400, error="it broke")
            with pytest.raises(ModelError, match="it broke"):
                list(rag.stream("Whom met Birch?"))
            with pytest.raises(PgragError, match="the question is empty"):
                rag.stream("")
            brain.replies["answer"] = Reply(" ".join(["word"] * 200), piece_delay=0.05)
            unread = iter(rag.stream("Whom met Cedar?"))
            assert next(unread) == "word"
        assert time.monotonic() - started < 10, "closing does not wait for it"
        with pytest.raises(UsageError, match="not open"):
            next(unread)
    assert pgrag_threads() == []
