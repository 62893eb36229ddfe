"""pgrag's side of the comparison with LightRAG: a workspace goes out as files, rankings come back.

LightRAG gets the chunks, entities and relations of the workspace with all their sources, its own texts of them with
vectors of the same embedder, and the same keywords of each question. Two things are decided in its favour: an entity
without a description (of triples, or found without an LLM) is kept, by its name and the facts of all its relations,
where LightRAG itself keeps none without a relation, and the description of the first; and an empty list of keywords is
replaced by the question, as in pgrag, where LightRAG leaves that level out.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from workspace import Entity, Passages, Relation, check_complete, connect, read_entities, read_passages, read_relations

from peers.environment import lightrag_python, run_peer
from peers.worker import read_lines, write_lines
from pgrag.embedding.check import embed_checked, embed_distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgrag import PgRAG
    from pgrag.types import Embedder, Keywords

    Floats = NDArray[np.float32]

SCRIPT = Path(__file__).with_name("lightrag_quality.py")
DESCRIPTION_CHARACTERS = 1600  # of facts that stand for a description: what a model of 512 tokens reads
BATCH = 256
_SPACE = re.compile("[ \t\n\r]+")  # to multilingual-e5 they are one and the same


@dataclass(frozen=True, slots=True)
class PeerRankings:
    """Of each mode the uris found for each question, best first, and the milliseconds of each search.

    `counts`: chunks, entities and relations as LightRAG has them, what it merged or refused, texts that were embedded
    for it and those whose vector the workspace had, questions that got a list of keywords from their own text.
    """

    rankings: Mapping[str, list[list[str]]]
    milliseconds: Mapping[str, list[float]]
    counts: Mapping[str, float]

    def p50(self, mode: str) -> float:
        """The median time of a search in ms, without the time of the embedder."""
        return float(np.median(self.milliseconds[mode]))


async def lightrag_rankings(
    rag: PgRAG,
    questions: Sequence[str],
    keywords: Sequence[Keywords],
    embedder: Embedder,
    workdir: Path | None = None,
    peers: Path | None = None,
) -> PeerRankings:
    """What LightRAG finds in the workspace of the open `rag`, in each of the modes asked for there, for each question.

    `keywords` are those of the questions, one by one. `embedder` is the workspace's own; one that remembers questions
    saves their time. LightRAG's environment is kept under `peers` (see environment.py), and the vectors of its texts
    under `workdir`, if one is given: the next run with the same embedder needs no new ones. All else is removed.

    Raises PeerError if LightRAG cannot be installed or fails, also on a text that it has no vector of.
    """
    python = await asyncio.to_thread(lightrag_python, peers)
    if workdir:
        await asyncio.to_thread(workdir.mkdir, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workdir, prefix="lightrag-exchange-") as name:
        directory = Path(name)
        passages, known = await asyncio.to_thread(_export, rag, directory)
        asked = [{"question": q, **_levels(q, k)} for q, k in zip(questions, keywords, strict=True)]
        write_lines(directory / "questions.jsonl", asked)
        await asyncio.to_thread(run_peer, python, SCRIPT, ["plan", name], directory)
        stored = workdir / f"{re.sub(r'[^A-Za-z0-9.]+', '-', embedder.model)}.npz" if workdir else None
        new = await _write_vectors(directory, known, asked, embedder, stored)
        await asyncio.to_thread(run_peer, python, SCRIPT, ["run", name], directory)
        found = json.loads((directory / "rankings.json").read_text("utf-8"))
    own = sum(not (k.low and k.high) for k in keywords)
    counts = found["counts"] | {"embedded": new, "known": len(known), "question_as_keywords": own}
    return PeerRankings(
        {m: [_uris(passages, places) for places in f["rankings"]] for m, f in found["modes"].items()},
        {m: f["ms"] for m, f in found["modes"].items()},
        counts,
    )


def _levels(question: str, keywords: Keywords) -> dict[str, list[str]]:
    low, high = ([k for k in map(str.strip, level) if k] for level in (keywords.low, keywords.high))
    return {"low": low or [question], "high": high or [question]}


def _export(rag: PgRAG, directory: Path) -> tuple[Passages, dict[str, Floats]]:
    """Writes what LightRAG is to hold; returns the passages and the vectors of the workspace by text."""
    with connect(rag.settings) as connection:
        check_complete(connection)
        passages = read_passages(connection)
        entities, relations = read_entities(connection), read_relations(connection)
    place = {chunk_id: i for i, chunk_id in enumerate(passages.ids)}
    write_lines(directory / "chunks.jsonl", passages.texts)
    write_lines(directory / "entities.jsonl", (_entity_row(e, place) for e in entities))
    write_lines(directory / "relations.jsonl", (_relation_row(r, place) for r in relations))
    known = {_folded(text): vector for text, vector in zip(passages.texts, passages.vectors, strict=True)}
    known |= {_folded(f"{e.name}\n{e.description}"): e.vector for e in entities}
    for r in relations:
        known[_folded("\t".join((", ".join(r.keywords), r.source, r.target, r.description)))] = r.vector
    return passages, known


def _entity_row(entity: Entity, place: Mapping[int, int]) -> dict[str, Any]:
    description = entity.description or _shortened(entity.facts)
    sources = [place[chunk_id] for chunk_id in entity.sources]
    return {"name": entity.name, "type": entity.type, "description": description, "sources": sources}


def _relation_row(relation: Relation, place: Mapping[int, int]) -> dict[str, Any]:
    return {
        "source": relation.source,
        "target": relation.target,
        "keywords": relation.keywords,
        "description": relation.description,
        "weight": relation.weight,
        "sources": [place[chunk_id] for chunk_id in relation.sources],
    }


def _shortened(facts: Sequence[str]) -> str:
    """The distinct facts joined as LightRAG joins descriptions, cut to a length that the embedder reads."""
    return "<SEP>".join(dict.fromkeys(facts))[:DESCRIPTION_CHARACTERS]


async def _write_vectors(
    directory: Path,
    known: Mapping[str, Floats],
    asked: Sequence[Mapping[str, Any]],
    embedder: Embedder,
    stored: Path | None,
) -> int:
    """Vectors of all texts that LightRAG will embed; returns how many the workspace did not have."""
    texts: list[str] = read_lines(directory / "passages.jsonl")
    lacking = [text for text in texts if _folded(text) not in known]
    made = _load_vectors(stored)
    if new := [text for text in lacking if text not in made]:
        made |= zip(new, await embed_distinct(embedder, new, BATCH), strict=True)
        if stored:
            np.savez(stored, texts=json.dumps(list(made)), vectors=np.stack(list(made.values())))
    rows = [known[folded] if (folded := _folded(text)) in known else made[text] for text in texts]
    np.save(directory / "passages.npy", np.stack(rows))
    queries = [text for row in asked for text in (row["question"], ", ".join(row["low"]), ", ".join(row["high"]))]
    vectors = dict(zip(queries, await embed_checked(embedder, queries, "query"), strict=True))
    vectors |= {text.strip(): vector for text, vector in vectors.items()}  # LightRAG strips questions
    write_lines(directory / "queries.jsonl", vectors)
    np.save(directory / "queries.npy", np.stack(list(vectors.values())))
    return len(lacking)


def _load_vectors(stored: Path | None) -> dict[str, Floats]:
    if stored is None or not stored.exists():
        return {}
    with np.load(stored) as file:
        return dict(zip(json.loads(str(file["texts"])), file["vectors"], strict=True))


def _folded(text: str) -> str:
    return _SPACE.sub(" ", text).strip()


def _uris(passages: Passages, places: Iterable[int]) -> list[str]:
    return list(dict.fromkeys(passages.uris[place] for place in places))
