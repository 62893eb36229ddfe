"""pgrag beside post-graph-rag 1.16.0 (PyPI): the same corpus, extraction, vectors, keywords, questions and server.

    python benchmarks/peers/post_graph_rag.py [--chunks N] [--questions N] [--peers DIRECTORY] [--json] [--goals]

The peer runs in an environment of its own, made once with pip (see environment.py); both systems are processes of their
own, on one PostgreSQL that the command starts and removes, each in its own database. The corpus is made by graphs.py:
documents of four chunks, ten triples a chunk, a hub that four percent of them meet. Nothing is generated: extraction,
keywords and vectors (the sum of the words') are given to both at once, and the time in them is taken off. Documents go
in by tenths and questions are asked by tens, each system in turn; what is first asked is not measured. The server does
not wait for its disk (fsync is off), in favour of the peer's many small transactions.

Both make HNSW indexes before the first row. pgrag runs with its defaults. The peer's queries run with its defaults (5
seeds, 2 hops, no limit of tokens) and with pgrag's sizes (40 seeds, 1 hop, pgrag's budgets); both assemble the text of
the context. "found" is the share of questions whose passage is in it whole, "requests" how often the client asked the
server and waited for the answer, counted by a proxy in a run over more documents that is not timed.

What the peer's API does not allow, and what differs:

  - index_text() is told one document at a time: its writes must not run concurrently. pgrag is told a tenth at a time.
  - Extraction comes by its extraction_fn, which stands in for the model and its gleaning; it merges descriptions by
    keeping the longest, so that neither system has summaries to ask for: pgrag has no LLM here and composes them.
  - A triple has no place for keywords: its predicate is pgrag's keyword of the fact. Pairs always have the same one,
    so that both have one relation a pair. pgrag keeps and embeds each fact besides; the peer, a relation's last text.
  - One top_k is the number of entities and of passages; 200 relations are sought by vector and 50 by words whatever it
    is. High-level keywords are not used to search in its mode mix. It has no ranking of passages but nearness, then
    the number of seeds that they mention; pgrag's default ranks them by the graph and words too.
  - It has no call to delete a document: delete_document_chunks() of its store is what re-indexing uses. Entities and
    relations are marked dormant, as it documents, and tables of audit keep the old rows. "Words" are those of the
    deleted documents that no other holds, looked for in every column of every table but vectors.
  - Memory is of the client processes, without PostgreSQL; pgrag's has loaded alembic to make the workspace.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

if not __package__:  # run as a script: the directory to import from is benchmarks, not that of the peers
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from goals import Goal, show_goals
from graphs import CHUNKS_PER_DOCUMENT, FACTS_PER_CHUNK
from server import own_server

from peers.environment import Peer, PeerError, peer_python
from peers.post_graph_rag_measure import BLOCK, COUNTED, Asked, Corpus, Figures, make_corpus, run
from pgrag import PgragError

PEER = Peer(
    "post-graph-rag",
    "1.16.0",
    ("post-graph-rag==1.16.0", "post-graph==1.10.1", "numpy>=1.26,<3"),
    "import post_graph_rag, numpy",
)


def goals(figures: Mapping[str, Figures], asked: Sequence[Asked]) -> list[Goal]:
    """pgrag must be no slower."""
    p50 = {(a.side, a.name): a.percentile(50) for a in asked}
    ours, theirs = (p50[side, "mix, defaults"] for side in ("pgrag", "peer"))
    same = p50["pgrag", "mix, vector, no words"] / p50["peer", "mix, sizes as pgrag"]
    naive = p50["pgrag", "naive"] / p50["peer", "naive, sizes as pgrag"]
    ingest = sum(figures["pgrag"].blocks) / sum(figures["peer"].blocks)
    return [
        Goal("query p50, mix, defaults of both / peer", ours / theirs, 1),
        Goal("query p50, mix, vector ranking, same sizes / peer", same, 1),
        Goal("query p50, naive, same sizes / peer", naive, 1),
        Goal("ingest net of models / peer", ingest, 1),
    ]


def show(corpus: Corpus, figures: Mapping[str, Figures], asked: Sequence[Asked]) -> None:
    """Both systems as tables."""
    chunks = corpus.chunks
    print(
        f"{chunks:,} chunks, {chunks * FACTS_PER_CHUNK:,} triples, {len(corpus.questions)} questions; "
        f"pgrag beside {PEER.name} {PEER.release}\n\n{'':44}{'pgrag':>10}{PEER.name:>16}{'ratio':>8}"
    )

    def line(text: str, figure: Callable[[Figures], float], digits: int = 2) -> None:
        ours, theirs = figure(figures["pgrag"]), figure(figures["peer"])
        ratio = f"{ours / theirs:.2f}" if theirs else "-"
        print(f"{text:44}{ours:10,.{digits}f}{theirs:16,.{digits}f}{ratio:>8}")

    line("ingest net of models, ms a chunk", lambda f: 1000 * sum(f.blocks) / chunks)
    line("  its last tenth / its first", lambda f: f.blocks[-1] / f.blocks[0])
    line(f"requests a chunk, {COUNTED * CHUNKS_PER_DOCUMENT} in a call", lambda f: f.ingest_requests)
    line("entities", lambda f: f.entities, 0)
    line("relations", lambda f: f.relations, 0)
    line("texts embedded a chunk", lambda f: f.embedded / chunks)
    line("texts embedded / distinct ones", lambda f: f.embedded / f.distinct)
    line("KB of tables and indexes a chunk", lambda f: 1024 * f.megabytes / chunks)
    line("memory of the client, MB: before", lambda f: f.memory_mb["idle"], 0)
    line("  at most, after ingest", lambda f: f.memory_mb["ingest"], 0)
    line("  at most, after queries", lambda f: f.memory_mb["queries"], 0)
    line("deleting a document, ms, median", lambda f: float(np.median(f.delete_ms)))
    line("  with making anew what it had a part in", lambda f: float(np.median(np.add(f.delete_ms, f.refresh_ms))))
    line("words that only those deleted had: before", lambda f: f.words_before, 0)
    line("  after", lambda f: f.words_after, 0)
    for side, f in figures.items():
        if f.remain_in:
            print(f"  left by {side} in {', '.join(f'{table} {n}' for table, n in f.remain_in.items())}")
    print(f"\n{'queries':8}{'':24}{'p50 ms':>8}{'p95 ms':>8}{'requests':>10}{'characters':>12}{'found':>7}")
    for a in asked:
        print(
            f"{a.side:8}{a.name:24}{a.percentile(50):8.2f}{a.percentile(95):8.2f}{a.requests:10.1f}"
            f"{np.mean(a.characters):12,.0f}{a.found / len(a.ms):7.2f}"
        )


def main() -> int:
    """Exit code 1 with --goals when one is missed, 2 when the peer cannot be installed or fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=300, help="chunks to ingest and time; a tenth more is not timed")
    parser.add_argument("--questions", type=int, default=40, help="questions a variant")
    parser.add_argument("--peers", type=Path, help="directory of the peer's environment")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--goals", action="store_true", help="exit 1 when a goal is missed")
    options = parser.parse_args()
    if options.chunks < 240 or options.questions < BLOCK:
        parser.error("at least --chunks 240 and --questions 10: tenths and percentiles of fewer say nothing")
    corpus = make_corpus(options.chunks, options.questions)
    try:
        python = peer_python(PEER, options.peers)
        with tempfile.TemporaryDirectory(prefix="pgrag-peer-") as name, own_server(None) as dsn:
            corpus.write(Path(name))
            figures, asked = run(corpus, dsn, python, Path(name))
    except (PeerError, PgragError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = goals(figures, asked)
    if options.json:
        listed = [{**asdict(goal), "met": goal.met} for goal in found]
        result = {
            "chunks": corpus.chunks,
            "systems": {side: asdict(f) for side, f in figures.items()},
            "queries": [{**asdict(a), "p50_ms": a.percentile(50), "p95_ms": a.percentile(95)} for a in asked],
            "goals": listed,
        }
        print(json.dumps(result, indent=2))
    else:
        show(corpus, figures, asked)
        show_goals(found)
    return 1 if options.goals and any(goal.met is False for goal in found) else 0


if __name__ == "__main__":
    sys.exit(main())
