"""The corpus that LightRAG and pgrag are compared on: documents, what a model finds in them, and questions.

Names, words and topics are those of graphs.py. A chunk is about eight entities and states ten relations among them:
six entities of one topic, which neighbouring chunks share, and two of all, drawn by Zipf's law, so that one of them,
the hub, stands in a fifth of all chunks. Equal sizes give equal corpora.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from graphs import CHUNKS_PER_DOCUMENT, FACTS_PER_CHUNK, Graph

from peers.lightrag_models import PASSAGE
from peers.worker import write_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

OF_A_TOPIC, OF_ALL = 6, 2  # entities of a chunk
LEAST_ENTITIES = 1000
KEYWORDS = slice(2, 4)  # words of a fact after its first name: those of its topic


def write_corpus(directory: Path, chunks: int, questions: int) -> list[str]:
    """Writes corpus.jsonl and questions.jsonl (lightrag_models.py); the uris of the documents in their order."""
    graph = Graph(max(LEAST_ENTITIES, 4 * chunks))
    names, random = graph.names(), np.random.default_rng([3, chunks])
    graph.pairs = np.concatenate(list(_pairs(graph, random)))
    graph.fact_relation = np.arange(graph.facts)
    graph.named = np.full(graph.facts, -1)
    passages = [
        _passage(number, facts, text, names, graph.pairs[number * FACTS_PER_CHUNK :])
        for number, (facts, text) in zip(range(chunks), graph.texts(names), strict=False)
    ]
    documents = [
        {"uri": f"document-{start:05}.txt", "chunks": passages[start : start + CHUNKS_PER_DOCUMENT]}
        for start in range(0, chunks, CHUNKS_PER_DOCUMENT)
    ]
    write_lines(directory / "corpus.jsonl", documents)
    stated = [relation for passage in passages for relation in passage["relations"]]
    chosen = random.choice(len(stated), questions, replace=len(stated) < questions)
    write_lines(directory / "questions.jsonl", (_question(stated[number]) for number in chosen))
    return [str(document["uri"]) for document in documents]


def _pairs(graph: Graph, random: np.random.Generator) -> Iterator[Integers]:
    """(FACTS_PER_CHUNK, 2) pairs of entities a chunk, none twice."""
    members = [np.flatnonzero(graph.topic == topic) for topic in range(graph.topics)]
    shares = 1 / (np.arange(graph.entities) + 1.0)
    shares /= shares.sum()
    first, second = np.triu_indices(OF_A_TOPIC + OF_ALL, 1)
    for chunk in range(graph.chunks):
        if chunk % CHUNKS_PER_DOCUMENT == 0:
            topic = members[random.integers(graph.topics)]
        everywhere = random.choice(graph.entities, OF_ALL, replace=False, p=shares)
        beside = np.setdiff1d(topic, everywhere)
        weights = 1 / (np.arange(len(beside)) + 10.0)
        chosen = np.append(everywhere, random.choice(beside, OF_A_TOPIC, replace=False, p=weights / weights.sum()))
        stated = random.choice(len(first), FACTS_PER_CHUNK, replace=False)
        yield np.sort(np.stack([chosen[first[stated]], chosen[second[stated]]], axis=1), axis=1)


def _passage(number: int, facts: list[str], text: str, names: list[str], pairs: Integers) -> dict[str, Any]:
    """A chunk with what a model finds in it: an entity is described by the first fact about it."""
    entities: dict[str, str] = {}
    relations = []
    for fact, pair in zip(facts, pairs[:FACTS_PER_CHUNK].tolist(), strict=True):
        source, target = (names[entity] for entity in pair)
        for name in (source, target):
            entities.setdefault(name, f"{name} is what passage {number} says: {fact}.")
        keywords = fact.removeprefix(source).split()[KEYWORDS]
        relations.append([source, target, keywords, f"{fact}."])
    return {
        "number": number,
        "text": f"{PASSAGE.format(number)} {text}",
        "entities": list(entities.items()),
        "relations": relations,
    }


def _question(relation: list[Any]) -> dict[str, Any]:
    source, target, keywords, _ = relation
    question = f"How does {source} hang together with {target} in {' and '.join(keywords)}?"
    return {"question": question, "low": [source, target], "high": keywords}
