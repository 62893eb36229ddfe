"""The graph is a function of the documents: not of their order, of who ingested them, nor of what was there between."""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pgrag import Document, PgRAG
from pgrag.text.folding import words
from pgrag.types import Chunk, ExtractedFact, ExtractedMention, Extraction, FactEntity, Role
from tests.support import postgres
from tests.support.models import WordEmbedder
from tests.support.rag import extractor, graph, open_rag, rows

NAMES = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gorse")
TYPES = ("person", "ship", "")
THEMES = ("trade", "debt", "kinship", "war", "letters")
SMALL: dict[str, Any] = {
    "chunk_tokens": 24, "chunk_overlap": 0, "claim_batch": 2, "workers": 2, "refresh_chunks": 5, "refresh_seconds": 0.2,
    "description_fragments": 6, "description_tokens": 60,
}  # fmt: skip
_numbers = itertools.count(1)


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - repeatable, not secret


def told(chunk: Chunk) -> Extraction:
    """What a model might say of a text: the same for the same text, with other spellings, types and strengths."""
    chance = seeded(zlib.crc32(chunk.body.strip().encode()))
    mentions, facts = [], []
    for _ in range(3):
        source, target = (chance.choice((n, n.upper(), n.lower(), f"the {n}")) for n in chance.sample(NAMES, 2))
        for name in (source, target):
            themes = " ".join(chance.choices(THEMES, k=chance.randint(1, 12)))
            mentions.append(ExtractedMention(name, chance.choice(TYPES), f"{name} is known for {themes}."))
        ends = (FactEntity(source, Role.SOURCE), FactEntity(target, Role.TARGET))
        theme = chance.choice(THEMES)
        facts.append(ExtractedFact(f"{source} and {target}: {theme}.", ends, (theme,), chance.choice((0.1, 0.3, 5, 8))))
    return Extraction(tuple(mentions), tuple(facts), (chance.choice(THEMES),))


class PlacedWords(WordEmbedder):
    """As WordEmbedder, but the place of a word counts: another order of the same words is another vector."""

    def vector(self, text: str) -> NDArray[np.float32]:
        return super().vector(" ".join(f"{place}{word}" for place, word in enumerate(words(text))))


def opened(dsn: str) -> PgRAG:
    return open_rag(dsn, embedder=PlacedWords(), extracts=extractor(told), pool_size=3, **SMALL)


def story(n: int) -> str:
    return (
        f"In story {n} of the old book the captain counted {n * 7} sails and {n * 3} gulls over the grey harbour wall."
    )


def texts() -> list[Document]:
    """Twelve documents that share passages, two of them all, some with dates."""
    chance = seeded(5)
    made = []
    for n in range(11):
        body = "\n\n".join(story(chance.randint(0, 20)) for _ in range(3))
        date = datetime(2020 + n % 3, 1, 1, tzinfo=UTC) if n % 2 else None
        made.append(Document(f"doc-{n}", body, labels=(f"l{n % 2}",), published_at=date))
    return [*made, Document("copy", made[0].body)]


@contextmanager
def fresh_database(server: postgres.Postgresql, template: str) -> Iterator[str]:
    name = f"order_{next(_numbers)}"
    postgres.create_database(server.url(), name, template=template)
    try:
        yield server.url(database=name)
    finally:
        postgres.drop_database(server.url(), name)


async def ingest(dsn: str, shares: Sequence[Sequence[Document]]) -> None:
    """Each share by a library of its own, one document at a time, all at once."""

    async def one(share: Sequence[Document]) -> None:
        async with opened(dsn) as rag:
            for document in share:
                report = await rag.ingest([document])
                assert report.failures == ()

    await asyncio.gather(*map(one, shares))
    async with opened(dsn) as rag:
        await rag.refresh()


def whole_graph(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    """Everything but ids, vectors too."""
    queries = {
        "aliases": "select a.key, e.name from entity_alias a join entity e on e.id = a.entity_id",
        "entity vectors": "select e.name, v.embedding::text from entity_vector v join entity e on e.id = v.entity_id",
        "relation vectors": "select least(s.name, t.name), greatest(s.name, t.name), r.tokens, v.embedding::text "
        "from relation_vector v join relation r on r.id = v.relation_id "
        "join entity s on s.id = r.source join entity t on t.id = r.target",
    }
    return {**graph(dsn), **{name: sorted(rows(dsn, query)) for name, query in queries.items()}}


@pytest.fixture(scope="module")
def expected(server: postgres.Postgresql, words_template: str) -> dict[str, list[tuple[Any, ...]]]:
    """The graph of all documents, ingested by one task in their order."""
    with fresh_database(server, words_template) as dsn:
        asyncio.run(ingest(dsn, [texts()]))
        return whole_graph(dsn)


def test_the_graph_is_worth_comparing(expected: dict[str, list[tuple[Any, ...]]]) -> None:
    assert len(expected["entities"]) == len(NAMES)
    assert len(expected["relations"]) > 12
    assert expected["stale"] == []
    weights = {relation[-1] for relation in expected["relations"]}
    assert len(weights) > 8
    assert any("\n" in description for _, _, description, *_ in expected["entities"])
    assert any("(2021-01-01) " in description for _, _, description, *_ in expected["entities"])


@pytest.mark.parametrize(("seed", "tasks"), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4), (6, 4)])
def test_any_order_by_any_number_of_tasks(
    server: postgres.Postgresql, words_template: str, expected: dict[str, list[tuple[Any, ...]]], seed: int, tasks: int
) -> None:
    documents = texts()
    seeded(seed).shuffle(documents)
    with fresh_database(server, words_template) as dsn:
        asyncio.run(ingest(dsn, [documents[i::tasks] for i in range(tasks)]))
        found = whole_graph(dsn)
    for part, values in expected.items():
        assert found[part] == values, part


@pytest.mark.parametrize(("seed", "tasks"), [(7, 1), (8, 3)])
def test_what_was_there_between_leaves_no_trace(
    server: postgres.Postgresql, words_template: str, expected: dict[str, list[tuple[Any, ...]]], seed: int, tasks: int
) -> None:
    """First versions that are replaced, and documents that are deleted, while others come in."""
    chance = seeded(seed)
    documents = texts()
    chance.shuffle(documents)
    firsts = [Document(d.uri, story(chance.randint(0, 40))) for d in documents if chance.random() < 0.5]
    others = [Document(f"other-{n}", "\n\n".join(story(chance.randint(0, 40)) for _ in range(3))) for n in range(4)]

    async def work(dsn: str) -> None:
        await ingest(dsn, [[*firsts, *others]])

        async def delete() -> None:
            async with opened(dsn) as rag:
                for other in others:
                    await rag.delete(other.uri)

        await asyncio.gather(ingest(dsn, [documents[i::tasks] for i in range(tasks)]), delete())
        async with opened(dsn) as rag:
            await rag.refresh()

    with fresh_database(server, words_template) as dsn:
        asyncio.run(work(dsn))
        found = whole_graph(dsn)
    for part, values in expected.items():
        assert found[part] == values, part
