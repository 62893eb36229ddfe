"""How many of the passages that a question needs are found: ingest a set without a key, ask its questions by mode.

    python benchmarks/quality.py DIRECTORY... [--modes naive,mix] [--json] [--goals]

A set is a directory with `corpus.jsonl` ({id, title, text}) and `questions.jsonl` ({question, gold_ids}). Each gets a
workspace of its own in the database of PGRAG_DSN (or the embedded server), made again unless --keep is given.
Columns: recall@2, @5, @10, share of questions with all gold in 5, median and 95th percentile of a search in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pgrag.llm.keyless import limit_blas_threads

limit_blas_threads()

import numpy as np  # noqa: E402 - after the threads are limited
import psycopg  # noqa: E402
from psycopg import sql  # noqa: E402

from pgrag import PgRAG  # noqa: E402

# naive recall@5 of exact search with the same embedder, as measured outside pgrag; a goal is to be within .01 of it
NAIVE_GOALS = {"cmrc2018_dev": 0.978, "hotpotqa_train100": 0.875}
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Ingested:
    """What ingesting a set took."""

    passages: int
    chunks: int
    entities: int
    relations: int
    facts: int
    megabytes: float
    seconds: float
    seconds_per_100: float
    peak_memory_mb: float


@dataclass(frozen=True, slots=True)
class Found:
    """What one mode found."""

    mode: str
    questions: int
    recall_2: float
    recall_5: float
    recall_10: float
    all_in_5: float
    p50_ms: float
    p95_ms: float


def questions_of(directory: Path) -> list[dict[str, Any]]:
    """The questions that have gold passages, all of them in the corpus."""
    lines = (directory / "questions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return [row for row in rows if row["gold_ids"] and not row.get("missing_evidence")]


async def ingest(rag: PgRAG, directory: Path) -> Ingested:
    """Ingests the corpus and says what it took."""
    started = time.monotonic()
    report = await rag.ingest(directory / "corpus.jsonl")
    seconds = time.monotonic() - started
    if report.failures:
        sys.exit(f"{directory.name}: {len(report.failures)} failures, first: {report.failures[0]}")
    stats = await rag.stats()
    passages = report.added + report.updated + report.skipped
    return Ingested(
        passages, stats.chunks, stats.entities, stats.relations, stats.facts, stats.bytes / 2**20, seconds,
        100 * seconds / max(passages, 1), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )  # fmt: skip


async def ask(rag: PgRAG, questions: list[dict[str, Any]], mode: str) -> Found:
    """Recall of one mode over all questions; passages are counted by document."""
    recalls, times = [], []
    for row in questions:
        found = await rag.retrieve(row["question"], mode=mode)
        ids = list(dict.fromkeys(c.uri.rsplit("#", 1)[-1] for c in found.chunks))
        gold = set(row["gold_ids"])
        recalls.append([len(gold & set(ids[:k])) / len(gold) for k in (2, 5, 10)])
        times.append(found.timings["search"] * 1000)
    table = np.array(recalls)
    all_in_5 = float(np.mean(table[:, 1] >= 1))
    p50, p95 = np.percentile(times, [50, 95])
    return Found(mode, len(questions), *table.mean(0).round(4).tolist(), all_in_5, float(p50), float(p95))


async def measure(directory: Path, modes: list[str], *, keep: bool) -> dict[str, Any]:
    """One set, in its own workspace."""
    name = "quality_" + "".join(c if c.isalnum() else "_" for c in directory.name.lower())
    async with PgRAG(workspace=name) as rag:
        if not keep and rag.settings.dsn:
            drop = sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(rag.settings.schema_name))
            with psycopg.connect(rag.settings.dsn.get_secret_value(), autocommit=True) as connection:
                connection.execute(drop)
        ingested = await ingest(rag, directory)
        found = [await ask(rag, questions_of(directory), mode) for mode in modes]
    return {"set": directory.name, "ingest": asdict(ingested), "modes": [asdict(f) for f in found]}


def show(result: dict[str, Any]) -> None:
    """One set as a table."""
    i = result["ingest"]
    print(
        f"\n{result['set']}: {i['passages']} passages, {i['chunks']} chunks, {i['entities']} entities, "
        f"{i['relations']} relations, {i['facts']} facts, {i['megabytes']:.0f} MB; {i['seconds']:.0f} s "
        f"({i['seconds_per_100']:.1f} s per 100), peak memory {i['peak_memory_mb']:.0f} MB"
    )
    print(f"{'mode':10} {'questions':>9} {'R@2':>6} {'R@5':>6} {'R@10':>6} {'all@5':>6} {'p50 ms':>7} {'p95 ms':>7}")
    for f in result["modes"]:
        print(
            f"{f['mode']:10} {f['questions']:9} {f['recall_2']:6.3f} {f['recall_5']:6.3f} {f['recall_10']:6.3f} "
            f"{f['all_in_5']:6.2f} {f['p50_ms']:7.1f} {f['p95_ms']:7.1f}"
        )


def missed_goals(results: list[dict[str, Any]]) -> list[str]:
    """The goals that were not reached, in words."""
    missed = []
    for result in results:
        goal = NAIVE_GOALS.get(result["set"])
        for found in result["modes"]:
            if goal and found["mode"] == "naive" and abs(found["recall_5"] - goal) > TOLERANCE:
                missed.append(
                    f"{result['set']}: naive recall@5 {found['recall_5']:.3f} is not within {TOLERANCE} of {goal}"
                )
    return missed


def main() -> int:
    """Exit code 1 with --goals when one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path, help="directories with corpus.jsonl and questions.jsonl")
    parser.add_argument("--modes", default="naive,local,global,hybrid,mix", help="modes to try")
    parser.add_argument("--keep", action="store_true", help="use what an earlier run ingested")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--goals", action="store_true", help="exit 1 when a goal is missed")
    arguments = parser.parse_args()
    results = []
    for directory in arguments.sets:
        results.append(asyncio.run(measure(directory, arguments.modes.split(","), keep=arguments.keep)))
        if not arguments.json:
            show(results[-1])
    missed = missed_goals(results)
    if arguments.json:
        print(json.dumps({"sets": results, "missed": missed}, indent=2))
    elif missed:
        print("\n" + "\n".join(missed))
    return 1 if arguments.goals and missed else 0


if __name__ == "__main__":
    sys.exit(main())
