"""The search under a filter: as if nothing else had been ingested, and no word of anything else."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

import asyncpg
import numpy as np
import pytest
from pgvector import HalfVector

from pgrag.database.rows import NewDocument
from pgrag.errors import UsageError
from tests.sql.reference import bm25, expected_graph
from tests.sql.support import EMBEDDER, Workspace, bounds_statement, document, fact, half, mention, seeded

MODES = ("local", "global", "hybrid", "mix", "naive")
RANKINGS = ("vector", "weight", "pagerank")
VOCABULARY = [f"w{n}" for n in range(30)]
NAMES = [f"Name{n}" for n in range(14)]
SMALL = {"labels": ["in"]}


def corpus(seed: int, count: int = 30) -> list[NewDocument]:
    """Documents about the same few names, some of two chunks, of three years; about half are labelled `in`."""
    rng = seeded(seed)

    def chunk(n: int, i: int) -> str:
        lines = [
            fact(
                *rng.sample(NAMES, 2),
                " ".join(rng.sample(VOCABULARY, 5)) + f" f{n}x{i}x{j}",
                round(rng.random() + 0.5, 3),
                ", ".join(rng.sample(VOCABULARY, 2)),
            )
            for j in range(rng.randrange(0, 4))
        ]
        lines += [
            mention(
                rng.choice([name, name.upper(), name.lower()]), rng.choice(["", "person", "place"]), f"{name} of d{n}"
            )
            for name in rng.sample(NAMES, rng.randrange(0, 3))
        ]
        return "\n".join([*lines, " ".join(rng.choices(VOCABULARY, k=12)) + f" nr{n}x{i}"])

    return [
        document(
            f"{rng.choice(['a', 'b'])}/{n:02}.txt",
            *(chunk(n, i) for i in range(rng.choice([1, 1, 2]))),
            published_at=rng.choice([None, *(datetime(2020 + y, 1 + n % 12, 5, tzinfo=UTC) for y in range(3))]),
            metadata={"n": n, "team": rng.choice(["x", "y"]), "deep": {"odd": n % 2 == 1, "list": [n, n + 1]}},
            labels=["in" if rng.random() < 0.5 else "out", *rng.sample(["red", "green", "blue"], rng.randrange(3))],
        )
        for n in range(count)
    ]


def allowed(docs: Sequence[NewDocument], test: Callable[[NewDocument], bool]) -> list[NewDocument]:
    return [doc for doc in docs if test(doc)]


def labelled_in(doc: NewDocument) -> bool:
    return "in" in doc.labels


def asking(seed: int, **more: Any) -> dict[str, Any]:
    """The parameters of a question: vectors and names."""
    rng = seeded(seed)
    low, high = rng.sample(NAMES, 2), rng.sample(VOCABULARY, 3)
    texts = {"question": " ".join([*low, *high]), "low": " ".join(low), "high": " ".join(high)}
    vectors = {name: EMBEDDER.vector(text) for name, text in texts.items()}
    return {
        **vectors,
        "keys": [low[0].lower()],
        "similar": [low[1].lower(), "nam3"],
        "threshold": 0.1,
        "lexical": 0.0,
        **more,
    }


def filtered(workspace: Workspace, chosen: Mapping[str, Any] | None, **parameters: Any) -> list[asyncpg.Record]:
    return workspace.retrieve(filter=None if chosen is None else json.dumps(chosen), **parameters)


def passages(rows: Sequence[asyncpg.Record]) -> list[str]:
    return [f"{row['uri']}#{row['ordinal']}" for row in rows if row["layer"] == "chunk"]


def scores(rows: Sequence[asyncpg.Record]) -> list[float]:
    return [row["score"] for row in rows if row["layer"] == "chunk"]


def graph(rows: Sequence[asyncpg.Record]) -> dict[str, Any]:
    """What the upper layers say, whatever the ids are."""
    entities = {r["name"]: (r["type"], r["body"], r["why"]) for r in rows if r["layer"] == "entity"}
    relations = {
        (r["name"], r["target"]): (r["keywords"], r["body"], round(r["weight"], 4), r["why"])
        for r in rows
        if r["layer"] == "relation"
    }
    return {"entities": entities, "relations": relations}


# ---------------------------------------------------------------- as if nothing else were there


@pytest.mark.parametrize("seed", range(4))
def test_passages_come_as_from_a_workspace_of_the_allowed_documents(
    workspace: Workspace, own_workspace: Workspace, seed: int
) -> None:
    docs = corpus(seed)
    workspace.ingest(*docs)
    own_workspace.ingest(*allowed(docs, labelled_in))
    for n, (mode, nearness) in enumerate([("naive", None), ("mix", 0.0), ("mix", 0.5), ("mix", None), ("mix", 1.0)]):
        question = asking(100 * seed + n, mode=mode, chunk_top_k=60)
        if nearness is not None:
            question["nearness"] = nearness
        rows, expected = filtered(workspace, SMALL, **question), filtered(own_workspace, None, **question)
        assert scores(rows) == pytest.approx(scores(expected), abs=1e-6)
        assert passages(rows) == passages(expected)
        assert len(passages(rows)) == sum(len(doc.chunks) for doc in allowed(docs, labelled_in))


@pytest.mark.parametrize("seed", range(4))
def test_the_graph_around_names_is_that_of_the_allowed_documents(
    workspace: Workspace, own_workspace: Workspace, seed: int
) -> None:
    docs = corpus(seed)
    workspace.ingest(*docs)
    own_workspace.ingest(*allowed(docs, labelled_in))
    ample = {"entity_tokens": 10**6, "relation_tokens": 10**6, "total_tokens": 10**7, "chunk_top_k": 100}
    for n, hops in product(range(3), (1, 2, 3)):
        keys = [name.lower() for name in seeded(seed * 10 + n).sample(NAMES, 2)]
        question = {"mode": "local", "ranking": "weight", "keys": keys, "hops": hops, **ample}
        rows, expected = filtered(workspace, SMALL, **question), filtered(own_workspace, None, **question)
        assert graph(rows) == graph(expected)
        assert sorted(passages(rows)) == sorted(passages(expected))


@pytest.mark.parametrize("seed", range(3))
def test_rows_tell_what_the_allowed_documents_say(workspace: Workspace, seed: int) -> None:
    """Names, types, descriptions, keywords and weights in plain Python, whatever the mode."""
    docs = corpus(seed)
    workspace.ingest(*docs)
    kept = allowed(docs, labelled_in)
    expected = expected_graph(kept, tokens=1200)
    stated = {name: (type_, text) for name, type_, text, *_ in expected["entities"].values()}
    related = {
        tuple(sorted(expected["entities"][key][0] for key in pair)): (keywords, text, weight)
        for pair, (keywords, text, weight) in expected["relations"].items()
    }
    inside = {f"{doc.uri}#{c.chunk.ordinal}" for doc in kept for c in doc.chunks}
    found = set()
    for mode, ranking in product(MODES, RANKINGS):
        rows = filtered(workspace, SMALL, mode=mode, ranking=ranking, hops=2, words=VOCABULARY[:4], **{
            k: v for k, v in asking(seed).items() if k != "lexical"})  # fmt: skip
        assert rows
        told = graph(rows)
        assert {name: said[:2] for name, said in told["entities"].items()}.items() <= stated.items()
        assert all(related[pair] == said[:3] for pair, said in told["relations"].items())
        assert set(passages(rows)) <= inside
        assert [r["rank"] for r in rows if r["layer"] == "relation"] == list(range(1, len(told["relations"]) + 1))
        found |= {row["layer"] for row in rows}
    assert found == {"entity", "relation", "chunk"}


@pytest.mark.parametrize("seed", range(2))
def test_words_of_allowed_passages_score_as_in_the_whole_workspace(workspace: Workspace, seed: int) -> None:
    docs = corpus(seed)
    workspace.ingest(*docs)
    asked = [*seeded(seed).sample(VOCABULARY, 5), "nr3x0", "nr4x0", "nothing"]
    everywhere = bm25(docs, asked)
    inside = {c.chunk.body for doc in allowed(docs, labelled_in) for c in doc.chunks}
    rows = workspace.rows(
        "select body, score from pgrag.search_words($1, p_chunk => pgrag.scope_chunks($2, null)) s "
        "join pgrag.chunk c on c.id = s.chunk_id",
        asked,
        json.dumps(SMALL),
    )
    assert dict(rows) == {body: pytest.approx(score) for body, score in everywhere.items() if body in inside}
    assert rows


# ---------------------------------------------------------------- each condition


def kinds() -> list[tuple[dict[str, Any], Callable[[NewDocument], bool]]]:
    since, until = datetime(2021, 3, 5, tzinfo=UTC), datetime(2022, 2, 5, tzinfo=UTC)
    return [
        ({"metadata": {"team": "x"}}, lambda d: d.metadata["team"] == "x"),
        ({"metadata": {"deep": {"odd": True}}}, lambda d: d.metadata["deep"]["odd"]),
        ({"metadata": {"deep": {"list": [7]}}}, lambda d: 7 in d.metadata["deep"]["list"]),
        ({"metadata": {"n": 3}}, lambda d: d.metadata["n"] == 3),
        ({"metadata": {}}, lambda d: True),
        ({"uri": "a/*"}, lambda d: fnmatch.fnmatchcase(d.uri, "a/*")),
        ({"uri": "*/1?.txt"}, lambda d: fnmatch.fnmatchcase(d.uri, "*/1?.txt")),
        ({"uri": ["a/0*", "b/2**"]}, lambda d: d.uri.startswith(("a/0", "b/2"))),
        ({"uri": "a/"}, lambda d: False),
        ({"documents": ["a/00.txt", "b/00.txt", "nowhere"]}, lambda d: d.uri in ("a/00.txt", "b/00.txt")),
        ({"labels": "red"}, lambda d: "red" in d.labels),
        ({"labels": ["red", "in"]}, lambda d: {"red", "in"} <= set(d.labels)),
        ({"labels": []}, lambda d: True),
        ({"any_label": ["red", "blue"]}, lambda d: bool({"red", "blue"} & set(d.labels))),
        ({"published_from": since.isoformat()}, lambda d: d.published_at is not None and d.published_at >= since),
        ({"published_until": until.isoformat()}, lambda d: d.published_at is not None and d.published_at <= until),
        (
            {"published_from": "2021-03-05", "published_until": "2022-02-05"},
            lambda d: d.published_at is not None and since <= d.published_at <= until,
        ),
        (
            {"labels": ["in"], "uri": "b/*", "metadata": {"team": "y"}, "published_from": "2020-01-01"},
            lambda d: "in" in d.labels and d.uri[0] == "b" and d.metadata["team"] == "y" and d.published_at is not None,
        ),
        ({"labels": None, "uri": None}, lambda d: True),
    ]


def test_every_condition_alone_and_together(workspace: Workspace) -> None:
    docs = corpus(7)
    workspace.ingest(*docs)
    everything = {"mode": "naive", "question": EMBEDDER.vector("w1"), "chunk_top_k": 100}
    sizes = set()
    for chosen, test in kinds():
        expected = {f"{doc.uri}#{c.chunk.ordinal}" for doc in allowed(docs, test) for c in doc.chunks}
        assert set(passages(filtered(workspace, chosen, **everything))) == expected, chosen
        sizes.add(len(expected))
    assert len(sizes) > 8, "the conditions differ"
    for (one, first), (other, second) in product(kinds(), kinds()):
        if not set(one) & set(other):
            expected = {doc.uri for doc in docs if first(doc) and second(doc)}
            rows = filtered(workspace, {**one, **other}, **everything)
            assert {row["uri"] for row in rows} == expected, (one, other)


def test_what_nothing_meets_gives_nothing(workspace: Workspace) -> None:
    workspace.ingest(*corpus(1, 6))
    for chosen in ({"labels": ["none"]}, {"documents": []}, {"uri": []}, {"any_label": []}, {"metadata": {"x": None}}):
        for mode, ranking in product(MODES, RANKINGS):
            assert filtered(workspace, chosen, mode=mode, ranking=ranking, words=["w1"], **asking(1)) == [], chosen
    assert filtered(workspace, {}, mode="naive", **asking(1)), "no condition is no filter"


def test_an_empty_workspace_gives_nothing(workspace: Workspace) -> None:
    for mode, ranking in product(MODES, RANKINGS):
        assert filtered(workspace, SMALL, mode=mode, ranking=ranking, words=["w1"], **asking(1)) == []


def test_names_and_words_work_without_any_vector(workspace: Workspace) -> None:
    workspace.ingest(
        document("in", fact("Spree", "Berlin", "Berlin lies on the Spree"), "a zebra", labels=["in"]),
        document("out", fact("Spree", "Lusatia", "the Spree rises in Lusatia"), "a zebra too", labels=["out"]),
    )
    for ranking in RANKINGS:
        rows = filtered(workspace, SMALL, mode="mix", ranking=ranking, keys=["spree", "lusatia"], words=["zebra"])
        assert list(graph(rows)["entities"]) == ["Spree", "Berlin"]
        assert set(passages(rows)) == {"in#0", "in#1"}
    assert filtered(workspace, SMALL, mode="naive", words=["zebra"]) == []


# ---------------------------------------------------------------- nothing leaks


def test_no_word_of_another_document_is_told(workspace: Workspace) -> None:
    """Every document has a word of its own in every place that a row could tell; names and themes are shared."""

    def secret(n: int) -> NewDocument:
        s = f"secret{n}x"
        ends = ("Acme", f"Firm{n % 3}")
        return document(
            f"uri-{s}",
            "\n".join([
                fact(*ends, f"they trade {s}", 1 + n, f"trade, key{s}"),
                fact(f"Only {s}", "Acme", f"known {s} alone"),
                mention("ACME" if n % 2 else "acme", f"type{s}", f"description {s}"),
                f"themes: theme{s}",
                f"trade text {s}",
            ]),
            headings=(f"heading {s}",), title=f"title {s}", published_at=datetime(2024, 1, 1 + n, tzinfo=UTC),
            metadata={"n": n}, labels=[f"l{n}"],
        )  # fmt: skip

    docs = [secret(n) for n in range(8)]
    workspace.ingest(*docs)
    everything = " ".join(doc.body for doc in docs)
    workspace.rows("update pgrag.entity set summary = $1, description = $1", everything)
    workspace.rows("update pgrag.relation set summary = $1, description = $1", everything)
    workspace.rows("update pgrag.mention set summarised = true")
    workspace.rows("update pgrag.fact set summarised = true")
    question = {name: EMBEDDER.vector("Acme trade secret") for name in ("question", "low", "high")}
    told = set()
    for n, (mode, ranking, hops) in product((0, 3, 6), product(MODES, RANKINGS, (1, 3))):
        rows = filtered(
            workspace, {"labels": [f"l{n}"]}, mode=mode, ranking=ranking, hops=hops, threshold=-1,
            keys=["acme", *(f"only secret{i}x" for i in range(8))], similar=[f"only secret{i}" for i in range(8)],
            words=["acme", "trade", *(f"secret{i}x" for i in range(8))], **question,
        )  # fmt: skip
        text = repr([tuple(row) for row in rows]).lower()
        assert f"secret{n}x" in text
        assert not [i for i in range(8) if i != n and f"secret{i}x" in text], (n, mode, ranking)
        told |= {(row["layer"], row["name"]) for row in rows if row["layer"] == "entity"}
    assert {name for _, name in told} == {
        "acme",
        "ACME",
        "Acme",
        "Firm0",
        "Only secret0x",
        "Only secret3x",
        "Only secret6x",
    } - ({"Acme"} if ("entity", "Acme") not in told else set())


def test_descriptions_are_dated_fragments_oldest_first_without_summaries(workspace: Workspace) -> None:
    def note(n: int, year: int, **more: Any) -> NewDocument:
        return document(
            f"d{n}",
            fact("Ada", "Bo", f"they met {n}", n) + "\n" + mention("Ada", "person" if n else "", f"told {n}"),
            published_at=datetime(year, 5, 1, tzinfo=UTC),
            **more,
        )

    workspace.ingest(note(1, 2022, labels=["in"]), note(2, 2020, labels=["in"]), note(3, 2021), note(4, 2024))
    rows = filtered(workspace, SMALL, mode="local", keys=["ada"])
    told = graph(rows)
    assert told["entities"]["Ada"][:2] == ("person", "(2020-05-01) told 2\n(2022-05-01) told 1")
    assert told["relations"]["Ada", "Bo"][1] == "(2020-05-01) they met 2\n(2022-05-01) they met 1"
    assert told["relations"]["Ada", "Bo"][2] == 3


def test_what_was_written_by_hand_belongs_to_no_document(workspace: Workspace) -> None:
    workspace.ingest(document("in", fact("Ada", "Bo", "they met"), labels=["in"]))
    ada = workspace.one("select id from pgrag.entity where name = 'Ada'")
    workspace.rows(
        "insert into pgrag.mention (key, entity_id, name, description) values ('ada', $1, 'Ada L.', 'written by hand')",
        ada,
    )
    rows = filtered(workspace, SMALL, mode="local", keys=["ada"])
    assert graph(rows)["entities"]["Ada"][1] == ""


# ---------------------------------------------------------------- wrong and hostile filters


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([], "no JSON object"),
        ("in", "no JSON object"),
        (3, "no JSON object"),
        ({"label": ["in"]}, "unknown filter 'label'.*metadata, uri, documents, labels, any_label"),
        ({"'; drop table chunk; --": 1}, "unknown filter"),
        ({"labels": 3}, "filter labels: neither a text nor a list of texts"),
        ({"labels": ["a", 3]}, "filter labels"),
        ({"any_label": {"a": 1}}, "filter any_label"),
        ({"uri": [["a"]]}, "filter uri"),
        ({"documents": True}, "filter documents"),
        ({"metadata": "team=x"}, "filter metadata"),
        ({"published_from": "soon"}, 'filter published_from: "soon" is no moment'),
        ({"published_until": "2024-02-30"}, "filter published_until"),
        ({"published_until": {"year": 2024}}, "filter published_until"),
    ],
)
def test_a_wrong_filter_is_refused(workspace: Workspace, chosen: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        filtered(workspace, chosen, mode="naive")
    assert isinstance(raised.value.__cause__, asyncpg.PostgresError)
    assert raised.value.__cause__.sqlstate == "PGR02"
    assert "\n" not in str(raised.value)


def test_globs_take_everything_else_as_it_is(workspace: Workspace) -> None:
    uris = ["a%b", "a_b", "a\\b", "a*b", "axb", "a[xy]b", "a'b", "a.b", "ÄÖ 文档", "a\nb", "A%B"]
    workspace.ingest(*(document(uri, f"text {n}") for n, uri in enumerate(uris)))
    everything = {"mode": "naive", "question": EMBEDDER.vector("text"), "chunk_top_k": 50}
    for glob, matched in {
        "a%b": ["a%b"], "a_b": ["a_b"], "a\\b": ["a\\b"], "a[xy]b": ["a[xy]b"], "a'b": ["a'b"], "a.b": ["a.b"],
        "a?b": [u for u in uris if len(u) == 3 and u[0] == "a" and u[2] == "b"], "?? 文*": ["ÄÖ 文档"], "\\*": [],
        "": [], "*": uris, "**********************************%": [], "A*": ["A%B"], "a*\\*b": ["a\\b"],
    }.items():  # fmt: skip
        assert {row["uri"] for row in filtered(workspace, {"uri": glob}, **everything)} == set(matched), glob
        rows = filtered(workspace, {"uri": [glob, "nothing like it"]}, **everything)
        assert {row["uri"] for row in rows} == set(matched), glob


def test_hostile_values_do_no_harm(workspace: Workspace) -> None:
    docs = corpus(2, 8)
    workspace.ingest(*docs)
    before = {table: workspace.count(table) for table in ("document", "chunk", "mention", "fact")}
    for value in ("'; drop table pgrag.chunk; --", "\\", "%", "$1", "{}", "x" * 100_000, "*a" * 200, "\u202e", "🙂"):
        for chosen in ({"uri": value}, {"documents": [value]}, {"labels": value}, {"any_label": [value] * 50},
                       {"metadata": {value: value}}, {"metadata": {"team": {"deep": [value] * 10}}}):  # fmt: skip
            assert filtered(workspace, chosen, mode="mix", words=["w1"], **asking(1)) == []
    hostile = ["'; drop table chunk; --", "\\", "%", "_", "a & b", "(", "", "'" * 50, "x" * 5000, "\u202e", "{}"]
    question = {k: v for k, v in asking(1).items() if k not in ("keys", "similar")}
    rows = filtered(workspace, SMALL, mode="mix", keys=hostile, similar=hostile, words=hostile, **question)
    assert [tuple(r) for r in rows] == [tuple(r) for r in filtered(workspace, SMALL, mode="mix", **question)]
    assert before == {table: workspace.count(table) for table in before}


def test_unknown_modes_are_refused_with_a_filter_too(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="unknown mode"):
        filtered(workspace, SMALL, mode="bypass")


# ---------------------------------------------------------------- plans and size


def test_the_conditions_use_their_indexes(workspace: Workspace) -> None:
    """Inlined, those that are null gone, the others where their index is."""
    workspace.rows(
        "insert into pgrag.document (uri, title, mime, sha256, settings_digest, metadata, labels, body, tokens, "
        "published_at) select 'u' || n, '', '', '', '', jsonb_build_object('a', n), array['l' || n], "
        "repeat('x', 500), 1, date '2000-01-01' + n from generate_series(1, 5000) n"
    )
    workspace.rows("analyze pgrag.document")
    places = ["metadata", "uri", "documents", "labels", "any_label", "published_from", "published_until"]
    for place, value, index in (
        ("metadata", "'{\"a\": 1}'", "document_metadata_idx"),
        ("labels", "'{l1}'", "document_labels_idx"),
        ("any_label", "'{l1,l2}'", "document_labels_idx"),
        ("uri", "'{docs/%}'", "document_uri_idx"),
        ("documents", "'{u1,u2}'", "document_uri_"),
        ("published_from", "'2013-06-01'", "document_published_at_idx"),
    ):
        conditions = ", ".join(value if name == place else "null" for name in places)
        query = f"select id from pgrag.document d where pgrag.is_allowed(d, row({conditions})::pgrag.conditions)"  # noqa: S608
        plan = "\n".join(line for (line,) in workspace.rows(f"explain {query}"))
        assert "is_allowed" not in plan
        assert index in plan, plan
        assert plan.count("IS NULL") == 0


def insert_many(
    workspace: Workspace, count: int, every: Mapping[str, int], vectors: bool = True, clusters: int = 1
) -> np.ndarray[Any, Any]:
    """So many documents of one chunk with random vectors, returned; each label is on every so manieth."""
    rng = np.random.default_rng(5)
    made = rng.standard_normal((count if vectors else 0, EMBEDDER.dimension)).astype(np.float32)
    if clusters > 1:
        centres = 3 * rng.standard_normal((clusters, EMBEDDER.dimension)).astype(np.float32)
        made += centres[np.arange(len(made)) % clusters]
    workspace.rows(
        "insert into pgrag.document (uri, title, mime, sha256, settings_digest, labels, body, tokens) "
        "select 'd' || n, '', '', '', '', array(select key from jsonb_each_text($2::jsonb) where n % value::int = 0), "
        "'b', 1 from generate_series(0, $1::int - 1) n order by n",
        count,
        json.dumps(dict(every)),
    )
    workspace.rows(
        "insert into pgrag.chunk (document_id, ordinal, body, sha256, start_char, end_char, tokens) "
        "select id, 0, uri, uri, 0, 1, 1 from pgrag.document order by id"
    )
    workspace.rows(
        "insert into pgrag.chunk_vector select c.id, v.v "
        "from unnest($1::text[]::public.halfvec[]) with ordinality v (v, n) "
        "join pgrag.chunk c on c.body = 'd' || (n - 1)",
        [HalfVector(v).to_text() for v in made],
    )
    workspace.rows("analyze")
    return made


def test_filters_of_every_width_give_all_that_was_asked_for(workspace: Workspace) -> None:
    """CASES 29: filters that leave 100, 50, 10, 1 and .1 % of the passages."""
    shares = {"all": 1, "half": 2, "tenth": 10, "hundredth": 100, "thousandth": 1000}
    count = 2000
    vectors = insert_many(workspace, count, shares)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for seed, (label, every) in product(range(3), shares.items()):
        question = np.random.default_rng(seed).standard_normal(EMBEDDER.dimension).astype(np.float32)
        near = np.argsort(-(unit[::every] @ question))[:40]
        rows = filtered(workspace, {"labels": [label]}, mode="naive", question=question, chunk_top_k=40)
        found = [row["uri"] for row in rows]
        assert len(found) == min(40, len(range(0, count, every)))
        recall = len({f"d{i * every}" for i in near} & set(found)) / len(found)
        assert recall >= (0.85 if every <= 2 else 1), label


def test_allowed_passages_far_from_the_question_are_found_too(own_workspace: Workspace) -> None:
    """Two clusters, the question in the one that may not be seen: the walk over the index ends before the other."""
    vectors = insert_many(own_workspace, 1500, {"far": 2}, clusters=2)
    question = vectors[1]
    stored = vectors.astype(np.float16).astype(float)
    near = np.argsort(-(stored[::2] @ question) / np.linalg.norm(stored[::2], axis=1))[:40]
    for limit, least in ((20, 39), (20_000, 34)):  # measured one by one, and found by the index
        own_workspace.rows(bounds_statement(scanned=limit))
        rows = filtered(own_workspace, {"labels": ["far"]}, mode="naive", question=question, chunk_top_k=40)
        assert len(rows) == 40
        assert len({f"d{2 * i}" for i in near} & {row["uri"] for row in rows}) >= least, limit


def test_the_facts_of_all_allowed_passages_are_looked_at(workspace: Workspace) -> None:
    """Of more passages than are measured one by one (here 547), none is left out by chance."""
    vectors = insert_many(workspace, 600, {"all": 1})
    for statement in (
        "insert into pgrag.lexeme values ('', 600, 600)",
        "insert into pgrag.fact (chunk_id, ordinal, text) select id, 0, body from pgrag.chunk order by id",
    ):
        workspace.rows(statement)
    workspace.rows(
        "insert into pgrag.fact_vector select f.id, v.v "
        "from unnest($1::text[]::public.halfvec[]) with ordinality v (v, n) join pgrag.fact f on f.id = n",
        [HalfVector(vector).to_text() for vector in vectors[::-1]],
    )
    missed = workspace.rows(
        "select f.chunk_id from pgrag.fact f join pgrag.fact_vector v on v.fact_id = f.id "
        "where f.id % 5 = 0 and f.chunk_id <> all (pgrag.scope_chunks($1, null, true, v.embedding))",
        json.dumps({"labels": ["all"]}),
    )
    assert missed == []


def test_wide_filters_walk_the_index_and_read_no_table(workspace: Workspace) -> None:
    """CASES 28, 29: the tenth call as the first."""
    insert_many(workspace, 2000, {"all": 1, "third": 3})

    async def scans(label: str) -> list[tuple[int, int]]:
        connection = await asyncpg.connect(workspace.dsn)
        try:
            transaction = connection.transaction()
            await transaction.start()
            statement = await connection.prepare(
                "select count(*) from pgrag.retrieve(p_question => $1::text::public.halfvec, p_mode => 'mix', "
                "p_filter => $2)"
            )
            seen = []
            for _ in range(10):
                await statement.fetchval(half("w1").to_text(), json.dumps({"labels": [label]}))
                row = await connection.fetchrow(
                    "select seq_tup_read, idx_scan from pg_stat_xact_user_tables "
                    "where relid = 'pgrag.chunk_vector'::regclass"
                )
                seen.append((row["seq_tup_read"], row["idx_scan"]))
            return seen
        finally:
            await connection.close()

    for label in ("all", "third"):
        seen = asyncio.run(scans(label))
        assert {rows for rows, _ in seen} == {0}, label
        assert all(scans > n for n, (_, scans) in enumerate(seen))


@pytest.mark.parametrize("measured", [True, False])
def test_of_many_allowed_passages_those_that_matter_are_searched(own_workspace: Workspace, measured: bool) -> None:
    """More than are looked at one by one (20 here): nothing of others, and the best first."""
    rng = seeded(11)
    names = [f"Ent{n}" for n in range(12)]
    docs = [
        document(
            f"d{n:03}",
            fact(*rng.sample(names, 2), f"says {' '.join(rng.sample(VOCABULARY, 4))} own{n}x", 1, f"key{n}x")
            + f"\n{' '.join(rng.choices(VOCABULARY, k=6))} text{n}x",
            labels=["in"] if n % 3 else ["out"],
        )
        for n in range(150)
    ]
    own_workspace.ingest(*docs)
    outside = [f"{word}{n}x" for n in range(0, 150, 3) for word in ("own", "key", "text")]
    scope = own_workspace.one("select pgrag.scope_chunks($1, $2, true)", json.dumps(SMALL), half("w1"))
    assert len(scope) == 100, "all"
    own_workspace.rows(bounds_statement(every=20))
    if not measured:  # how many passages there are is not known: the index is walked
        own_workspace.rows("delete from pgrag.lexeme")
    for n in (4, 100, 148):
        vector = EMBEDDER.vector(docs[n].chunks[0].chunk.body)
        for mode, ranking in product(MODES, RANKINGS):
            rows = filtered(
                own_workspace, SMALL, mode=mode, ranking=ranking, question=vector, low=vector, high=vector, hops=2,
                keys=["ent3"], words=[f"own{n}x", f"own{n - 1}x"],
            )  # fmt: skip
            text = repr([tuple(row) for row in rows])
            assert not [word for word in outside if re.search(rf"\b{word}\b", text)]
            assert len(passages(rows)) == 20
            if ranking != "weight" or mode == "naive":
                assert passages(rows)[0] == f"d{n:03}#0", (mode, ranking)
            assert {"entity", "relation"} <= {row["layer"] for row in rows} or mode == "naive"
    assert filtered(own_workspace, SMALL, mode="mix", keys=["ent3"]), "names alone"


def test_a_hub_costs_what_any_entity_costs(workspace: Workspace) -> None:
    """CASES 5, in pages read: few allowed or all, the hub of 6,000 and one of its leaves."""
    insert_many(workspace, 6000, {"all": 1, "few": 100}, vectors=False)
    for statement in (
        "insert into pgrag.entity (name, mentions) select case n when 0 then 'hub' else 'leaf' || n end, 1 "
        "from generate_series(0, 6000) n order by n",
        "insert into pgrag.entity_alias select name, id from pgrag.entity",
        "insert into pgrag.mention (chunk_id, key, entity_id, name) select c.id, e.name, e.id, e.name "
        "from pgrag.chunk c join pgrag.entity e on e.id in (1, c.id + 1)",
        "insert into pgrag.relation (source, target) select 1, id + 1 from pgrag.chunk",
        "insert into pgrag.fact (chunk_id, ordinal, relation_id, text) select id, 0, id, 't' || id from pgrag.chunk "
        "order by id",
        "insert into pgrag.fact_entity select f.id, e.name, e.id, case e.id when 1 then 'source' else 'target' end "
        "from pgrag.fact f join pgrag.entity e on e.id in (1, f.chunk_id + 1)",
        "analyze",
    ):
        workspace.rows(statement)

    def pages(key: str, label: str) -> int:
        call = f"select * from pgrag.retrieve(p_keys => '{{{key}}}', p_filter => '{{\"labels\": [\"{label}\"]}}')"  # noqa: S608
        for _ in range(2):
            plan = json.loads(workspace.one(f"explain (analyze, buffers, format json) {call}"))[0]["Plan"]
        assert plan["Actual Rows"] > 2
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    leaf = pages("leaf101", "few")
    assert pages("hub", "few") < 2 * leaf
    assert pages("hub", "all") < 6000
