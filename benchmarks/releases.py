"""The working tree beside a release of this repository: whole searches as a client sees them, over the same data.

The release is taken from git into a temporary directory. Either side is a process of its own with its own Python code
and its own SQL code, asked in turn, question by question. The data is loaded once, by the working tree; each side makes
a workspace of its own, of which only the code is used: its functions get a search_path with the schema of the data in
front, and what stood in the way there, the code beside the data, is gone until the run ends. Where the release has
other tables or indexes, its own loading code loads the same graph for it, and the output says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from goals import Goal
from loading import Model, connect, mark
from pairs import Ratio, Side, differing, least_ratio, ratio, turn
from peers.environment import PeerError, Process, process
from psycopg import sql
from searches import BLOCK, Question

from pgrag.config import Settings
from pgrag.database.migrate import upgrade

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("release_side.py")
SIDES = ("tree", "release")
LIMIT = 1.05  # of the ratio of medians
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
LOAD = """
import sys
from loading import load
from graphs import Graph
from pgrag import Settings
load(Settings(dsn=sys.argv[1], workspace=sys.argv[2], statement_timeout=600), Graph(int(sys.argv[3])))"""

# what a side reads of the tables: columns (a migrated table has them in another order than a new one) and indexes
# What a search reads: the cache of responses and the usage of models are none of it.
STRUCTURE = """
select c.relname,
       string_agg(format('%%s %%s %%s', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull), ', '
                  order by a.attname),
       array(select replace(pg_get_indexdef(i.indexrelid), format(' ON %%I.', n.nspname), ' ON ')
             from pg_index i where i.indrelid = c.oid and i.indisvalid order by 1)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where n.nspname = %s and c.relkind = 'r' and c.relname not like 'llm\\_%%' group by c.oid, c.relname, n.nspname"""

SEARCH_PATH = """
select substring(setting from '^search_path=(.*)$') from pg_proc p, unnest(p.proconfig) as setting
where p.pronamespace = cast(%s as regnamespace) and setting like 'search_path=%%' limit 1"""

CODE = """
select 'view', c.oid::regclass::text from pg_class c where c.relnamespace = cast(%s as regnamespace) and c.relkind = 'v'
union all
select 'routine', p.oid::regprocedure::text from pg_proc p where p.pronamespace = cast(%s as regnamespace)
union all
select 'type', t.oid::regtype::text from pg_type t join pg_class c on c.oid = t.typrelid
where t.typnamespace = cast(%s as regnamespace) and c.relkind = 'c'"""


@dataclass(frozen=True, slots=True)
class Release:
    """A checkout of a commit; `name` is the commit's, abbreviated."""

    name: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Search:
    """A way to ask: options of `retrieve()`, and what selects documents, of which `filtered` is one in so many."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    filtered: int = 1

    def filter(self, number: int) -> dict[str, Any]:
        """The conditions for a question: another share of the documents for each."""
        return {
            1: {},
            10: {"labels": [f"region {number % 10}"]},
            100: {"metadata": {"team": number % 100}},
        }[self.filtered]


SEARCHES = (
    Search("mix, vector, no words", {"mode": "mix", "chunk_ranking": "vector", "lexical": 0.0}),
    Search("default"),
    Search("naive", {"mode": "naive"}),
    Search("default, 10 % of documents", filtered=10),
    Search("default, 1 % of documents", filtered=100),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One way to ask on both sides; `rows` of entities, relations and chunks on average, of the working tree.

    `ratio` is that of the p50, `least` that of the least times of each question, `ms` all times, by side and question.
    """

    name: str
    questions: int
    p50_ms: Mapping[str, float]
    p95_ms: Mapping[str, float]
    ratio: Ratio
    least: Ratio
    differing: int
    rows: tuple[float, float, float]
    ms: Mapping[str, list[list[float]]]


@contextmanager
def checkout(commit: str) -> Iterator[Release]:
    """The files of a commit of this repository in a temporary directory. Raises PeerError if there is none."""
    found = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(prefix=f"pgrag-{found[:7]}-") as directory:
        subprocess.run(["tar", "-x", "-C", directory], input=_git("archive", found), check=True)
        yield Release(found[:7], Path(directory))


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode().strip() or f"no such commit in {ROOT}"
        raise PeerError(f"git {arguments[0]}: {said}") from None


