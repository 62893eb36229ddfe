"""LightRAG and pgrag on the same corpus: what it costs to take documents in, to search them, and to delete one.

    python benchmarks/peers/lightrag.py [--chunks 500] [--questions 60] [--rounds 2] [--deletes 3] [--peers DIRECTORY]
                                        [--without-files] [--json] [--goals]

Compares LightRAG 1.5.7, in an environment of its own that is made once and kept under --peers, over its default files
backend and over PostgreSQL with plain tables, with pgrag. All get the same documents, chunks, results of extraction,
vectors, questions and keywords, which the benchmark makes (lightrag_corpus.py), and answer with the text of the
context. Models answer at once, and the time in them is taken off: what is left is each system's own. Each side is a
process; both databases are of one embedded PostgreSQL, reached over its socket and removed at the end.

Documents go in by tenths, all sides in turn, one call a tenth. Then each question is asked once unmeasured, and in
blocks of ten, all sides in turn. Columns: LightRAG over files and over PostgreSQL; LightRAG over PostgreSQL with all
documents in one call; pgrag; pgrag without HNSW indexes; pgrag with all documents in one call; the same without HNSW
indexes, which are made afterwards and counted in its time. Those in one call and without indexes are only filled.
The files backend takes most of the time, more with every chunk: --without-files leaves it out. A vector costs more to
insert as its HNSW index grows from nothing: hence the growth from the first tenth to the last with live indexes.

Defaults are left on all sides: LightRAG's cache of its LLM, gleaning, batches and concurrency, mode mix, top_k 40,
chunk_top_k 20; pgrag's likewise, with the words and the walk over the graph in its ranking, which LightRAG has not; and
once more with passages in LightRAG's order.
What cannot be the same:
- Each side's LLM answers in its own default format, lines for LightRAG and JSON for pgrag. LiteLLM, by which pgrag asks
  models, is left out as LightRAG's client libraries are; prompts, caches and the reading of answers are not.
- pgrag embeds facts too, so that it has more vectors; LightRAG stores 32-bit floats and pgrag 16-bit ones.
- No reranker, which neither has without being given one. LightRAG's log is off, in its favour; so is fsync, which would
  make its many small transactions wait.
- Deleting: pgrag's figure holds the refresh that makes anew what the document had a part in; LightRAG's deletion does
  that itself.
- Memory is that of the client process, without PostgreSQL. Sizes of databases are without what an empty one takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from goals import Goal, show_goals
from psycopg.conninfo import conninfo_to_dict

from peers.environment import PeerError, Process, lightrag_python, peer_variables, process
from peers.lightrag_corpus import write_corpus
from peers.lightrag_databases import Databases, Sent, counting_server

HERE = Path(__file__).resolve().parent
FILES, POSTGRES, POSTGRES_ONCE = "lightrag files", "lightrag pg", "lightrag one call"
LIVE, BARE, ONCE, FIRST = "pgrag", "pgrag no index", "pgrag one call", "pgrag first load"
SIDES = (FILES, POSTGRES, POSTGRES_ONCE, LIVE, BARE, ONCE, FIRST)
FILLED = (POSTGRES_ONCE, BARE, ONCE, FIRST)
DATABASES = {
    POSTGRES: "lightrag",
    POSTGRES_ONCE: "lightrag_once",
    LIVE: "pgrag_live",
    BARE: "pgrag_bare",
    ONCE: "pgrag_once",
    FIRST: "pgrag_first",
}
TENTHS, BLOCK = 10, 10
STRETCH = 30

Results = dict[str, dict[str, Any]]
Told = tuple[dict[str, Any], Sent]


class Comparison:
    """The sides, open, and what was measured of each by the name of the side."""

    def __init__(self, processes: dict[str, Process], databases: Databases, uris: Sequence[str], quiet: bool) -> None:
        self._processes = processes
        self._databases = databases
        self._uris = uris
        self._quiet = quiet
        self._asked = [name for name in processes if name not in FILLED]
        self.results: Results = {name: {} for name in processes}

    def ingest(self, chunks: int) -> None:
        """All documents, by tenths, with and without HNSW indexes; and in one call, before and after they are made."""
        tenths = [[str(uri) for uri in tenth] for tenth in np.array_split(self._uris, TENTHS)]
        told: dict[str, list[Told]] = {name: [] for name in self._processes}
        self._databases.without_hnsw(DATABASES[BARE])
        commands = self._databases.without_hnsw(DATABASES[FIRST])
        by_tenths = [*self._asked, BARE]
        for number, tenth in enumerate(tenths, 1):
            self._say(f"ingest {number}/{TENTHS}")
            for name in _turned(by_tenths, number):
                told[name].append(self._do(name, "ingest", uris=tenth))
        self._say("ingest in one call, and HNSW indexes")
        for name in (POSTGRES_ONCE, ONCE, FIRST):
            told[name] = [self._do(name, "ingest", uris=list(self._uris))]
        built, building = self._databases.index(DATABASES[FIRST], commands)
        for name, reports in told.items():
            answers, sents = zip(*reports, strict=True)
            calls: Counter[str] = Counter()
            for one in answers:
                calls.update(one["calls"])
            self.results[name] |= {
                "ingest_ms": sum(a["net"] for a in answers) * 1000 / chunks,
                "ingest_client_ms": sum(a["processor"] for a in answers) * 1000 / chunks,
                "ingest_server_ms": sum(s.processor for s in sents) * 1000 / chunks,
                "embedded": sum(a["embedded"] for a in answers),
                "embedded_over_distinct": sum(a["embedded"] for a in answers) / sum(a["distinct"] for a in answers),
                "llm_calls": calls,
                "ingest_statements": sum(s.statements for s in sents) / chunks if name in DATABASES else None,
            }
            if len(reports) == TENTHS:
                chunks_of = [len(tenth) * chunks / len(self._uris) for tenth in tenths]
                ms = [a["net"] * 1000 / n for a, n in zip(answers, chunks_of, strict=True)]
                worked = [(a["processor"] + s.processor) / n for (a, s), n in zip(reports, chunks_of, strict=True)]
                self.results[name] |= {
                    "tenths_ms": ms,
                    "growth": ms[-1] / ms[0],
                    "growth_processor": worked[-1] / worked[0],
                }
        first = self.results[FIRST]
        first["index_ms"] = built * 1000 / chunks
        first["ingest_ms"] += first["index_ms"]
        first["ingest_server_ms"] += building.processor * 1000 / chunks

    def measure(self) -> None:
        """What each holds, and the memory its process has taken."""
        for name, side in self._processes.items():
            self.results[name] |= side.do("measure")
            if name in DATABASES:
                self._databases.tidy(DATABASES[name])
                self.results[name]["megabytes"] = self._databases.megabytes(DATABASES[name])

    def ask(self, questions: int, rounds: int) -> None:
        """All questions, of all sides but those that are only filled."""
        told: dict[str, list[Told]] = {name: [] for name in self._asked}
        plain: list[float] = []
        for number in range(rounds + 1):
            self._say(f"questions, round {number} of {rounds}")
            for turn, start in enumerate(range(0, questions, BLOCK)):
                block = list(range(start, min(start + BLOCK, questions)))
                for name in _turned(self._asked, turn):
                    report = self._do(name, "ask", numbers=block)
                    if number:
                        told[name].append(report)
                answer, _ = self._do(LIVE, "ask", numbers=block, plain=True)
                if number:
                    plain += [question["net"] * 1000 for question in answer["questions"]]
        self.results[LIVE]["p50_plain_ms"] = _median(plain)
        for name, reports in told.items():
            asked = [question for answer, _ in reports for question in answer["questions"]]
            sents = [sent for _, sent in reports]
            p50, p95 = np.percentile([question["net"] * 1000 for question in asked], (50, 95)).tolist()
            statements, resets = (sum(s.statements for s in sents), sum(s.resets for s in sents))
            self.results[name] |= {
                "p50_ms": p50,
                "p95_ms": p95,
                "characters": _median([question["characters"] for question in asked]),
                "query_client_ms": sum(question["processor"] for question in asked) * 1000 / len(asked),
                "query_server_ms": sum(s.processor for s in sents) * 1000 / len(asked),
                "query_statements": statements / len(asked) if name in DATABASES else None,
                "query_resets": resets / len(asked) if name in DATABASES else None,
            }
        self.results[LIVE]["wire"] = self._processes[LIVE].do("wire")

    def delete(self, deletes: int) -> None:
        """Documents from all parts of the corpus."""
        told: dict[str, list[Told]] = {name: [] for name in self._asked}
        for turn, place in enumerate(np.linspace(0, len(self._uris) - 1, deletes + 2)[1:-1].astype(int).tolist()):
            self._say(f"delete {turn + 1}/{deletes}")
            for name in _turned(self._asked, turn):
                told[name].append(self._do(name, "delete", uri=self._uris[place]))
        for name, reports in told.items():
            answers = [answer for answer, _ in reports]
            self.results[name] |= {
                "delete_seconds": _median([a["net"] for a in answers]),
                "delete_llm_calls": _median([sum(a["calls"].values()) for a in answers]),
                "delete_embedded": _median([a["embedded"] for a in answers]),
                "delete_statements": _median([s.statements for _, s in reports]) if name in DATABASES else None,
                "delete_without_refresh": _median([a["gone"] for a in answers]) if name == LIVE else None,
            }

    def _do(self, name: str, command: str, **details: Any) -> Told:
        """The answer of a side, and what was sent to its database meanwhile."""
        database = DATABASES.get(name)
        before = self._databases.sent(database) if database else Sent()
        answer = self._processes[name].do(command, **details)
        return answer, self._databases.sent(database).since(before) if database else Sent()

    def _say(self, what: str) -> None:
        if not self._quiet:
            print(f"{time.strftime('%X')} {what}", file=sys.stderr, flush=True)


def _turned(names: Sequence[str], turn: int) -> list[str]:
    """The names, another first each time."""
    turn %= len(names)
    return [*names[turn:], *names[:turn]]


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


# ---------------------------------------------------------------- the run


def compare(options: argparse.Namespace) -> Results:
    """Everything, by side. Raises PeerError."""
    python = lightrag_python(options.peers)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgrag-peers-")))
        uris = write_corpus(scratch, options.chunks, options.questions)
        databases = stack.enter_context(counting_server())
        dsns = {name: databases.make(database) for name, database in DATABASES.items()}
        lightrag = [str(python), "-I", str(HERE / "lightrag_side.py"), str(scratch)]
        pgrag = [sys.executable, str(HERE / "lightrag_pgrag.py"), str(scratch)]
        commands = {
            FILES: [*lightrag, "files"],
            **{name: [*lightrag, "postgres"] for name in (POSTGRES, POSTGRES_ONCE)},
            **{name: [*pgrag, dsns[name]] for name in (LIVE, BARE, ONCE, FIRST)},
        }
        variables = {name: _variables(dsns[name]) for name in (POSTGRES, POSTGRES_ONCE)}
        processes = {
            name: stack.enter_context(
                process(name, commands[name], peer_variables() | variables.get(name, {}), scratch / f"side-{i}")
            )
            for i, name in enumerate(SIDES)
            if name != FILES or not options.without_files
        }
        for side in processes.values():
            side.do("open")
        comparison = Comparison(processes, databases, uris, options.json)
        comparison.ingest(options.chunks)
        comparison.measure()
        comparison.ask(options.questions, options.rounds)
        comparison.delete(options.deletes)
        for side in processes.values():
            side.do("close")
        return comparison.results


def _variables(dsn: str) -> dict[str, str]:
    """Where LightRAG finds its PostgreSQL; the server knows who asks, but LightRAG will have a password."""
    target = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    return {
        "POSTGRES_HOST": target["host"],
        "POSTGRES_PORT": target.get("port", "5432"),
        "POSTGRES_USER": target["user"],
        "POSTGRES_PASSWORD": "unused",
        "POSTGRES_DATABASE": target["dbname"],
    }


# ---------------------------------------------------------------- goals and table


def goals(results: Results) -> list[Goal]:
    """What pgrag must reach."""
    lightrag, live = results[POSTGRES], results[LIVE]
    one_call, first_load = (results[POSTGRES_ONCE]["ingest_ms"] / results[name]["ingest_ms"] for name in (ONCE, FIRST))
    return [
        Goal("LightRAG on PostgreSQL / pgrag, p50 of a query", lightrag["p50_ms"] / live["p50_ms"], 15, at_most=False),
        Goal("the same, ingest with live HNSW", lightrag["ingest_ms"] / live["ingest_ms"], 2, at_most=False),
        Goal("the same, all documents in one call", one_call, 2, at_most=False),
        Goal("the same, and HNSW indexes made after", first_load, 5, at_most=False),
        Goal("pgrag, last tenth / first tenth, live HNSW", live["growth"], 1.2),
        Goal("the same without HNSW indexes", results[BARE]["growth"], 1.2),
        Goal("pgrag, embedded / distinct texts, one call", results[ONCE]["embedded_over_distinct"], 1.05),
    ]


def by_processor(results: Results) -> dict[str, float]:
    """Goals' figures in processor time, which other work on the machine changes less."""

    def ratio(of: str, lightrag: str, pgrag: str) -> float:
        one, other = (results[name][f"{of}_client_ms"] + results[name][f"{of}_server_ms"] for name in (lightrag, pgrag))
        return float(one / other)

    if not results[POSTGRES]["query_server_ms"]:
        return {}
    return {
        "query": ratio("query", POSTGRES, LIVE),
        "ingest": ratio("ingest", POSTGRES, LIVE),
        "ingest, in one call": ratio("ingest", POSTGRES_ONCE, ONCE),
        "and indexes after": ratio("ingest", POSTGRES_ONCE, FIRST),
        "last / first tenth": float(results[LIVE]["growth_processor"]),
        "without indexes": float(results[BARE]["growth_processor"]),
    }


ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("entities / relations", lambda r: f"{r['entities']:,} / {r['relations']:,}"),
    ("ingest net of models, ms a chunk", lambda r: _number(r["ingest_ms"], 1)),
    ("  of which making HNSW indexes", lambda r: _number(r.get("index_ms"), 1)),
    ("  processor ms: client + server", lambda r: f"{r['ingest_client_ms']:.1f} + {r['ingest_server_ms']:.1f}"),
    ("  first tenth, last tenth", lambda r: f"{r['tenths_ms'][0]:.1f}, {r['tenths_ms'][-1]:.1f}"),
    ("  last / first; of processor time", lambda r: f"{r['growth']:.2f}; {r['growth_processor']:.2f}"),
    ("  statements a chunk", lambda r: _number(r["ingest_statements"], 1)),
    ("texts embedded", lambda r: f"{r['embedded']:,}"),
    ("  over distinct ones of each call", lambda r: _number(r["embedded_over_distinct"], 3)),
    ("  over vectors kept", lambda r: _number(r["embedded"] / r["vectors"], 3)),
    ("LLM: extraction, gleaning, summary", lambda r: _calls(r["llm_calls"])),
    ("query for the context, p50 ms", lambda r: _number(r["p50_ms"], 1)),
    ("  p95 ms", lambda r: _number(r["p95_ms"], 1)),
    ("  p50 ms, passages in LightRAG's order", lambda r: _number(r["p50_plain_ms"], 1)),
    ("  processor ms: client + server", lambda r: f"{r['query_client_ms']:.1f} + {r['query_server_ms']:.1f}"),
    ("  characters of the context", lambda r: _number(r["characters"], 0)),
    ("  statements", lambda r: _number(r["query_statements"], 1)),
    ("  and to reset connections", lambda r: _number(r["query_resets"], 1)),
    ("  requests on the wire; of retrieve()", lambda r: f"{r['wire']['context']}; {r['wire']['retrieve']}"),
    ("stored, MB", lambda r: _number(r["megabytes"], 1)),
    ("memory of the process, MB", lambda r: _number(r["peak_mb"], 0)),
    ("delete a document, seconds", lambda r: _number(r["delete_seconds"], 2)),
    ("  without the refresh", lambda r: _number(r["delete_without_refresh"], 2)),
    ("  LLM calls", lambda r: _number(r["delete_llm_calls"], 0)),
    ("  texts embedded", lambda r: _number(r["delete_embedded"], 0)),
    ("  statements", lambda r: _number(r["delete_statements"], 0)),
)


