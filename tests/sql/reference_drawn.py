"""Graphs and questions drawn by hypothesis, and a drawn graph put into a workspace: small, full of ties and corners."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pgrag.text.folding import name_key
from tests.sql.reference_graph import Chunk, Document, Fact, Graph, Mention, Pair, Profile, Told, Vector
from tests.sql.reference_lists import Asked
from tests.sql.reference_words import part_bits

DIMENSION = 4
VECTORS: list[Vector] = [
    (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 1, 0, 0), (1, -1, 0, 0), (2, 0, 0, 0), (0, 1, 1, 0), (1, 1, 1, 1),
    (1, 1, 1, -1), (-1, 0, 0, 0), (2, 1, 0, 0), (2, 1, 0, 1), (3, 1, 1, 0), (1, 2, 3, 4), (4, 1, 0, 0), (5, 1, 1, 1),
]  # fmt: skip
NAMES = [
    "Acme", "ACME Inc", "Acme Incorporated", "Berlin", "Berlin Mitte", "東京大学", "東京大学院", "Спрее", "C++",
    "node.js", "O'Neil \"Ed\"", "the Hague",
]  # fmt: skip
KEYS = [name_key(name) for name in NAMES]
UNKNOWN = ["acme in", "acme incorporate", "berlin mite", "東京大学生", "спре", "nobody", "", "leaf 3", "leaf 77"]
ASKED_KEYS = [*KEYS, *UNKNOWN]
WORDS = ["river", "ledger", "zebra", "ora-01555", "naïve", "東京", "京大", "o'brien", "c++", "x"]
LABELS = ["red", "blue", "green"]
TYPES = ["", "person", "place", 'Ort "x"']
DAY = datetime(2024, 2, 28, 22, tzinfo=UTC)
DATES = [None, DAY, DAY + timedelta(days=1), DAY + timedelta(days=400)]


def mostly(value: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The first of these values three times of four."""
    return st.sampled_from([value] * 3 * len(others) + [*others])


def vectors() -> st.SearchStrategy[Vector | None]:
    """One of a few, sometimes none."""
    return st.sampled_from([*VECTORS, None, None])


def spread(n: int) -> Vector:
    """The n-th of many directions, all different."""
    return (float(n + 1), float((n * 7) % 11), float((n * n) % 5), 3.0)


def some(*values: Any) -> st.SearchStrategy[Any]:
    """One of these values, the first when it shrinks."""
    return st.sampled_from(values)


