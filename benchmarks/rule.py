"""Does the rule between graph and nearness carry over to sets that it was not fitted on?

    python benchmarks/rule.py DIRECTORY... [--json]

The sets must have been ingested by quality.py into the database of PGRAG_DSN. rank_chunks gives nearness the share
`most` where the contrast of a question is `flat` or less, none from `sharp` on, and in between a share that falls
linearly. Every combination of values on a grid is tried; for each set the one that is best on the mean of all *other*
sets is taken (a set of two extractions is left out with both), and its recall@5 shown beside the shipped one, each of
the two orders alone, and the best that any combination finds on the set itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pgrag.embedding.keyless import limit_blas_threads

limit_blas_threads()

import numpy as np  # noqa: E402 - after the threads are limited
from pgvector import HalfVector  # noqa: E402
from rankings import best, recalls  # noqa: E402
from sets import has_extraction, load_set  # noqa: E402
from workspace import RememberingEmbedder, connect, workspace_of  # noqa: E402

from pgrag import PgRAG  # noqa: E402
from pgrag.extraction.keyless.extractor import KeylessKeywords, KeylessModels  # noqa: E402
from pgrag.search.terms import search_terms  # noqa: E402
from pgrag.types import Mode  # noqa: E402

FLAT = (0.85, 0.9, 0.95, 1.0, 1.05)
WIDTH = (0.05, 0.1, 0.15, 0.2, 0.25)  # from flat to sharp
MOST = (0.6, 0.8, 1.0)
SHIPPED = (0.9, 0.2, 0.8)

RANKED = """
select d.uri, r.score from rank_chunks(%s, %s, %s, %s, p_nearness => %s) as r
join chunk c on c.id = r.chunk_id join document d on d.id = c.document_id"""

CONTRAST = """
select greatest(
    contrast(array(select 1 - (embedding <=> %(v)s) from chunk_vector order by embedding <=> %(v)s limit 100)),
    contrast(array(select 1 - (embedding <=> %(v)s) from fact_vector order by embedding <=> %(v)s limit 100)))"""

Rule = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: its contrast, and of its candidates the scores of both orders, each from 0 to 1."""

    contrast: float
    uris: Sequence[str]
    graph: Any
    nearness: Any
    gold: frozenset[str]


@dataclass(frozen=True, slots=True)
class Line:
    """Recall@5 on one set; `left_out` with the rule that is best on the others."""

    name: str
    graph: float
    nearness: float
    shipped: float
    left_out: float
    rule: Rule
    best: float


async def read(directory: Path, extraction: str) -> list[Asked]:
    """Both orders of every question of a set."""
    questions = load_set(directory).questions
    embedder = RememberingEmbedder()
    keywords = KeylessKeywords(KeylessModels())
    vectors = await embedder.embed([question.text for question in questions], "query")
    asked = []
    async with PgRAG(workspace=workspace_of(directory, extraction), embedder=embedder) as rag:
        await rag.stats()  # raises if there is no such workspace, or one of other code
        with connect(rag.settings) as connection:
            connection.execute("set hnsw.ef_search = 200")
            for question, vector in zip(questions, vectors, strict=True):
                terms = search_terms(question.text, await keywords.keywords(question.text), Mode.MIX)
                given = [HalfVector(vector), list(terms.words), list(terms.parts), list(terms.similar)]
                orders = [dict(connection.execute(RANKED, [*given, share]).fetchall()) for share in (0.0, 1.0)]
                contrast = connection.execute(CONTRAST, {"v": HalfVector(vector)}).fetchone()
                uris = list(dict.fromkeys([*orders[0], *orders[1]]))
                graph, nearness = (np.array([order.get(uri, 0.0) for uri in uris]) for order in orders)
                asked.append(Asked(contrast[0] if contrast else 9.0, uris, graph, nearness, question.gold))
    return asked


def recall_of(asked: Sequence[Asked], rule: Rule | float) -> float:
    """Mean recall@5 with a rule, or with one share of nearness for all questions."""
    ranked = []
    for question in asked:
        share = rule if isinstance(rule, float) else share_of(question.contrast, rule)
        ranked.append(best((1 - share) * question.graph + share * question.nearness, question.uris))
    return float(recalls(ranked, [question.gold for question in asked])[:, 1].mean())


def share_of(contrast: float, rule: Rule) -> float:
    """The share of nearness, as rank_chunks has it."""
    flat, width, most = rule
    return most * float(np.clip((flat + width - contrast) / width, 0, 1))


def compare(sets: Mapping[tuple[str, str], list[Asked]]) -> list[Line]:
    """Every set, with the rule that the others choose."""
    rules = list(product(FLAT, WIDTH, MOST))
    found = {key: {rule: recall_of(asked, rule) for rule in rules} for key, asked in sets.items()}
    lines = []
    for (name, extraction), asked in sets.items():
        others = [key for key in sets if key[0] != name] or [(name, extraction)]
        chosen = max(rules, key=lambda rule: np.mean([found[key][rule] for key in others]))
        own = found[name, extraction]
        graph, nearness = recall_of(asked, 0.0), recall_of(asked, 1.0)
        lines.append(
            Line(f"{name}, {extraction}", graph, nearness, own[SHIPPED], own[chosen], chosen, max(own.values()))
        )
    return lines


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path, help="directories with corpus.jsonl and questions.jsonl")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    sets = {
        (directory.name, extraction): asyncio.run(read(directory, extraction))
        for directory in arguments.sets
        for extraction in ("keyless", "graph")
        if extraction == "keyless" or has_extraction(directory)
    }
    lines = compare(sets)
    if arguments.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
        return 0
    print(
        f"{'set':34} {'graph':>6} {'near':>6} {'shipped':>8} {'left out':>9}  {'with flat, sharp, most':24} {'best':>6}"
    )
    for line in lines:
        flat, width, most = line.rule
        print(
            f"{line.name:34} {line.graph:6.3f} {line.nearness:6.3f} {line.shipped:8.3f} {line.left_out:9.3f}  "
            f"{f'{flat:g}, {flat + width:g}, {most:g}':24} {line.best:6.3f}"
        )
    means = [
        np.mean([getattr(line, name) for line in lines])
        for name in ("graph", "nearness", "shipped", "left_out", "best")
    ]
    print(f"{'mean':34} {means[0]:6.3f} {means[1]:6.3f} {means[2]:8.3f} {means[3]:9.3f}  {'':24} {means[4]:6.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