def compare(
    settings: Settings, size: int, release: Release, questions: Sequence[Question], passes: int, *, keep: bool = False
) -> dict[str, Any]:
    """Both sides over the graph of this size that `settings` lead to, each question asked `passes` times of both.

    With `keep` what a release had to load stays.
    """
    mark(settings)
    apart: list[str] = []
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgrag-releases-"))) / "questions.npz"
        write_questions(file, questions)
        stack.enter_context(_code_removed(settings))
        sides = {}
        for side, name, tree in (("tree", "tree", ROOT), ("release", release.name, release.directory)):
            command = [sys.executable, str(SCRIPT), str(file), str(tree)]
            sides[side] = stack.enter_context(process(name, command, variables(tree)))
            own = settings.model_copy(update={"workspace": f"{settings.workspace}_{name}"})
            apart = stack.enter_context(_workspace(settings, own, size, tree, sides[side], keep=keep))
            if apart and side == "tree":
                raise SystemExit(f"{settings.workspace} has other tables ({', '.join(apart)}): load it anew")
        found = ask(sides, questions, passes)
        for worker in sides.values():
            worker.do("close")
    return {
        "size": size,
        "release": release.name,
        "loaded_apart": apart,
        "passes": passes,
        "searches": [asdict(c) for c in found],
    }


def write_questions(file: Path, questions: Sequence[Question]) -> None:
    """For release_side.py: what was prepared for each question."""
    said = {
        "model": Model.model,
        "dimension": Model.dimension,
        "threshold": Model.cosine_threshold,
        "questions": [{"text": q.text, "low": q.keywords.low, "high": q.keywords.high} for q in questions],
    }
    vectors = {kind: np.stack([q.vectors[kind] for q in questions]) for kind in ("question", "low", "high")}
    np.savez(file, said=json.dumps(said), **vectors)


def variables(tree: Path) -> dict[str, str]:
    """The environment of a process that is to import the pgrag of a tree."""
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": str(tree), "PYTHONUTF8": "1"}


# ---------------------------------------------------------------- the workspaces


@contextmanager
def _code_removed(settings: Settings) -> Iterator[None]:
    """Inside, there is no code beside the data, for each side has its own elsewhere."""
    with connect(settings) as connection, connection.transaction():
        for kind, name in connection.execute(CODE, [settings.schema_name] * 3).fetchall():
            connection.execute(sql.SQL("drop {} if exists {} cascade").format(sql.SQL(kind), sql.SQL(name)))
    try:
        yield
    finally:
        upgrade(settings)


@contextmanager
def _workspace(
    data: Settings, own: Settings, size: int, tree: Path, worker: Process, *, keep: bool
) -> Iterator[list[str]]:
    """A side's workspace, opened: its code over the data, or a graph loaded apart. Gives the tables that made it so."""
    assert own.dsn is not None, "a DSN is needed"
    dsn = own.dsn.get_secret_value()
    with connect(data) as connection:
        if not _is_loaded(connection, own, size):
            _drop(connection, own)
            worker.do("make", dsn=dsn, workspace=own.workspace)
        others = structure_differences(connection, data.schema_name, own.schema_name)
        try:
            if others:
                if not _is_loaded(connection, own, size):
                    load_apart(own, size, tree)
                mark(own)
            else:
                _read_tables_of(connection, data.schema_name, own.schema_name, tree)
            worker.do("open", dsn=dsn, workspace=own.workspace)
            yield others
        finally:
            if not (others and keep):
                _drop(connection, own)


def structure_differences(connection: psycopg.Connection[Any], data: str, own: str) -> list[str]:
    """The tables that a side has otherwise than the data. That the data has more of them is no matter."""
    there, wanted = (
        {table: tuple(rest) for table, *rest in connection.execute(STRUCTURE, [schema])} for schema in (data, own)
    )
    return sorted(table for table, structure in wanted.items() if there.get(table) != structure)


def load_apart(own: Settings, size: int, tree: Path) -> None:
    """Loads the same graph by the loading code of a tree. Raises PeerError if that fails."""
    assert own.dsn is not None, "a DSN is needed"
    print(f"{own.workspace}: loading by its own code, for it has other tables ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-P", "-c", LOAD, own.dsn.get_secret_value(), own.workspace, str(size)]
    environment = variables(tree) | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'benchmarks'}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"{own.workspace} cannot be loaded: {done.stderr.strip()[-1000:]}")


def _is_loaded(connection: psycopg.Connection[Any], own: Settings, size: int) -> bool:
    """Whether a side has a whole graph of its own, from a run before."""
    table = sql.Identifier(own.schema_name, "entity_vector")
    there = connection.execute("select to_regclass(%s) is not null", [table.as_string(connection)]).fetchone()
    if there != (True,):
        return False
    return connection.execute(sql.SQL("select count(*) from {}").format(table)).fetchone() == (size,)