def show(options: argparse.Namespace, results: Results) -> None:
    """One table."""
    print(
        f"\n{options.chunks:,} chunks, {options.questions} questions asked {options.rounds} times, "
        f"{options.deletes} documents deleted\n"
    )
    print(f"{'':38}" + "".join(f"{name:>18}" for name in results))
    for title, cell in ROWS:
        print(f"{title:38}" + "".join(f"{_cell(cell, results[name]):>18}" for name in results))


def _cell(cell: Callable[[dict[str, Any]], str], result: dict[str, Any]) -> str:
    """What was not measured of a side is a dash."""
    try:
        return cell(result)
    except (KeyError, IndexError, TypeError):
        return "-"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _calls(calls: dict[str, int]) -> str:
    return ", ".join(f"{calls.get(kind, 0):,}" for kind in ("extraction", "gleaning", "summary"))


def main() -> int:
    """Exit code 1 with --goals when one is missed, 2 when LightRAG cannot be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=500, help="chunks of the corpus, four a document")
    parser.add_argument("--questions", type=int, default=60, help="questions; 50 at least say something")
    parser.add_argument("--rounds", type=int, default=2, help="times each question is asked and measured")
    parser.add_argument("--deletes", type=int, default=3, help="documents to delete")
    parser.add_argument("--peers", type=Path, help="where LightRAG's environment is kept; none: the user's cache")
    parser.add_argument("--without-files", action="store_true", help="leave LightRAG's files backend out")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--goals", action="store_true", help="exit 1 when a goal is missed")
    options = parser.parse_args()
    if options.chunks < 40 or options.questions < BLOCK or options.rounds < 1 or options.deletes < 1:
        parser.error(f"at least 40 chunks, {BLOCK} questions, one round and one deletion")
    try:
        results = compare(options)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 2
    found = goals(results)
    if options.json:
        listed = [{**asdict(goal), "met": goal.met} for goal in found]
        print(
            json.dumps(
                {"chunks": options.chunks, "sides": results, "goals": listed, "by_processor": by_processor(results)},
                indent=2,
            )
        )
    else:
        show(options, results)
        show_goals(found)
        query = found[0].figure or 0
        print(f"  the stretch of the first is {STRETCH}: {'met' if query >= STRETCH else 'not met'}")
        told = ", ".join(f"{what} {figure:.2f}" for what, figure in by_processor(results).items())
        print(f"  by processor time: {told or 'not known here'}")
    return 1 if options.goals and any(goal.met is False for goal in found) else 0


if __name__ == "__main__":
    sys.exit(main())