def documents() -> st.SearchStrategy[list[Document]]:
    def made(values: list[tuple[Any, ...]]) -> list[Document]:
        return [
            Document(
                n, f"{'ba'[n % 2]}/{n}.txt", {"n": n, "team": team, "deep": {"list": [n, n + 1]}}, tuple(labels), date
            )
            for n, (team, labels, date) in enumerate(values, 1)
        ]

    one = st.tuples(some("x", "y"), st.lists(some(*LABELS), unique=True, max_size=2), some(*DATES))
    return st.lists(one, min_size=2, max_size=4).map(made)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to a dozen chunks, names and facts; in some a hub, in some an entity that very many passages speak of.

    Every entity is mentioned, and a passage mentions what its facts name, as storing an extraction makes it.
    """
    docs = draw(documents())
    texts = draw(st.lists(st.lists(some(*WORDS), max_size=6), min_size=1, max_size=6))
    drawn = draw(
        st.lists(
            st.tuples(
                st.integers(0, len(docs) - 1),
                st.integers(0, len(texts) - 1),
                vectors(),
                some(5, 0, 20, 10),
                st.lists(some(*KEYS), unique=True, max_size=4),
            ),
            min_size=draw(mostly(3, 0)),
            max_size=12,
        )
    )
    facts = draw(
        st.lists(
            st.tuples(
                st.integers(-1, len(drawn) - 1),
                some("met", "met again", "sued", 'built 2 "cars"'),
                st.lists(some("trade", "law", "Ärger"), max_size=2),
                some(1.0, 0.5, 2.0, 3.0),
                vectors(),
                some("pair", "pair", "pair", "sentence"),
                st.lists(some(*KEYS[:7]), min_size=2, max_size=3),
            ),
            max_size=24,
        )
    )
    by_hand = draw(st.lists(some(*KEYS), unique=True, max_size=2))
    same = draw(st.dictionaries(some(*KEYS[1:]), some(*KEYS), max_size=3))  # merged names
    leaves = draw(some(0, 0, 3, 12, 12, 36))
    crowd = draw(some(0, 0, 0, 9, 26, 57))
    builder = _Builder(docs, [Counter(text) for text in texts], same)
    for doc, text, vector, tokens, keys in drawn:
        chunk = builder.chunk(doc, text, vector, tokens)
        for key in keys:
            builder.mention(chunk, key)
    for chunk_at, text_, keywords, strength, vector, kind, keys in facts:
        builder.fact(chunk_at + 1 or None, text_, tuple(keywords), strength, vector, kind, keys)
    for key in by_hand:
        builder.mention(None, key)
    builder.crowd(crowd)
    builder.hub(leaves)
    return builder.graph(draw(st.lists(st.tuples(some(10, 0, 30, 100), vectors()), min_size=1, max_size=6)))


def graph_of_words(texts: Sequence[Sequence[str]]) -> Graph:
    """Passages of these words, and nothing else."""
    builder = _Builder([Document(1, "u")], [Counter(text) for text in texts], {})
    for n in range(len(texts)):
        builder.chunk(0, n, None, 1)
    return builder.graph([(0, None)])


class _Builder:
    def __init__(self, docs: Sequence[Document], texts: Sequence[Counter[str]], same: Mapping[str, str]) -> None:
        self._docs, self._texts, self._same = docs, texts, same
        self._chunks: dict[int, Chunk] = {}
        self._mentions: dict[tuple[int | None, str], Mention] = {}
        self._facts: list[Fact] = []

    def chunk(self, doc: int, text: int, vector: Vector | None, tokens: int) -> int:
        chosen, number = self._docs[doc], len(self._chunks) + 1
        ordinal = sum(c.document is chosen for c in self._chunks.values())
        self._chunks[number] = Chunk(number, chosen, ordinal, f"text {text}", self._texts[text], tokens, vector)
        return number

    def mention(self, chunk: int | None, key: str, name: str = "") -> None:
        if (chunk, key) not in self._mentions:
            n = len(self._mentions) + 1
            name = name or NAMES[KEYS.index(key)]
            said = ["", f"{name} is known", f'{name}: \t"{n % 5}"\n'][n % 3]
            written = [name, name, name.upper(), name.lower()][n % 4]
            self._mentions[chunk, key] = Mention(n, chunk, key, written, TYPES[n % 4], said, len(said) // 3)

    def fact(
        self, chunk: int | None, text: str, keywords: tuple[str, ...], strength: float, vector: Vector | None,
        kind: str, keys: Sequence[str], names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        ends = (None, None, tuple(dict.fromkeys(keys))) if kind == "sentence" else (keys[0], keys[1], tuple(keys[2:]))
        self._facts.append(
            Fact(len(self._facts) + 1, chunk, text, keywords, strength, 2 + len(text) // 3, vector, *ends)
        )
        for key, name in zip(keys, names or [""] * len(keys), strict=True):
            self.mention(chunk, key, name)

    def crowd(self, size: int) -> None:
        """So many passages that speak of one entity, every second of another too and states something of both."""
        for n in range(size):
            text = n % len(self._texts)
            chunk = self.chunk(n % len(self._docs), text, spread(n) if n % 13 else None, 5 * (n % 4))
            self.mention(chunk, KEYS[0])
            if n % 2:
                self.fact(chunk, f"crowd {n % 6}", (), 1 + n % 3, spread(n % 3), "pair", [KEYS[0], KEYS[3]])

    def hub(self, leaves: int) -> None:
        """So many neighbours of two entities, some with one of their own; stated by the passages there are."""
        for n in range(leaves):
            chunk = n % len(self._chunks) + 1 if self._chunks else None
            leaf, twig = (f"leaf {n}", f"Leaf {n}"), (f"twig {n}", f"Twig {n}")
            at = 0 if n % 3 == 1 else 3
            for one, other in [((KEYS[at], NAMES[at]), leaf)] + [(leaf, twig)] * (n % 4 == 3):
                vector = spread(n % 4)
                self.fact(chunk, f"branch {n}", (), 1 + n % 5, vector, "pair", [one[0], other[0]], [one[1], other[1]])

    def graph(self, profiles: Sequence[tuple[int, Vector | None]]) -> Graph:
        """With tokens and vectors of entities and relations; their ids are not in the order of the names."""
        keys = sorted({m.key for m in self._mentions.values()}, key=lambda key: (key[::-1], key))
        first = list(dict.fromkeys(self._same.get(key, key) for key in keys))
        ids = {key: n for n, key in enumerate(first, 1)}
        aliases = {key: ids[self._same.get(key, key)] for key in keys}
        aliases |= {key: ids[of] for key, of in self._same.items() if key not in aliases and of in ids}

        def profile(n: int, text: str, name: str = "") -> Profile:
            tokens, vector = profiles[n % len(profiles)]
            return Profile(n, tokens, spread(n) if n > 12 else vector, text, name, TYPES[n % 4])

        entities = {n: profile(n, f"about {n}", f"Entity {n % 7} {n}") for n in ids.values()}
        graph = Graph(self._docs, self._chunks, entities, aliases, list(self._mentions.values()), self._facts, {})
        pairs: dict[Pair, Profile] = {}
        for f in reversed(self._facts):
            if (pair := graph.pair(f)) and pair not in pairs:
                pairs[pair] = profile(len(pairs) + 1, f"between {pair}")
        return Graph(self._docs, self._chunks, entities, aliases, graph.mentions, self._facts, pairs)


# ---------------------------------------------------------------- questions


CONDITIONS: list[dict[str, Any]] = [  # those before the first that all meet divide most graphs
    {"uri": "a/*"}, {"uri": ["?/2.txt", "?.txt"]}, {"documents": ["a/1.txt", "b/4.txt"]}, {"documents": "b/2.txt"},
    {"labels": "red"}, {"any_label": ["blue", "green"]}, {"metadata": {"team": "x"}},
    {"metadata": {"deep": {"list": [2]}}},
    {"published_from": "2024-02-29"}, {"published_until": "2024-02-28T23:00:00+01:00"},
    {"labels": []}, {"metadata": {}}, {"uri": None}, {"uri": ["a/*", "b/*"]}, {"documents": []}, {"any_label": []},
    {"uri": []}, {"uri": "b/*.md"}, {"labels": ["red", "blue"]}, {"metadata": {"n": 1, "team": "y"}},
    {"any_label": "red"},
    {"published_from": "2024-02-28T22:00:00Z"}, {"published_until": "2025-01-01"},
]  # fmt: skip


def filters() -> st.SearchStrategy[dict[str, Any]]:
    often, one = st.sampled_from(CONDITIONS[: CONDITIONS.index({"labels": []})]), st.sampled_from(CONDITIONS)
    return st.one_of(often, often, often, one, st.builds(lambda a, b: a | b, often, one))


@st.composite
def wordings(draw: st.DrawFn) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The words of a question, and those of its parts, of which two may share one."""
    words = tuple(draw(st.lists(some(*WORDS, "unknown"), max_size=6, unique=True)))
    cut = draw(st.integers(0, len(words)))
    return words, draw(mostly((words[:cut], words[max(0, cut - 1) :]), (), (words,)))