def _read_tables_of(connection: psycopg.Connection[Any], data: str, own: str, tree: Path) -> None:
    """Makes the code of a tree in a side's schema anew, where it finds no tables but those of the data."""
    with connection.transaction():
        here, there = sql.Identifier(own), sql.Identifier(data)
        (path,) = connection.execute(SEARCH_PATH, [own]).fetchone() or ("",)
        (digest,) = connection.execute(sql.SQL("select {}.code_digest()").format(here)).fetchone() or ("",)
        statements = (
            sql.SQL("drop schema {} cascade").format(here),
            sql.SQL("create schema {}").format(here),
            sql.SQL("set local search_path = {}, {}, {}").format(here, there, sql.SQL(path.partition(", ")[2])),
            sql.SQL("create view {}.meta as select * from {}.meta").format(here, there),
            sql.SQL("create function {}.code_digest() returns text language sql immutable as {}").format(
                here, sql.Literal(f"select '{digest}'")
            ),
        )
        for statement in statements:
            connection.execute(statement)
        connection.execute("select cast('[1]' as vector), show_trgm('a')")  # headers of 851f607 set their parameters
        for file in sorted((tree / "sql").glob("*.sql")):
            connection.execute(file.read_bytes())


def _drop(connection: psycopg.Connection[Any], own: Settings) -> None:
    connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(own.schema_name)))


# ---------------------------------------------------------------- asking


def ask(sides: Mapping[str, Process], questions: Sequence[Question], passes: int) -> list[Compared]:
    """All searches in turn for ten questions at a time; each question is asked of one side right after the other.

    One more pass, the first, is not measured.
    """
    times = {(search.name, side): Side() for search in SEARCHES for side in SIDES}
    blocks = [range(start, min(start + BLOCK, len(questions))) for start in range(0, len(questions), BLOCK)]
    for round_, block in product(range(passes + 1), blocks):
        for search, number in product(SEARCHES, block):
            for side in turn(SIDES, round_, number):
                answer = sides[side].do(
                    "ask", number=number, options=dict(search.options), filter=search.filter(number)
                )
                if round_ == 1:
                    times[search.name, side].ms.append([])
                    times[search.name, side].rows.append(answer["rows"])
                if round_:
                    times[search.name, side].ms[number].append(answer["ms"])
    return [_compared(search.name, times[search.name, "tree"], times[search.name, "release"]) for search in SEARCHES]


def _compared(name: str, tree: Side, release: Side) -> Compared:
    entities, relations, chunks = (
        float(np.mean([len(rows[layer]) for rows in tree.rows])) for layer in ("entities", "relations", "chunks")
    )
    if not chunks:
        raise SystemExit(f"{name}: no question found anything")
    both = {"tree": tree, "release": release}
    return Compared(
        name, len(tree.ms), {side: of.percentile(50) for side, of in both.items()},
        {side: of.percentile(95) for side, of in both.items()},
        ratio(tree, release), least_ratio(tree, release), differing(tree, release),
        (entities, relations, chunks), {side: of.ms for side, of in both.items()},
    )  # fmt: skip


# ---------------------------------------------------------------- what is said of it


def goals(results: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """No search may have become slower."""
    return [
        Goal(f"{s['name']}, {r['size']:,}: p50 / {r['release']}", s["ratio"]["value"], LIMIT)
        for r in results
        for s in r["searches"]
    ]


def show(result: Mapping[str, Any]) -> None:
    """One size as a table."""
    release = result["release"]
    print(
        f"\n{result['size']:,} entities, the working tree beside {release}: ms of retrieve(), "
        f"{result['searches'][0]['questions']} questions, {result['passes']} times each"
    )
    if result["loaded_apart"]:
        print(
            f"{release} has other tables or indexes ({', '.join(result['loaded_apart'])}): loaded apart by its own "
            "code, with HNSW indexes of its own, and that alone may make rows differ"
        )
    print(
        f"\n{'':31} {'p50':>7} {release:>8} {'p95':>7} {release:>8} {'ratio of p50, 95 %':>21} {'of least times':>21} "
        f"{'rows':>10}  differ"
    )
    for s in result["searches"]:
        p50, p95 = s["p50_ms"], s["p95_ms"]
        ratios = " ".join(f"{r['value']:6.3f} [{r['low']:.3f}, {r['high']:.3f}]" for r in (s["ratio"], s["least"]))
        rows = "/".join(f"{x:.0f}" for x in s["rows"])
        print(
            f"{s['name']:31} {p50['tree']:7.2f} {p50['release']:8.2f} {p95['tree']:7.2f} {p95['release']:8.2f} "
            f"{ratios} {rows:>10}  {s['differing']} of {s['questions']}",
            flush=True,
        )
