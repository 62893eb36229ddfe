"""The demo: ingest the example documents, ask one question of each kind, check the answers' references.

Run it by `make demo`, or `python examples/demo.py [--all]`. It needs no key, no network and no PostgreSQL: the
server is embedded, the models run in this process. Exit code 1 if a passage that a question needs is not among the
references.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from pgrag import limit_blas_threads

limit_blas_threads()

from pgrag import IngestProgress, PgRAG, QueryResult  # noqa: E402 - after the threads are limited

HERE = Path(__file__).resolve().parent
ASKED = ("sf-1", "ag-2", "mh-2", "th-2")
REFERENCES = 8
FIRST = 3  # where the one passage of a single fact must be


def missing(result: QueryResult, golds: list[dict[str, str]], first: int = REFERENCES) -> list[dict[str, str]]:
    """The gold passages that are not among the first references."""
    found = [(c.uri, " ".join(c.body.split())) for c in result.retrieval.chunks[:first]]
    return [
        gold
        for gold in golds
        if not any(
            gold["document"].split("#")[0] in uri and " ".join(gold["text"].split()) in body for uri, body in found
        )
    ]


def show(
    question: dict[str, Any], result: QueryResult, lost: list[dict[str, str]], naive_lost: list[dict[str, str]]
) -> None:
    """One question as a person reads it."""
    layers = result.retrieval
    print(f"\n── {question['kind']}: {question['question']}")
    print(result.answer)
    for r in result.references:
        where = " › ".join(r.headings) or r.title
        print(f"  [{r.number}] {r.uri.rsplit('/', 1)[-1]}, characters {r.start}-{r.end}  {where}")
    print(
        f"  found: {len(layers.entities)} entities, {len(layers.relations)} relations, {len(layers.chunks)} passages"
        f" in {sum(result.timings.values()):.2f} s; expected: {question['answer']}"
    )
    golds = len(question["gold"])
    by_vector = f"plain vector search: {golds - len(naive_lost)}"
    print(f"  needed passages among the references: {golds - len(lost)} of {golds} ({by_vector})")
    for gold in lost:
        print(f"  MISSING {gold['document']}: {gold['text']}")


def progress_line(progress: IngestProgress) -> None:
    """Where the ingest stands, on one line of a terminal."""
    if sys.stderr.isatty():
        print(
            f"\r{progress.chunks_done}/{progress.chunks_total} chunks, {progress.entities} entities, "
            f"{progress.relations} relations, {progress.facts} facts ",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip


async def demo(*, ask_all: bool) -> int:
    """Runs the demo; 0 if every needed passage was found and naive search missed one of a multi-hop question."""
    questions = [
        json.loads(line) for line in (HERE / "questions.jsonl").read_text("utf-8").splitlines() if line.strip()
    ]
    asked = [q for q in questions if ask_all or q["id"] in ASKED]
    failed = naive_missed = 0
    async with PgRAG(workspace="demo", chunk_tokens=200, chunk_overlap=0) as rag:
        started = time.monotonic()
        report = await rag.ingest(HERE / "documents", progress=progress_line)
        stats = await rag.stats()
        print(
            f"\ningested {report.added + report.updated} documents, skipped {report.skipped} unchanged ones"
            f" in {time.monotonic() - started:.1f} s: {stats.chunks} chunks, {stats.entities} entities,"
            f" {stats.relations} relations, {stats.facts} facts\n{report.notice}"
        )
        for failure in report.failures:
            print(f"FAILED {failure.uri}: {failure.error}")
        for question in asked:
            result = await rag.query(question["question"], chunk_top_k=REFERENCES)
            naive = await rag.query(question["question"], mode="naive", chunk_top_k=REFERENCES, only_context=True)
            single = question["kind"] == "single_fact"
            lost = missing(result, question["gold"], FIRST if single else REFERENCES)
            naive_lost = missing(naive, question["gold"])
            show(question, result, lost, naive_lost)
            failed += bool(lost)
            naive_missed += bool(naive_lost) and question["kind"] == "multi_hop"
    print(f"\n{len(asked) - failed} of {len(asked)} questions have every needed passage; ", end="")
    print(f"plain vector search misses one of {naive_missed} multi-hop question(s)")
    return 1 if failed or report.failures or not naive_missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--all", action="store_true", help="ask every question of questions.jsonl")
    sys.exit(asyncio.run(demo(ask_all=parser.parse_args().all)))