@st.composite
def questions(draw: st.DrawFn, filtered: bool = False) -> Asked:
    """A question with its options; most have room for all that is found."""
    words, parts = draw(wordings())
    line = 3 if filtered else 1  # they are longer there
    return Asked(
        question=draw(vectors()),
        low=draw(vectors()),
        high=draw(vectors()),
        words=words,
        parts=parts,
        keys=tuple(draw(st.lists(some(*KEYS[:4] * 4, *ASKED_KEYS), max_size=3))),
        similar=tuple(draw(st.lists(some(*UNKNOWN * 2, *ASKED_KEYS), max_size=3))),
        mode=draw(some("mix", "mix", "mix", "hybrid", "local", "global", "naive")),
        top_k=draw(some(40, 40, 1, 2, 5, 500)),
        chunk_top_k=draw(some(70, 20, 70, 300, 1, 5)),
        ranking=draw(some("pagerank", "vector", "weight")),
        threshold=draw(some(0.0, 0.5, 0.25, 0.0, 0.5, -1.0)),
        degree_cap=draw(some(32, 1, 2, 3, 8, 2000)),
        hops=draw(some(1, 2, 3)),
        lexical=draw(some(0.2, 0.2, 1.0, 0.0)),
        nearness=draw(some(None, None, 0.0, 0.3, 1.0)),
        entity_tokens=draw(mostly(6000, 100 * line, 30 * line, 10 * line, 0)),
        relation_tokens=draw(mostly(8000, 120 * line, 30 * line, 10 * line, 0)),
        total_tokens=draw(mostly(30000, 300 * line, 150 * line, 90 * line, 20, 0)),
        filter=draw(filters()) if filtered else None,
    )


# ---------------------------------------------------------------- into a workspace

TABLES = (
    "document", "chunk", "entity", "relation", "mention", "fact", "entity_alias", "fact_entity", "adjacency", "lexeme",
    "chunk_search", "chunk_vector", "entity_vector", "relation_vector", "fact_vector",
)  # fmt: skip


def load_statement() -> str:
    """Fills the tables of an empty workspace from one JSON object of their rows."""
    inserts = ",\n".join(
        f"{table} as (insert into pgrag.{table} overriding system value "  # noqa: S608 - tables of ours
        f"select r.* from t, jsonb_populate_recordset(null::pgrag.{table}, t.rows -> '{table}') r)"
        for table in TABLES
    )
    return f"with t as materialized (select $1::jsonb as rows),\n{inserts}\nselect 1"


