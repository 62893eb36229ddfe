"""What a search costs, and what it finds of what exact search would, as graphs grow.

    python benchmarks/retrieve.py [--sizes 16k,100k,1m] [--questions 100] [--modes mix,naive] [--rankings vector]
                                  [--against COMMIT [--passes 3]] [--dsn DSN] [--home DIRECTORY] [--keep]
                                  [--json] [--goals]

Makes a graph of each size (see graphs.py) in a workspace of its own and asks questions about facts of it: all variants
of a search in turn for ten questions at a time, after each question was asked once unmeasured. Without --dsn (or
PGRAG_DSN) it starts a PostgreSQL of its own and removes it; --home says where it lives, and then it stays. --keep takes
workspaces that are there and leaves those that it makes.

Columns: median and 95th percentile in ms as a client sees them, processor ms of the PostgreSQL backend; wire: requests
of a warm PgRAG.retrieve(); rows of entities, relations and chunks; scans: what the HNSW scans that the variant needs
take, each asked alone with the limit it has there; how many times that the search takes (ratio, and in processor time);
hub: median of questions about the entity of the highest degree over that of the others. Recall@40 of the seeds is
against exact search, by ef_search.

--against compares the working tree with a commit of this repository over the same data (see releases.py), at 16k and
100k if --sizes does not say otherwise; --modes and --rankings are not looked at. Times are of whole PgRAG.retrieve()
calls; the goals are for the ratio of their p50. That of least times is the median over the questions of the least time
of each: a busy machine disturbs it less. Intervals are bootstraps of the questions. The last column says for how many
questions the ids of entities, relations or chunks, or their order, are others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import releases
from goals import Goal, show_goals
from graphs import Graph
from loading import connect, load
from peers.environment import PeerError
from psycopg import sql
from pydantic import SecretStr
from searches import BARE, DEFAULT, EFS, Variant, draw_questions, measure, measure_recall
from server import own_server

from pgrag.config import Settings
from pgrag.database.migrate import check, upgrade
from pgrag.errors import PgragError, WorkspaceError
from pgrag.types import ChunkRanking, Mode

MOST_FOR_RECALL = 100  # questions: exact search reads whole tables
SIZES = """
select (select count(*) from entity), (select count(*) from relation), (select count(*) from fact),
       (select count(*) from chunk), (select max(degree) from entity),
       (select sum(pg_total_relation_size(c.oid)) / 1048576 from pg_class c
        where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r')"""


# ---------------------------------------------------------------- one size


def prepare(settings: Settings, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Loads the graph unless it is there and kept; what it took."""
    if options.keep and is_loaded(settings, size):
        return {"load_seconds": None, "index_seconds": None, "index_memory_mb": None}
    loaded = load(settings, Graph(size))
    return {
        "load_seconds": loaded.rows_seconds,
        "index_seconds": loaded.indexes_seconds,
        "index_memory_mb": loaded.index_memory_mb,
    }


def is_loaded(settings: Settings, size: int) -> bool:
    """Whether the workspace holds such a graph; brought to this release's SQL."""
    try:
        upgrade(settings)
        problems = check(settings)
    except WorkspaceError:
        return False
    with connect(settings) as connection:
        row = connection.execute("select count(*) from entity_vector").fetchone()
    return not problems and row is not None and row[0] == size


@contextmanager
def loaded(name: str, dsn: str, options: argparse.Namespace) -> Iterator[tuple[Settings, int, dict[str, Any]]]:
    """A workspace with a graph of this size, the size as a number, and what loading it took; dropped unless --keep."""
    size = parse_size(name)
    settings = Settings(dsn=SecretStr(dsn), workspace=f"retrieve_{size}", statement_timeout=600)
    if not options.json:
        print(f"{name}: loading ...", file=sys.stderr, flush=True)
    yield settings, size, prepare(settings, size, options)
    if not options.keep:
        with connect(settings) as connection:
            connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(settings.schema_name)))


def compare_size(name: str, dsn: str, options: argparse.Namespace, release: releases.Release) -> dict[str, Any]:
    """One size beside a release."""
    with loaded(name, dsn, options) as (settings, size, _):
        questions = draw_questions(settings, options.questions, 1, hub=False)
        return releases.compare(settings, size, release, questions, options.passes, keep=options.keep)


