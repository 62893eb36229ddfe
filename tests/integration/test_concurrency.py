"""Several workers, tasks and processes on one workspace: one graph, nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pgrag import Document, PgRAG
from pgrag.types import Chunk, ExtractedFact, ExtractedMention, Extraction, IngestReport
from tests.support.limits import PROGRAM_SECONDS
from tests.support.models import FunctionExtractor
from tests.support.rag import capitals, count, extractor, graph, ingest, open_rag, rows, value, with_rag

PROJECT = Path(__file__).resolve().parents[2]
NAMES = ["Alder", "Birch", "Cedar", "Dogwood", "Elm"]
SMALL = {"chunk_tokens": 32, "chunk_overlap": 0}


def document(number: int) -> Document:
    """Five paragraphs about the same five names, in an order of its own; every second document shares its texts."""
    names = NAMES[number % 5 :] + NAMES[: number % 5]
    year = number // 2
    lines = [
        f"{a} met {b} on the long quay of the old harbour in the warm and windy summer of year {year}."
        for a, b in zip(names, names[1:] + names[:1], strict=True)
    ]
    return Document(f"doc:{number}", "\n\n".join(lines))


def ingest_in_process(dsn: str, numbers: range, **settings: Any) -> subprocess.Popen[str]:
    """A process of its own that ingests `document(n)` and prints its report as JSON."""
    code = f"""
        import json
        from tests.integration.test_concurrency import document
        from tests.support.rag import extractor, ingest
        asked = extractor()
        report = ingest({dsn!r}, [document(n) for n in {numbers!r}], extracts=asked, **{settings!r})
        print(json.dumps([report.added, report.updated, len(report.failures), len(asked.asked)]))
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=PROJECT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def report_of(process: subprocess.Popen[str]) -> list[int]:
    out, err = process.communicate(timeout=PROGRAM_SECONDS)
    assert process.returncode == 0, err
    found: list[int] = json.loads(out)
    return found


def test_two_processes_over_the_same_documents_make_one_graph(words_dsn: str, empty_dsn: str) -> None:
    settings = {**SMALL, "claim_batch": 2}
    both = [ingest_in_process(words_dsn, numbers, **settings) for numbers in (range(8), range(7, 1, -1))]
    reports = [report_of(process) for process in both]
    ingest(empty_dsn, [document(n) for n in range(8)], **settings)
    assert [failures for _, _, failures, _ in reports] == [0, 0]
    assert graph(words_dsn) == graph(empty_dsn)
    distinct = value(words_dsn, "select count(distinct body) from chunk")
    assert sum(asked for *_, asked in reports) == distinct, "no chunk is asked for by both"
    assert (
        value(
            words_dsn, "select count(*) from (select chunk_id, ordinal from fact group by 1, 2 having count(*) > 1) d"
        )
        == 0
    )


def test_many_tasks_of_one_process(words_dsn: str) -> None:
    async def work(rag: PgRAG) -> list[IngestReport]:
        return await asyncio.gather(*(rag.ingest([document(n), document(n + 1)]) for n in range(8)))

    asked = extractor()
    reports = with_rag(words_dsn, work, extracts=asked, claim_batch=2, **SMALL)
    assert [report.failures for report in reports] == [()] * 8
    assert count(words_dsn, "document", "status = 'complete'") == 9
    assert len(asked.asked) == len(set(asked.asked))
    assert count(words_dsn, "stale") == 0
    assert value(words_dsn, "select mentions from entity where name = 'Elm'") == 18


def test_ingest_and_delete_at_once_leave_a_whole_graph(words_dsn: str, empty_dsn: str) -> None:
    async def work(rag: PgRAG) -> None:
        for _ in range(3):
            await asyncio.gather(rag.ingest([document(1), document(2)]), rag.delete([f"doc:{n}" for n in (3, 4, 5)]))
            await asyncio.gather(rag.delete(["doc:1", "doc:2"]), rag.ingest([document(n) for n in (3, 4, 5)]))
        await rag.refresh()

    with_rag(words_dsn, work, claim_batch=1, **SMALL)
    ingest(empty_dsn, [document(n) for n in (3, 4, 5)], **SMALL)
    assert graph(words_dsn) == graph(empty_dsn)


class Held(FunctionExtractor):
    """Waits for a sign before it answers."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.called = asyncio.Event()
        self.sign = asyncio.Event()

    async def extract(self, chunks: Any) -> Any:
        self.called.set()
        await self.sign.wait()
        return await super().extract(chunks)


def said_by(who: str) -> Any:
    def function(chunk: Chunk) -> Extraction:
        found = capitals(chunk)
        return Extraction((*found.mentions, ExtractedMention(who)), (*found.facts, ExtractedFact(f"said by {who}", ())))

    return function


@pytest.mark.parametrize("first_back", ["successor", "late"])
def test_a_late_worker_cannot_overwrite_its_successor(words_dsn: str, first_back: str) -> None:
    async def run() -> tuple[IngestReport, IngestReport]:
        late, prompt = Held(said_by("Late")), Held(said_by("Prompt"))
        texts = [Document("a", "Alder knows Birch.")]
        async with (
            open_rag(words_dsn, extracts=late, workers=1) as one,
            open_rag(words_dsn, extracts=prompt, workers=1) as two,
        ):
            slow = asyncio.create_task(one.ingest(texts))
            await late.called.wait()
            rows(words_dsn, "update chunk set lease_until = now() - interval '1 second'")
            successor = asyncio.create_task(two.ingest(texts))
            await prompt.called.wait()
            if first_back == "late":
                late.sign.set()
                await asyncio.sleep(0.3)
                assert count(words_dsn, "mention") == 0, "its lease is gone"
                prompt.sign.set()
            else:
                prompt.sign.set()
                await successor
                late.sign.set()
            return await slow, await successor

    slow, prompt = asyncio.run(run())
    assert (slow.failures, prompt.failures) == ((), ())
    assert {name for (name,) in rows(words_dsn, "select name from entity")} == {"Alder", "Birch", "Prompt"}
    assert rows(words_dsn, "select text from fact where text like 'said by%%'") == [("said by Prompt",)]
    assert count(words_dsn, "chunk_vector") == 1


def test_a_document_deleted_while_it_is_extracted_does_not_come_back(words_dsn: str) -> None:
    async def run() -> IngestReport:
        held = Held(capitals)
        async with open_rag(words_dsn, extracts=held) as rag:
            task = asyncio.create_task(rag.ingest([Document("a", "Alder knows Birch.")]))
            await held.called.wait()
            assert (await rag.delete("a")).documents == 1
            held.sign.set()
            return await task

    assert asyncio.run(run()).failures == ()
    for table in (
        "document",
        "chunk",
        "mention",
        "fact",
        "entity",
        "relation",
        "stale",
        "chunk_vector",
        "chunk_search",
    ):
        assert count(words_dsn, table) == 0, table


def test_a_text_changed_while_it_is_extracted_keeps_only_the_new(words_dsn: str) -> None:
    async def run() -> None:
        held = Held(capitals)
        # by one worker: another would take the new text, and hold it as well
        async with open_rag(words_dsn, extracts=held, workers=1) as rag, open_rag(words_dsn) as other:
            task = asyncio.create_task(rag.ingest([Document("a", "Alder knows Birch.")]))
            await held.called.wait()
            await other.ingest([Document("a", "Cedar knows Dogwood.")])
            held.sign.set()
            await task

    asyncio.run(run())
    assert {name for (name,) in rows(words_dsn, "select name from entity")} == {"Cedar", "Dogwood"}
    assert rows(words_dsn, "select status from document") == [("complete",)]
