"""Ingest: what is skipped, what is done again, what fails and what stays whole. Small models, a real PostgreSQL."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psycopg
import pytest

from pgrag import Document, PgRAG
from pgrag.errors import CodeTreeError, ExtractionError, MissingExtraError, ModelError, UsageError
from pgrag.types import Chunk, Extraction, IngestProgress, IngestReport
from tests.migration.support import age_code
from tests.support.models import FunctionExtractor, WordEmbedder
from tests.support.rag import capitals, count, extractor, failing_on, graph, ingest, open_rag, rows, value, with_rag

SMALL = {"chunk_tokens": 32, "chunk_overlap": 0}
NAMES = ["Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gorse", "Hazel", "Ivy", "Juniper"]


def long_text(names: list[str] | None = None, year: int = 987) -> str:
    """Ten paragraphs that become ten chunks under `SMALL`."""
    return "\n\n".join(
        f"{name} was born in the year {year + i} and lived in a house by the river for most of a long and quiet life."
        for i, name in enumerate(names or NAMES)
    )


class FaultyEmbedder(WordEmbedder):
    """Does something wrong for batches that hold a marker."""

    def __init__(self, fault: Any, marker: str = "Elm") -> None:
        super().__init__()
        self.fault = fault
        self.marker = marker

    async def embed(self, texts: Any, kind: Literal["query", "passage"]) -> Any:
        vectors = await super().embed(texts, kind)
        return self.fault(vectors) if any(self.marker in text for text in texts) else vectors


# ---------------------------------------------------------------- skipped, changed, taken up again


def test_an_unchanged_document_is_skipped_and_asks_no_model(words_dsn: str) -> None:
    first = ingest(words_dsn, {"a": long_text()}, **SMALL)
    before = graph(words_dsn)
    asked, embedder = extractor(), WordEmbedder()
    second = ingest(words_dsn, {"a": long_text()}, extracts=asked, embedder=embedder, **SMALL)
    assert (first.added, first.chunks, first.chunks_reused) == (1, 10, 0)
    assert (second.added, second.updated, second.skipped, second.chunks) == (0, 0, 1, 0)
    assert (asked.asked, embedder.asked) == ([], [])
    assert graph(words_dsn) == before


def test_changed_settings_are_reported_and_not_run_again(words_dsn: str) -> None:
    ingest(words_dsn, {"a": long_text()}, **SMALL)
    other = FunctionExtractor(capitals, digest="2")
    report = ingest(words_dsn, {"a": long_text()}, extracts=other, **SMALL)
    assert (report.skipped, report.changed_settings, other.asked) == (1, ("a",), [])
    report = ingest(words_dsn, {"a": long_text()}, chunk_tokens=64)
    assert (report.skipped, report.changed_settings) == (1, ("a",))
    assert count(words_dsn, "chunk") == 10


@pytest.mark.parametrize("change", ["title", "labels", "metadata", "published_at"])
def test_a_change_of_anything_but_the_text_updates_without_extracting(words_dsn: str, change: str) -> None:
    given = {"title": "", "labels": ("x",), "metadata": {"a": 1}, "published_at": datetime(2024, 5, 1, tzinfo=UTC)}
    new = {"title": "", "labels": ("y",), "metadata": {"a": 2}, "published_at": datetime(2024, 5, 2, tzinfo=UTC)}
    new["title"] = "T"
    ingest(words_dsn, [Document("a", long_text(), **given)], **SMALL)
    asked = extractor()
    report = ingest(words_dsn, [Document("a", long_text(), **{**given, change: new[change]})], extracts=asked, **SMALL)
    assert (report.updated, report.skipped) == (1, 0)
    # a title stands above every chunk, so models read another text
    assert len(asked.asked) == (10 if change == "title" else 0)
    [stored] = with_rag(words_dsn, lambda rag: rag.documents())
    assert getattr(stored, change) == new[change]


def test_a_paragraph_put_in_front_moves_the_others_and_asks_for_one_chunk(words_dsn: str) -> None:
    ingest(words_dsn, {"a": long_text()}, **SMALL)
    asked = extractor()
    body = long_text(["Zinnia"], 900) + "\n\n" + long_text()
    report = ingest(words_dsn, {"a": body}, extracts=asked, **SMALL)
    assert (report.chunks, report.chunks_reused, len(asked.asked)) == (11, 10, 1)
    assert all(
        body[start:end] == text for start, end, text in rows(words_dsn, "select start_char, end_char, body from chunk")
    )
    assert [n for (n,) in rows(words_dsn, "select ordinal from chunk order by start_char")] == list(range(11))


def test_a_text_ingested_again_is_as_if_it_had_always_been_so(words_dsn: str, empty_dsn: str) -> None:
    changed = long_text([*NAMES[:4], "Elder", *NAMES[5:]])
    ingest(words_dsn, {"a": long_text(), "b": "Elm knows Fir."}, **SMALL)
    ingest(words_dsn, {"a": changed}, **SMALL)
    ingest(empty_dsn, {"a": changed, "b": "Elm knows Fir."}, **SMALL)
    assert graph(words_dsn) == graph(empty_dsn)


def test_a_pending_document_is_taken_up_without_asking_again(words_dsn: str) -> None:
    async def interrupted() -> None:
        stuck = StuckExtractor(answers=3)
        async with open_rag(words_dsn, extracts=stuck, claim_batch=1, workers=1, **SMALL) as rag:
            task = asyncio.create_task(rag.ingest([Document("a", long_text())]))
            await stuck.stuck.wait()
            assert count(words_dsn, "chunk", "lease_token is not null") == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(interrupted())
    assert value(words_dsn, "select status from document") == "pending"
    assert count(words_dsn, "chunk", "lease_token is not null or lease_until is not null") == 0
    assert count(words_dsn, "chunk", "extracted_at is not null") == 3
    ids = rows(words_dsn, "select id from chunk order by id")
    rest = extractor()
    seen: list[IngestProgress] = []
    report = ingest(words_dsn, {"a": long_text()}, extracts=rest, progress=seen.append, **SMALL)
    assert (report.updated, report.failures, len(rest.asked)) == (1, (), 7)
    assert (seen[-1].chunks_total, seen[-1].chunks_done) == (10, 10)
    assert rows(words_dsn, "select id from chunk order by id") == ids
    assert value(words_dsn, "select status from document") == "complete"


class StuckExtractor(FunctionExtractor):
    """Answers so often, then never."""

    def __init__(self, answers: int) -> None:
        super().__init__(capitals)
        self.answers = answers
        self.stuck = asyncio.Event()

    async def extract(self, chunks: Any) -> Any:
        if len(self.asked) >= self.answers:
            self.stuck.set()
            await asyncio.Event().wait()
        return await super().extract(chunks)


class SlowExtractor(FunctionExtractor):
    """Takes its time over every call."""

    def __init__(self, seconds: float) -> None:
        super().__init__(capitals)
        self.seconds = seconds

    async def extract(self, chunks: Any) -> Any:
        await asyncio.sleep(self.seconds)
        return await super().extract(chunks)


# ---------------------------------------------------------------- sources


def test_files_folders_documents_and_texts(words_dsn: str, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "one.md").write_text("# Alder\n\nAlder knows Birch.", "utf-8")
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    single = tmp_path / "two.txt"
    single.write_text("Cedar knows Dogwood.", "utf-8")

    async def work(rag: PgRAG) -> tuple[IngestReport, IngestReport]:
        mixed = await rag.ingest([folder, str(single), Document("note:1", "Elm knows Fir.")], labels=["x"])
        texts = await rag.ingest_texts(
            ["Gorse knows Hazel.", "Ivy knows Juniper."],
            uris=["t:1", "t:2"],
            titles=["G", "I"],
            metadata=[{}, {"n": 1}],
        )
        again = await rag.ingest_texts(["Gorse knows Hazel."])
        assert again.added == 1, "without a uri it is a document of its own, named by its content"
        return mixed, texts

    mixed, texts = with_rag(words_dsn, work)
    assert (mixed.added, texts.added, mixed.failures, texts.failures) == (3, 2, (), ())
    [(path, reason)] = mixed.skipped_files
    assert path.endswith("picture.png")
    assert "png" in reason
    documents = {d.uri: d for d in with_rag(words_dsn, lambda rag: rag.documents())}
    assert set(documents) >= {(folder / "deep" / "one.md").as_uri(), single.as_uri(), "note:1", "t:1", "t:2"}
    assert documents["note:1"].labels == ("x",)
    assert (documents["t:2"].title, documents["t:2"].metadata) == ("I", {"n": 1})
    assert {name for (name,) in rows(words_dsn, "select name from entity")} >= set(NAMES)


@pytest.mark.parametrize("name", ["uris", "titles", "metadata", "published_at"])
def test_parallel_lists_of_another_length_are_refused(words_dsn: str, name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} has 1 items for 2 texts"):
        with_rag(words_dsn, lambda rag: rag.ingest_texts(["a", "b"], **{name: [None]}))
    with pytest.raises(UsageError, match="list of texts"):
        with_rag(words_dsn, lambda rag: rag.ingest_texts("one text"))


def test_what_cannot_be_read_is_reported_and_the_others_are_ingested(words_dsn: str, tmp_path: Path) -> None:
    binary = tmp_path / "binary.txt"
    binary.write_bytes(bytes(range(256)) * 8)
    empty = tmp_path / "empty.txt"
    empty.touch()
    good = Document("good", "Alder knows Birch.")
    deep: Any = "x"
    for _ in range(150):
        deep = [deep]
    report = ingest(
        words_dsn,
        [
            binary, good, empty, tmp_path / "missing.txt", Document("blank", " \n\t "),
            Document("good", "Cedar sings."), Document("", "No name."), Document("u" * 3000, "Long name."),
            Document("deep", "Deep.", metadata={"a": deep}),
        ],
    )  # fmt: skip
    reasons = {failure.uri: failure.error for failure in report.failures}
    assert report.added == 1
    assert set(reasons) == {
        binary.as_uri(), empty.as_uri(), (tmp_path / "missing.txt").as_uri(), "blank", "good", "", "u" * 200 + "…",
        "deep",
    }  # fmt: skip
    assert "empty" in reasons["blank"]
    assert "empty" in reasons[empty.as_uri()]
    assert "does not exist" in reasons[(tmp_path / "missing.txt").as_uri()]
    assert "twice" in reasons["good"]
    assert "uri" in reasons[""]
    assert "nested" in reasons["deep"]
    assert rows(words_dsn, "select uri, body from document") == [("good", "Alder knows Birch.")]


def test_metadata_of_any_kind_is_stored(words_dsn: str) -> None:
    metadata = {"when": datetime(2024, 5, 1), "path": Path("a/b"), "nan": float("nan"), "bad\0": "\ud800x", "n": 10**30}
    assert ingest(words_dsn, [Document("a", "Alder knows Birch.", metadata=metadata)]).failures == ()
    stored = value(words_dsn, "select metadata from document")
    assert stored == {"when": "2024-05-01 00:00:00", "path": "a/b", "nan": None, "bad": "x", "n": 10**30}


def test_a_text_in_which_nothing_is_found_is_flagged(words_dsn: str) -> None:
    report = ingest(words_dsn, {"a": "nothing here has a name."}, extracts=extractor(lambda _: Extraction()))
    assert report.empty == ("a",)
    assert report.failures == ()
    [document] = with_rag(words_dsn, lambda rag: rag.documents("empty"))
    assert (document.uri, document.status) == ("a", "empty")


# ---------------------------------------------------------------- failures of models


def test_a_failed_chunk_is_recorded_and_the_others_are_stored(words_dsn: str) -> None:
    fails = extractor(failing_on("Elm", ExtractionError("no answer for this one")))
    report = ingest(words_dsn, {"a": long_text()}, extracts=fails, max_attempts=1, **SMALL)
    assert [(f.uri, f.ordinal, f.error) for f in report.failures] == [("a", 4, "no answer for this one")]
    [document] = with_rag(words_dsn, lambda rag: rag.documents("failed"))
    assert (document.chunks, document.chunks_done, document.chunks_failed) == (10, 9, 1)
    assert document.error is not None
    assert "no answer for this one" in document.error
    assert value(words_dsn, "select count(distinct chunk_id) from mention") == 9
    assert count(words_dsn, "stale") == 0

    idle = extractor()
    again = ingest(words_dsn, {"a": long_text()}, extracts=idle, **SMALL)
    assert (len(again.failures), idle.asked) == (1, []), "given up until somebody says retry"
    retried = extractor()
    done = with_rag(words_dsn, lambda rag: rag.retry(), extracts=retried)
    assert (done.failures, done.chunks, len(retried.asked)) == ((), 1, 1)
    assert value(words_dsn, "select status from document") == "complete"
    assert with_rag(words_dsn, lambda rag: rag.failures()) == []


def test_a_chunk_is_tried_again_after_a_pause(words_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgrag.graph.ingest.BACKOFF_SECONDS", 0.1)
    seen: list[str] = []

    def twice(chunk: Chunk) -> Extraction | ExtractionError:
        seen.append(chunk.body)
        return ExtractionError("busy") if len(seen) < 3 else capitals(chunk)

    report = ingest(words_dsn, {"a": "Alder knows Birch."}, extracts=extractor(twice), max_attempts=3)
    assert (report.failures, len(seen)) == ((), 3)
    assert rows(words_dsn, "select attempts, error, retry_at from chunk") == [(2, None, None)]


def test_an_extractor_that_loses_a_result_stops_the_run_and_keeps_nothing_leased(words_dsn: str) -> None:
    class Short(FunctionExtractor):
        async def extract(self, chunks: Any) -> Any:
            return []

    with pytest.raises(ExtractionError, match="0 results for 1 chunks"):
        ingest(words_dsn, {"a": "Alder knows Birch."}, extracts=Short(capitals))
    assert rows(words_dsn, "select extracted_at, lease_token, attempts from chunk") == [(None, None, 0)]


def _refuse(_: Any) -> Any:
    raise ModelError("the embedding server is gone")


def _not_a_number(vectors: Any) -> Any:
    vectors[0, 0] = np.nan
    return vectors


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_refuse, "the embedding server is gone"),
        (_not_a_number, "words returned a zero or non-finite vector"),
        (lambda vectors: vectors * 0, "words returned a zero or non-finite vector"),
        (lambda vectors: vectors[:, :5], "words returned a vector of 5 numbers for text 0"),
        (lambda vectors: vectors[:-1], r"words returned \d+ vectors for \d+ texts"),
        (lambda vectors: [["x"], *vectors[1:]], "words returned no numbers for text 0"),
        (lambda vectors: [vectors[0], vectors[1][:3], *vectors[2:]], "words returned a vector of 3 numbers for text 1"),
        (lambda _: None, "words returned no vectors"),
    ],
    ids=["raises", "nan", "zero", "short", "missing", "words", "ragged", "nothing"],
)
def test_a_bad_vector_fails_its_chunk_and_stores_nothing_of_it(words_dsn: str, fault: Any, message: str) -> None:
    report = ingest(words_dsn, {"a": long_text()}, embedder=FaultyEmbedder(fault), max_attempts=1, **SMALL)
    [failure] = report.failures
    assert failure.ordinal == 4
    assert re.match(message, failure.error)
    assert count(words_dsn, "chunk", "extracted_at is not null") == 9
    failed = "chunk_id in (select id from chunk where ordinal = 4)"
    for table in ("mention", "fact", "chunk_vector"):
        assert count(words_dsn, table, failed) == 0
    assert count(words_dsn, "entity", "name = 'Elm'") == 0
    assert with_rag(words_dsn, lambda rag: rag.retry()).failures == ()


def test_a_model_that_is_not_installed_stops_the_run(words_dsn: str) -> None:
    def missing(_: Any) -> Any:
        raise MissingExtraError("install it")

    with pytest.raises(MissingExtraError, match="install it"):
        ingest(words_dsn, {"a": long_text()}, embedder=FaultyEmbedder(missing), **SMALL)
    assert count(words_dsn, "chunk", "lease_token is not null or error is not null") == 0


def test_lists_of_numbers_and_long_vectors_are_vectors_too(words_dsn: str) -> None:
    embedder = FaultyEmbedder(lambda vectors: (vectors * 1e6).tolist(), marker="")
    assert ingest(words_dsn, {"a": "Alder knows Birch."}, embedder=embedder).failures == ()
    assert value(words_dsn, "select round(l2_norm(embedding)::numeric, 2) from chunk_vector") == 1


# ---------------------------------------------------------------- once only


def test_equal_texts_are_extracted_and_embedded_once(words_dsn: str) -> None:
    asked, embedder = extractor(), WordEmbedder()
    report = ingest(words_dsn, {f"copy:{i}": long_text() for i in range(4)}, extracts=asked, embedder=embedder, **SMALL)
    assert (report.added, report.chunks, report.failures) == (4, 40, ())
    assert sorted(asked.asked) == sorted({body for (body,) in rows(words_dsn, "select body from chunk")})
    assert max(embedder.asked.count(text) for text in embedder.asked) == 1
    assert count(words_dsn, "chunk_vector") == 40
    assert value(words_dsn, "select mentions from entity where name = 'Elm'") == 4
    assert count(words_dsn, "documents", "status = 'complete'") == 4


def test_hardly_a_text_is_embedded_twice(words_dsn: str) -> None:
    texts = {
        f"doc:{i}": "\n\n".join(
            f"{NAMES[(i + j) % 10]} met {NAMES[(i + 2 * j + 1) % 10]} in year {i * j}." for j in range(8)
        )
        for i in range(12)
    }
    embedder = WordEmbedder()
    ingest(words_dsn, texts, embedder=embedder, claim_batch=4, **SMALL)
    assert len(embedder.asked) / len(set(embedder.asked)) <= 1.05


# ---------------------------------------------------------------- progress, upgrades, lost connections


def test_progress_only_grows_and_ends_with_the_truth(words_dsn: str) -> None:
    ingest(words_dsn, {"other": "Yarrow knows Zinnia."})
    seen: list[IngestProgress] = []
    details = {"extracts": SlowExtractor(0.3), "progress": seen.append, "claim_batch": 2, "workers": 1}
    ingest(words_dsn, {"a": long_text(), "b": long_text()}, **details, **SMALL)
    assert len(seen) >= 3
    for name in ("chunks_done", "entities", "facts", "documents"):
        values = [getattr(progress, name) for progress in seen]
        assert values == sorted(values), name
    assert all(p.chunks_done <= p.chunks_total == 20 for p in seen)
    stats = with_rag(words_dsn, lambda rag: rag.stats())
    last = seen[-1]
    assert (last.documents, last.chunks_done, last.chunks_failed, last.stale) == (2, 20, 0, 0)
    assert (last.entities, last.relations, last.facts) == (stats.entities, stats.relations, stats.facts)


def test_a_progress_callback_that_fails_leaves_nothing_leased(words_dsn: str) -> None:
    def broken(_: IngestProgress) -> None:
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        ingest(words_dsn, {"a": long_text()}, progress=broken, extracts=SlowExtractor(0.2), **SMALL)
    assert count(words_dsn, "chunk", "lease_token is not null") == 0


def test_an_upgrade_under_a_running_process_ends_it_with_nothing_half_way(words_dsn: str) -> None:
    digest = value(words_dsn, "select code_digest()")

    def upgraded(chunk: Chunk) -> Extraction:
        age_code(words_dsn)
        return capitals(chunk)

    with pytest.raises(CodeTreeError, match="restart this process"):
        ingest(words_dsn, {"a": long_text()}, extracts=extractor(upgraded), **SMALL)
    for table in ("mention", "fact", "entity", "relation", "chunk_vector", "stale"):
        assert count(words_dsn, table) == 0
    assert count(words_dsn, "chunk", "extracted_at is null and lease_token is null and error is null") == 10
    with pytest.raises(CodeTreeError, match="pgrag db upgrade"):
        ingest(words_dsn, {"a": long_text()}, **SMALL)
    rows(words_dsn, f"create or replace function code_digest() returns text language sql as $$select '{digest}'$$")
    assert ingest(words_dsn, {"a": long_text()}, **SMALL).failures == ()
    assert value(words_dsn, "select status from document") == "complete"


def test_connections_that_are_cut_are_replaced(words_dsn: str) -> None:
    def cut(chunk: Chunk) -> Extraction:
        with psycopg.connect(words_dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        return capitals(chunk)

    report = ingest(words_dsn, {"a": long_text()}, extracts=extractor(cut), claim_batch=4, **SMALL)
    assert report.failures == ()
    assert value(words_dsn, "select status from document") == "complete"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (Document("bad", "Elm.", labels=("x" * 3000,)), "a label may have 1000 bytes"),
        (Document("bad", "Elm.", metadata={"n": 10**5000}), "metadata: a number of more than 4300 digits"),
        (Document("bad", "Elm.", published_at=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))), "published_at"),
        (Document("bad", "Elm.", page_starts=(0, "x")), "page_starts"),  # type: ignore[arg-type]
    ],
    ids=["label", "digits", "date", "pages"],
)
def test_a_document_that_cannot_be_stored_fails_alone(words_dsn: str, bad: Document, problem: str) -> None:
    report = ingest(words_dsn, [Document("first", "Alder knows Birch."), bad, Document("last", "Cedar knows Dogwood.")])
    assert (report.added, [failure.uri for failure in report.failures]) == (2, ["bad"])
    assert problem in report.failures[0].error
    assert [uri for (uri,) in rows(words_dsn, "select uri from document order by 1")] == ["first", "last"]


def test_progress_that_cannot_be_told_breaks_nothing_off(words_dsn: str) -> None:
    rows(words_dsn, "drop function ingest_progress(bigint[])")
    told: list[IngestProgress] = []
    report = ingest(words_dsn, {"a": "Alder knows Birch."}, progress=told.append)
    assert (report.added, report.failures, told) == (1, (), [])
    assert value(words_dsn, "select status from document") == "complete"


# ---------------------------------------------------------------- refresh


def test_profiles_that_could_not_be_embedded_are_completed_later(words_dsn: str) -> None:
    text = "Alder knows Birch. Cedar knows Dogwood."
    embedder = FaultyEmbedder(_refuse, marker="Cedar\t")  # in a relation's profile only
    with pytest.raises(ModelError, match="the embedding server is gone"):
        ingest(words_dsn, {"a": text}, embedder=embedder)
    assert value(words_dsn, "select status from document") == "complete"
    stale = count(words_dsn, "stale")
    assert stale in (1, 2)  # the other lane may have claimed and written the other relation; entities come first
    assert count(words_dsn, "stale", "lease_token is not null") == 0
    report = with_rag(words_dsn, lambda rag: rag.refresh())
    assert (report.entities, report.relations) == (0, stale)
    assert [count(words_dsn, table) for table in ("entity_vector", "relation_vector")] == [4, 2]
    assert with_rag(words_dsn, lambda rag: rag.refresh()).entities == 0


def test_profiles_are_refreshed_during_a_long_ingest(words_dsn: str) -> None:
    async def work(rag: PgRAG) -> int:
        task = asyncio.create_task(rag.ingest([Document("a", long_text())]))
        fresh = 0
        while not task.done():
            fresh = max(
                fresh,
                count(words_dsn, "entity_vector", "exists (select from chunk where extracted_at is null)"),
            )
            await asyncio.sleep(0.1)
        await task
        return fresh

    slow = SlowExtractor(0.25)
    fresh = with_rag(words_dsn, work, extracts=slow, claim_batch=1, workers=1, refresh_chunks=2, **SMALL)
    assert 0 < fresh < 10
    assert count(words_dsn, "entity_vector") == 10


def test_a_waiting_worker_does_not_sleep_on(words_dsn: str) -> None:
    async def work(rag: PgRAG) -> float:
        await rag.ingest([Document("a", "Alder knows Birch.")])
        started = asyncio.get_running_loop().time()
        await rag.ingest([Document("b", "Cedar knows Dogwood.")])
        return asyncio.get_running_loop().time() - started

    assert with_rag(words_dsn, work, extracts=SlowExtractor(0.2), workers=8) < 0.9


def test_open_rag_twice_in_a_row_leaves_no_connections(words_dsn: str) -> None:
    async def work() -> None:
        for _ in range(2):
            async with open_rag(words_dsn) as rag:
                await rag.stats()

    asyncio.run(work())
    sessions = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    assert value(words_dsn, sessions) == 0