def measure_size(name: str, dsn: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one size."""
    with loaded(name, dsn, options) as (settings, size, took):
        return {"size": size, **took, **measure_workspace(settings, options)}


def measure_workspace(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """What is in it, and what searches take and find."""
    questions = draw_questions(settings, options.questions, 1, hub=False)
    about_hub = draw_questions(settings, max(10, options.questions // 4), 2, hub=True)
    rankings, modes = options.rankings.split(","), options.modes.split(",")
    variants = [
        Variant(mode, ranking, Settings().lexical)
        for mode in modes
        for ranking in (rankings if mode != Mode.NAIVE else [str(ChunkRanking.VECTOR)])
    ]
    variants += [v for v in (BARE, DEFAULT) if v not in variants]
    recalls = asyncio.run(measure_recall(settings, questions[:MOST_FOR_RECALL]))
    measured = asyncio.run(measure(settings, questions, about_hub, variants))
    with connect(settings) as connection:
        counts = connection.execute(SIZES).fetchone()
    assert counts is not None
    names = ("entities", "relations", "facts", "chunks", "hub_degree", "megabytes")
    named = dict(zip(names, map(int, counts), strict=True))
    return {
        **named,
        "questions": len(questions),
        "recall": [asdict(r) for r in recalls],
        "variants": [asdict(m) for m in measured],
    }


def parse_size(text: str) -> int:
    """16k, 1m or a plain number."""
    factor = {"k": 1000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    try:
        return int(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        raise SystemExit(f"a size is a number, or one with k or m, and not {text!r}") from None


# ---------------------------------------------------------------- goals and tables


def goals(results: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """What search must cost and find."""
    by_size = {r["size"]: r for r in results}

    def variant(size: int, wanted: Variant, figure: str) -> float | None:
        found = [v for v in by_size[size]["variants"] if _key(v) == wanted] if size in by_size else []
        return found[0][figure] if found else None

    def growth(wanted: Variant) -> float | None:
        large, small = variant(1_000_000, wanted, "p50_ms"), variant(16_000, wanted, "p50_ms")
        return large / small if large and small else None

    everything = [v for r in results for v in r["variants"]]
    largest = max(by_size)
    hub = max(variant(largest, wanted, "hub") or 0 for wanted in (BARE, DEFAULT))
    recalls = [r["recall"][r["shipped"]] for r in by_size[1_000_000]["recall"]] if 1_000_000 in by_size else []
    return [
        Goal("requests of a warm retrieve(), any variant", max(v["wire"] for v in everything), 1),
        Goal("mix, vector, no words / its bare scans, 100k", variant(100_000, BARE, "mix_ratio"), 2.2),
        Goal("the default / the same scans, 100k", variant(100_000, DEFAULT, "mix_ratio"), 5),
        Goal("p50 at 1m / at 16k, mix, vector, no words", growth(BARE), 2),
        Goal("p50 at 1m / at 16k, the default", growth(DEFAULT), 2),
        Goal(f"questions about the hub / others, both, {largest:,}", hub, 1.3),
        Goal("least recall@40 of seeds, 1m", min(recalls, default=None), 0.92, at_most=False),
    ]


def _key(variant: Mapping[str, Any]) -> Variant:
    return Variant(variant["mode"], variant["ranking"], variant["lexical"])


def show(result: Mapping[str, Any]) -> None:
    """One size as tables."""
    r = result
    took = "kept"
    if r["load_seconds"] is not None:
        took = (
            f"rows in {r['load_seconds']:.0f} s, HNSW in {r['index_seconds']:.0f} s with {r['index_memory_mb']:.0f} MB"
        )
    print(
        f"\n{r['entities']:,} entities, {r['relations']:,} relations, {r['facts']:,} facts, {r['chunks']:,} chunks, "
        f"a hub of degree {r['hub_degree']:,}, {r['megabytes']:,} MB; {took}; {r['questions']} questions"
    )
    print(f"\n{'recall@40':10}" + "".join(f"{f'ef {ef}':>14}" for ef in EFS) + "      shipped  least ef for .95")
    for kind in r["recall"]:
        cells = "".join(f"{kind['recall'][ef]:6.3f} {kind['p50_ms'][ef]:4.1f} ms" for ef in EFS)
        enough = [ef for ef in sorted(kind["recall"]) if kind["recall"][ef] >= 0.95]
        shipped = kind["shipped"]
        cost = "none of these"
        if enough:
            cost = f"{enough[0]}, {kind['p50_ms'][enough[0]] / kind['p50_ms'][shipped]:.1f} times the time"
        print(f"{kind['kind']:10}{cells}  {shipped:4}: {kind['recall'][shipped]:.3f}  {cost}")
    print(
        f"\n{'mode':7} {'ranking':8} {'words':>5} {'p50':>6} {'p95':>6} {'cpu':>6} {'wire':>4} {'rows':>12} "
        f"{'scans':>6} {'ratio':>6} {'cpu':>5} {'hub':>5}"
    )
    for v in r["variants"]:
        rows = "/".join(f"{x:.0f}" for x in v["rows"])
        ranking = "" if v["mode"] == Mode.NAIVE else v["ranking"]
        print(
            f"{v['mode']:7} {ranking:8} {v['lexical']:5.1f} {v['p50_ms']:6.2f} {v['p95_ms']:6.2f} "
            f"{_number(v['cpu_ms'], 6)} {v['wire']:4} {rows:>12} {v['floor_ms']:6.2f} {v['ratio']:6.2f} "
            f"{_number(v['cpu_ratio'], 5)} {v['hub']:5.2f}",
            flush=True,
        )
    for name, wanted in (("mix, vector, no words", BARE), ("the default", DEFAULT)):
        ratio = next(v["mix_ratio"] for v in r["variants"] if _key(v) == wanted)
        print(f"{name}: {ratio:.2f} times the scans of entities, relations and chunks")


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.2f}"


def main() -> int:
    """Exit code 1 with --goals when one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", help="numbers of entities; 16k,100k,1m, or 16k,100k with --against")
    parser.add_argument("--questions", type=int, default=100, help="questions a size; a quarter more are about the hub")
    parser.add_argument("--modes", default="local,global,hybrid,mix,naive", help="modes to try")
    parser.add_argument("--rankings", default="vector,weight,pagerank", help="orders of the text layer to try in each")
    parser.add_argument("--against", metavar="COMMIT", help="compare with this commit, over the same data")
    parser.add_argument("--passes", type=int, default=3, help="how often --against asks each question, measured")
    parser.add_argument("--dsn", default=os.environ.get("PGRAG_DSN"), help="PostgreSQL to use; none: one of its own")
    parser.add_argument("--home", type=Path, help="where its own server lives, and stays")
    parser.add_argument("--keep", action="store_true", help="take workspaces that are there, leave those that are made")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--goals", action="store_true", help="exit 1 when a goal is missed")
    options = parser.parse_args()
    if options.passes < 1:
        parser.error("--passes: 1 at least")
    if options.questions < 10:
        parser.error("--questions: 10 at least, for percentiles of fewer say nothing")
    if (
        unknown := {*options.modes.split(",")} - {*Mode}
        | {*options.rankings.split(",")} - {*ChunkRanking}
        | ({*options.modes.split(",")} & {Mode.BYPASS})
    ):
        parser.error(f"no such mode or ranking: {', '.join(sorted(unknown))}")
    if options.against:
        return against(options)
    with server(options) as dsn:
        results = run(options, lambda name: measure_size(name, dsn, options), show, "16k,100k,1m")
    return report(results, goals(results), options)


def against(options: argparse.Namespace) -> int:
    """The comparison with a release; exit code 2 when a side cannot be made or fails."""
    try:
        with releases.checkout(options.against) as release, server(options) as dsn:
            results = run(options, lambda name: compare_size(name, dsn, options, release), releases.show, "16k,100k")
    except (PeerError, PgragError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return report(results, releases.goals(results), options)


@contextmanager
def server(options: argparse.Namespace) -> Iterator[str]:
    """The DSN to use."""
    if options.dsn:
        yield options.dsn
    else:
        with own_server(options.home) as dsn:
            yield dsn


def run(
    options: argparse.Namespace,
    of_size: Callable[[str], dict[str, Any]],
    shown: Callable[[Mapping[str, Any]], None],
    sizes: str,
) -> list[dict[str, Any]]:
    """All sizes, each shown when it is done."""
    results = []
    for name in (options.sizes or sizes).split(","):
        results.append(of_size(name.strip()))
        if not options.json:
            shown(results[-1])
    return results


def report(results: Sequence[Mapping[str, Any]], found: Sequence[Goal], options: argparse.Namespace) -> int:
    """Says which goals are met; exit code 1 with --goals when one is missed."""
    if options.json:
        listed = [{**asdict(goal), "met": goal.met} for goal in found]
        print(json.dumps({"sizes": results, "goals": listed}, indent=2))
    else:
        show_goals(found)
    return 1 if options.goals and any(goal.met is False for goal in found) else 0


if __name__ == "__main__":
    sys.exit(main())