def table_rows(graph: Graph) -> str:
    """The rows of every table, as JSON."""
    told = Told(graph)
    counted = {c.id: c.words for c in graph.chunks.values() if c.words}
    held = Counter(word for words in counted.values() for word in words)
    in_all = sum(n for words in counted.values() for n in words.values())
    rows: dict[str, list[dict[str, Any]]] = {
        "document": [
            {"id": d.id, "uri": d.uri, "metadata": d.metadata, "labels": d.labels, "tokens": 0, "status": "complete",
             "published_at": d.published_at and d.published_at.isoformat()}
            | dict.fromkeys(("title", "mime", "sha256", "settings_digest", "body"), "")
            | dict.fromkeys(("created_at", "updated_at"), str(DAY))
            for d in graph.documents
        ],
        "chunk": [
            {"id": c.id, "document_id": c.document.id, "ordinal": c.ordinal, "body": c.text, "sha256": c.text,
             "start_char": 0, "end_char": 1, "headings": [], "tokens": c.tokens, "keywords": [], "attempts": 0}
            for c in graph.chunks.values()
        ],
        "entity": [
            {"id": e.id, "name": e.name, "type": e.type, "description": e.description, "tokens": e.tokens,
             "degree": len(told.edges.get(e.id, ())), "mentions": len(told.passages_of.get(e.id, ()))}
            for e in graph.entities.values()
        ],
        "relation": [
            {"id": r.id, "source": low, "target": high, "keywords": [], "description": r.description,
             "weight": told.weights[r.id], "tokens": r.tokens}
            for (low, high), r in graph.relations.items()
        ],
        "mention": [
            {"id": m.id, "chunk_id": m.chunk, "key": m.key, "entity_id": graph.aliases[m.key], "name": m.name,
             "type": m.type, "description": m.description, "tokens": m.tokens, "summarised": False}
            for m in graph.mentions
        ],
        "fact": [
            {"id": f.id, "chunk_id": f.chunk, "ordinal": f.id, "text": f.text, "context": "", "keywords": f.keywords,
             "strength": f.strength, "tokens": f.tokens, "summarised": False,
             "relation_id": graph.relations[pair].id if (pair := graph.pair(f)) else None}
            for f in graph.facts
        ],
        "entity_alias": [{"key": key, "entity_id": entity} for key, entity in graph.aliases.items()],
        "fact_entity": [
            {"fact_id": f.id, "key": key, "entity_id": graph.aliases[key], "role": role}
            for f in graph.facts
            for key, role in [(f.source, "source"), (f.target, "target"), *((key, "named") for key in f.named)]
            if key is not None
        ],
        "adjacency": [
            {"entity_id": entity, "relation_id": e.relation, "other_id": e.other, "weight": e.weight}
            for entity, edges in told.edges.items()
            for e in edges
        ],
        "lexeme": [{"word": word, "chunks": n, "occurrences": 0} for word, n in held.items()]
        + ([{"word": "", "chunks": len(counted), "occurrences": in_all}] if counted else []),
        "chunk_search": [
            {"chunk_id": i, "length": sum(words.values()),
             "words": " ".join("'" + word.replace("'", "''") + f"':{n}" for word, n in words.items())}
            for i, words in counted.items()
        ],
    }  # fmt: skip
    vectors_of: dict[str, dict[int, Vector | None]] = {
        "chunk": {c.id: c.vector for c in graph.chunks.values()},
        "entity": {e.id: e.vector for e in graph.entities.values()},
        "relation": {r.id: r.vector for r in graph.relations.values()},
        "fact": {f.id: f.vector for f in graph.facts},
    }
    for kind, vectors_by_id in vectors_of.items():
        rows[f"{kind}_vector"] = [
            {f"{kind}_id": i, "embedding": json.dumps(v)} for i, v in vectors_by_id.items() if v is not None
        ]
    return json.dumps(rows)


def parameters(asked: Asked) -> dict[str, Any]:
    """The question as the parameters of `retrieve()`."""
    bits = part_bits(asked.parts)
    given = {name: getattr(asked, name) for name in asked.__dataclass_fields__ if name not in ("parts", "filter")}
    for name in ("question", "low", "high"):
        given[name] = None if given[name] is None else np.array(given[name], np.float32)
    given |= {name: list(given[name]) for name in ("words", "keys", "similar")}
    given["parts"] = [bits.get(word, 0) for word in asked.words]
    return given | {"filter": None if asked.filter is None else json.dumps(asked.filter)}
