"""LightRAG's side of the comparison; runs in LightRAG's own environment (environment.py), never in pgrag's.

    python -I lightrag_quality.py plan DIRECTORY    the graph as LightRAG names it, and the texts it will embed
    python -I lightrag_quality.py run DIRECTORY     inserts the graph and asks every question in each of MODES

DIRECTORY is the exchange with pgrag's side (exchange.py), which alone embeds anything:

    chunks.jsonl     a chunk a line: its text                                        (given)
    entities.jsonl   {name, type, description, sources}: places of chunks            (given)
    relations.jsonl  {source, target, keywords, description, weight, sources}        (given)
    questions.jsonl  {question, low, high}                                           (given)
    graph.json, passages.jsonl          what `plan` makes of them: the custom KG, texts to embed as passages
    passages.npy                        their vectors, a row a line                  (given before `run`)
    queries.jsonl, queries.npy          texts of questions and keywords and their vectors (given before `run`)
    rankings.json    {modes: {mode: {rankings: places of chunks, ms}}, counts}       (made by `run`)

A text without a vector ends the run: nothing is guessed, and no language model is called.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from lightrag import LightRAG, QueryParam
from lightrag.constants import GRAPH_FIELD_SEP
from lightrag.utils import (
    EmbeddingFunc,
    apply_source_ids_limit,
    compute_mdhash_id,
    normalize_entity_name,
    sanitize_text_for_encoding,
)

sys.path.append(str(Path(__file__).resolve().parents[1]))

from peers.worker import read_lines, write_lines

MODES = ("mix",)  # any of naive, local, global, hybrid, mix
TOP_K = 40
CHUNK_TOP_K = 20


def plan(directory: Path) -> None:
    """Writes graph.json and passages.jsonl. What LightRAG would refuse or merge is refused or merged, and counted."""
    chunks = [sanitize_text_for_encoding(text) for text in read_lines(directory / "chunks.jsonl")]
    counts = dict.fromkeys(("chunks", "entities", "relations", "without_name", "merged", "loops"), 0)
    entities: dict[str, dict[str, Any]] = {}
    for row in read_lines(directory / "entities.jsonl"):
        if not (name := normalize_entity_name(row["name"])):
            counts["without_name"] += 1
            continue
        description = sanitize_text_for_encoding(row["description"])
        entity = {"type": row["type"] or "UNKNOWN", "description": description, "sources": row["sources"]}
        if known := entities.get(name):
            counts["merged"] += 1
            entity = _merged(known, entity)
        entities[name] = entity
    relations: dict[tuple[str, str], dict[str, Any]] = {}
    for row in read_lines(directory / "relations.jsonl"):
        ends = sorted(normalize_entity_name(row[end]) for end in ("source", "target"))
        if not ends[0] or ends[0] == ends[1]:
            counts["loops"] += 1
            continue
        relation = {
            "keywords": {k for k in (sanitize_text_for_encoding(k) for k in row["keywords"]) if k},
            "description": sanitize_text_for_encoding(row["description"]),
            "weight": float(row["weight"]),
            "sources": row["sources"],
        }
        pair = (ends[0], ends[1])
        if known := relations.get(pair):
            counts["merged"] += 1
            relation["keywords"] |= known["keywords"]
            relation["weight"] += known["weight"]
            relation = _merged(known, relation)
        relations[pair] = relation
    counts |= {"chunks": len(set(chunks)), "entities": len(entities), "relations": len(relations)}
    rows = [
        {"source": a, "target": b, **r, "keywords": ", ".join(sorted(r["keywords"]))} for (a, b), r in relations.items()
    ]
    texts = [
        *chunks,
        *(f"{name}\n{e['description']}" for name, e in entities.items()),
        *(f"{r['keywords']}\t{r['source']}\n{r['target']}\n{r['description']}" for r in rows),
    ]
    graph = {"chunks": chunks, "entities": entities, "relations": rows, "counts": counts}
    (directory / "graph.json").write_text(json.dumps(graph), "utf-8")
    write_lines(directory / "passages.jsonl", dict.fromkeys(texts))


def _merged(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """As LightRAG merges two of one name: descriptions joined, all sources."""
    descriptions = dict.fromkeys(d for d in (known["description"], new["description"]) if d)
    sources = list(dict.fromkeys((*known["sources"], *new["sources"])))
    return {**new, "description": GRAPH_FIELD_SEP.join(descriptions), "sources": sources}


class Models:
    """Stand-ins for LightRAG's models: vectors are looked up, by text and side, and nothing is ever generated.

    LightRAG catches some errors of its models and goes on without: what was refused is kept in `refused`.
    """

    def __init__(self, directory: Path) -> None:
        self._tables = {side: _read_table(directory, name) for side, name in SIDES.items()}
        self.dimension = next(iter(self._tables["document"].values())).shape[0]
        self.refused: list[str] = []

    async def embed(self, texts: list[str], context: str = "document", **_: Any) -> np.ndarray:
        """(len(texts), dimension) of texts that LightRAG stores (`document`) or asks (`query`)."""
        table = self._tables[context]
        if missing := [text for text in texts if text not in table]:
            self.refused += [f"no vector of the {context} text {text[:200]!r}" for text in missing]
            raise LookupError(self.refused[-1])
        return np.stack([table[text] for text in texts])

    async def complete(self, *_: Any, **__: Any) -> str:
        """Refuses."""
        self.refused.append("it called a language model")
        raise LookupError(self.refused[-1])

    def check(self) -> None:
        """Exits if anything was refused."""
        if self.refused:
            sys.exit(f"LightRAG cannot run: {self.refused[0]} ({len(self.refused)} such)")


SIDES = {"document": "passages", "query": "queries"}


async def run(directory: Path) -> None:
    """Writes rankings.json."""
    graph = json.loads((directory / "graph.json").read_text("utf-8"))
    questions = read_lines(directory / "questions.jsonl")
    models = Models(directory)
    with tempfile.TemporaryDirectory(dir=directory, prefix="lightrag-") as storage:
        rag = LightRAG(
            working_dir=storage,
            llm_model_func=models.complete,
            llm_model_name="none",
            enable_llm_cache=False,
            embedding_func=EmbeddingFunc(embedding_dim=models.dimension, func=models.embed, supports_asymmetric=True),
        )
        await rag.initialize_storages()
        try:
            started = time.perf_counter()
            places = await _insert(rag, graph)
            seconds = time.perf_counter() - started
            modes = {mode: await _ask(rag, models, questions, places, mode) for mode in MODES}
        finally:
            models.check()  # it says why, whatever LightRAG made of it
        await rag.finalize_storages()
    counts = graph["counts"] | {"insert_seconds": round(seconds, 1)}
    (directory / "rankings.json").write_text(json.dumps({"modes": modes, "counts": counts}), "utf-8")


async def _insert(rag: LightRAG, graph: dict[str, Any]) -> dict[str, list[int]]:
    """Inserts the graph; returns the places of the chunks that each chunk id of LightRAG stands for (equal texts).

    A custom KG has one source for each object. The others are put back afterwards, as many as LightRAG keeps.
    """
    ids = [compute_mdhash_id(text, prefix="chunk-") for text in graph["chunks"]]
    first = {chunk_id: str(place) for place, chunk_id in reversed(list(enumerate(ids)))}
    entities, relations = graph["entities"], graph["relations"]
    await rag.ainsert_custom_kg(
        {
            "chunks": [
                {"content": graph["chunks"][int(place)], "source_id": place, "file_path": f"passage-{place}"}
                for place in first.values()
            ],
            "entities": [
                {
                    "entity_name": name,
                    "entity_type": entity["type"],
                    "description": entity["description"],
                    "source_id": _alias(entity, ids, first),
                }
                for name, entity in entities.items()
            ],
            "relationships": [
                {
                    "src_id": relation["source"],
                    "tgt_id": relation["target"],
                    "keywords": relation["keywords"],
                    "description": relation["description"],
                    "weight": max(1.0, relation["weight"]),
                    "source_id": _alias(relation, ids, first),
                }
                for relation in relations
            ],
        }
    )
    storage, method = rag.chunk_entity_relation_graph, rag.source_ids_limit_method
    nodes = await storage.get_nodes_batch(list(entities))
    pairs = [{"src": r["source"], "tgt": r["target"]} for r in relations]
    edges = await storage.get_edges_batch(pairs)
    if len(nodes) != len(entities) or len(edges) != len(relations):
        sys.exit(f"LightRAG kept {len(nodes)} of {len(entities)} entities, {len(edges)} of {len(relations)} relations")
    await storage.upsert_nodes_batch(
        [
            (name, nodes[name] | {"source_id": _sources(entity, ids, rag.max_source_ids_per_entity, method)})
            for name, entity in entities.items()
        ]
    )
    updated = []
    for relation in relations:
        pair = (relation["source"], relation["target"])
        source_id = _sources(relation, ids, rag.max_source_ids_per_relation, method)
        weight = max(relation["weight"], float(source_id.count(GRAPH_FIELD_SEP) + 1))  # LightRAG's floor: its sources
        updated.append((*pair, edges[pair] | {"source_id": source_id, "weight": weight}))
    await storage.upsert_edges_batch(updated)
    await storage.index_done_callback()
    places: dict[str, list[int]] = {chunk_id: [] for chunk_id in first}
    for place, chunk_id in enumerate(ids):
        places[chunk_id].append(place)
    return places


def _alias(item: dict[str, Any], ids: list[str], first: dict[str, str]) -> str:
    return first[ids[item["sources"][0]]] if item["sources"] else ""


def _sources(item: dict[str, Any], ids: list[str], limit: int, method: str) -> str:
    distinct = list(dict.fromkeys(ids[place] for place in item["sources"]))
    return GRAPH_FIELD_SEP.join(apply_source_ids_limit(distinct, limit, method))


async def _ask(
    rag: LightRAG, models: Models, questions: list[dict[str, Any]], places: dict[str, list[int]], mode: str
) -> dict[str, Any]:
    """The chunks found for each question, best first, by place, and the milliseconds it took."""
    rankings, times = [], []
    for row in questions:
        param = QueryParam(
            mode=mode,
            top_k=TOP_K,
            chunk_top_k=CHUNK_TOP_K,
            ll_keywords=row["low"],
            hl_keywords=row["high"],
            enable_rerank=False,
        )
        started = time.perf_counter()
        found = await rag.aquery_data(row["question"], param)
        times.append((time.perf_counter() - started) * 1000)
        models.check()
        chunks = (found.get("data") or {}).get("chunks") or []
        rankings.append([place for chunk in chunks for place in places[chunk["chunk_id"]]])
    return {"rankings": rankings, "ms": times}


def _read_table(directory: Path, name: str) -> dict[str, np.ndarray]:
    texts, vectors = read_lines(directory / f"{name}.jsonl"), np.load(directory / f"{name}.npy")
    if len(texts) != len(vectors):
        sys.exit(f"{name}.npy has {len(vectors)} rows for {len(texts)} texts")
    return dict(zip(texts, vectors, strict=True))


def main() -> None:
    """See the module's docstring."""
    logging.disable(logging.CRITICAL)
    step, directory = sys.argv[1], Path(sys.argv[2]).resolve()
    if step == "plan":
        plan(directory)
    else:
        asyncio.run(run(directory))


if __name__ == "__main__":
    main()
