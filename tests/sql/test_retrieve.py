"""The search: which channel brings what, in which order, within which budgets; and the ranking of passages."""

from __future__ import annotations

from typing import Any

import asyncpg
import numpy as np
import pytest

from pgrag.errors import UsageError
from pgrag.folding import words
from tests.sql.reference import passage_ranks
from tests.sql.support import EMBEDDER, Workspace, document, fact, half, mention, seeded

RANKINGS = ("vector", "weight", "pagerank")
WORLD = [
    document("cars", fact("Alpha Motors", "Berlin", "Alpha Motors builds cars in Berlin", 3, "manufacturing")),
    document("river", fact("Berlin", "Spree", "Berlin lies on the Spree", 1, "geography")),
    document("court", fact("Gamma", "Delta", "Gamma sues Delta", 2, "lawsuit")),
    document("zoo", "a zebra crossing, and nothing more"),
]


@pytest.fixture
def world(workspace: Workspace) -> Workspace:
    """Four documents of one chunk; two of them linked by Berlin, the last without any entity."""
    workspace.ingest(*WORLD)
    return workspace


def vectors(question: str = "", low: str = "", high: str = "") -> dict[str, Any]:
    given = {"question": question, "low": low, "high": high}
    return {name: EMBEDDER.vector(text) for name, text in given.items() if text}


def asked(text: str) -> dict[str, Any]:
    return {"words": list(dict.fromkeys(words(text)))}


def layer(rows: list[asyncpg.Record], name: str) -> list[asyncpg.Record]:
    found = [row for row in rows if row["layer"] == name]
    assert [row["rank"] for row in found] == list(range(1, len(found) + 1))
    return found


def entities(rows: list[asyncpg.Record]) -> dict[str, str]:
    """name -> why, in order."""
    return {row["name"]: row["why"] for row in layer(rows, "entity")}


def relations(rows: list[asyncpg.Record]) -> dict[str, str]:
    """Both names, sorted -> why, in order."""
    return {"-".join(sorted((row["name"], row["target"]))): row["why"] for row in layer(rows, "relation")}


def chunks(rows: list[asyncpg.Record]) -> dict[str, str]:
    """uri -> why, in order."""
    return {row["uri"]: row["why"] for row in layer(rows, "chunk")}


def cosine(a: str, b: str) -> float:
    return float(np.dot(EMBEDDER.vector(a), EMBEDDER.vector(b)))


# ---------------------------------------------------------------- modes and channels

QUESTION = vectors("Alpha Motors zebra", "Alpha Motors", "Gamma sues Delta") | {"threshold": 0.5}


def test_local_goes_from_entities_to_their_neighbours_and_never_by_relation_vectors(world: Workspace) -> None:
    rows = world.retrieve(mode="local", **QUESTION)
    assert entities(rows) == {"Alpha Motors": "vector", "Berlin": "hop"}
    assert relations(rows) == {"Alpha Motors-Berlin": "hop"}
    assert set(chunks(rows)) == {"cars", "river"}
    first = layer(rows, "entity")[0]
    assert first["score"] == pytest.approx(1, abs=2e-3)
    assert layer(rows, "entity")[1]["score"] is None


def test_global_goes_from_relations_to_their_ends_and_never_by_entity_seeds(world: Workspace) -> None:
    rows = world.retrieve(mode="global", keys=["alpha motors"], similar=["alpha motor"], **QUESTION)
    assert entities(rows) == {"Gamma": "relation", "Delta": "relation"}
    assert relations(rows) == {"Delta-Gamma": "vector"}
    assert set(chunks(rows)) == {"court"}


def test_hybrid_is_both(world: Workspace) -> None:
    rows = world.retrieve(mode="hybrid", **QUESTION)
    assert entities(rows) == {"Alpha Motors": "vector", "Gamma": "relation", "Delta": "relation", "Berlin": "hop"}
    assert relations(rows) == {"Alpha Motors-Berlin": "hop", "Delta-Gamma": "vector"}
    assert set(chunks(rows)) == {"cars", "river", "court"}


def test_naive_reads_the_vector_of_the_question_only(world: Workspace) -> None:
    rows = world.retrieve(mode="naive", keys=["gamma"], **asked("Gamma"), **QUESTION)
    assert entities(rows) == relations(rows) == {}
    texts = {doc.uri: doc.body for doc in WORLD}
    by_cosine = sorted(texts, key=lambda uri: -cosine("Alpha Motors zebra", texts[uri]))
    assert list(chunks(rows)) == by_cosine
    assert set(chunks(rows).values()) == {"vector"}
    for row in layer(rows, "chunk"):
        assert row["score"] == pytest.approx(cosine("Alpha Motors zebra", texts[row["uri"]]), abs=2e-3)
    assert list(chunks(world.retrieve(mode="naive", chunk_top_k=2, **QUESTION))) == by_cosine[:2]


def test_mix_adds_passages_by_vector_and_by_words(world: Workspace) -> None:
    for ranking in RANKINGS:
        rows = world.retrieve(mode="mix", ranking=ranking, **asked("zebra"), **QUESTION)
        assert set(chunks(rows)) == {"cars", "river", "court", "zoo"}
        assert chunks(rows)["zoo"] == ("pagerank" if ranking == "pagerank" else "vector+words")
        without = world.retrieve(mode="mix", ranking=ranking, lexical=0.0, **asked("zebra"), **QUESTION)
        assert chunks(without)["zoo"] == ("pagerank" if ranking == "pagerank" else "vector")
        hybrid = world.retrieve(mode="hybrid", ranking=ranking, **asked("zebra"), **QUESTION)
        assert "zoo" not in chunks(hybrid)
        assert entities(rows) == entities(hybrid)
        assert relations(rows) == relations(hybrid)


def test_every_row_has_its_columns(world: Workspace) -> None:
    rows = world.retrieve(mode="mix", ranking="vector", **QUESTION)
    stored = {"entity": {}, "relation": {}, "chunk": {}}  # type: dict[str, dict[int, tuple[Any, ...]]]
    for name, query in {
        "entity": "select id, name, type, description, tokens from pgrag.entity",
        "relation": "select id, source, target, description, keywords, weight from pgrag.relations",
        "chunk": "select c.id, c.body, c.tokens, d.id, d.uri, d.title, c.ordinal, c.headings, c.page, c.start_char, "
        "c.end_char from pgrag.chunk c join pgrag.document d on d.id = c.document_id",
    }.items():
        stored[name] = {i: tuple(rest) for i, *rest in world.rows(query)}
    columns = {
        "entity": ("name", "type", "body", "tokens"),
        "relation": ("name", "target", "body", "keywords", "weight"),
        "chunk": (
            "body",
            "tokens",
            "document_id",
            "uri",
            "title",
            "ordinal",
            "headings",
            "page",
            "start_char",
            "end_char",
        ),
    }
    for row in rows:
        assert tuple(row[c] for c in columns[row["layer"]]) == stored[row["layer"]][row["id"]]
    assert {row["layer"] for row in rows} == set(columns)


# ---------------------------------------------------------------- seeds


def test_exact_and_alias_names_are_seeds_without_any_vector(world: Workspace) -> None:
    gamma = world.one("select id from pgrag.entity where name = 'Gamma'")
    world.rows("insert into pgrag.entity_alias (key, entity_id) values ('γ inc', $1)", gamma)
    rows = world.retrieve(mode="local", keys=["spree", "γ inc", "gamma", "nobody"])
    assert entities(rows) == {"Spree": "name", "Gamma": "name", "Berlin": "hop", "Delta": "hop"}
    assert list(entities(world.retrieve(mode="local", keys=["γ inc", "spree"])))[:2] == ["Gamma", "Spree"]


def test_similar_names_are_seeds_where_no_exact_name_is_known(world: Workspace) -> None:
    found = entities(world.retrieve(mode="local", similar=["alpha motor", "zzz"]))
    assert found == {"Alpha Motors": "similar name", "Berlin": "hop"}
    assert entities(world.retrieve(mode="local", similar=["xyz", ""])) == {}
    world.ingest(document("more", mention("Alpha Motor")))
    assert entities(world.retrieve(mode="local", similar=["alpha motor"])) == {}, "there is one of exactly this name"


def test_channels_of_an_entity_add_up(world: Workspace) -> None:
    rows = world.retrieve(
        mode="hybrid", keys=["berlin"], similar=["alpha moters"], threshold=0.5,
        **vectors("x", "Berlin Alpha Motors", "Berlin lies on the Spree"),
    )  # fmt: skip
    assert set(entities(rows)["Berlin"].split("+")) == {"name", "vector", "relation", "hop"}
    assert set(entities(rows)["Alpha Motors"].split("+")) == {"vector", "similar name", "hop"}
    assert relations(rows)["Berlin-Spree"] == "hop+vector"


def test_the_threshold_and_top_k_bound_the_vectors(world: Workspace) -> None:
    low = vectors(low="Alpha Motors Berlin Spree Gamma Delta")
    loose = world.retrieve(mode="local", threshold=-1, **low)
    assert set(entities(loose)) == {"Alpha Motors", "Berlin", "Spree", "Gamma", "Delta"}
    assert entities(world.retrieve(mode="local", threshold=0.99, **low)) == {}
    one = world.retrieve(mode="local", threshold=-1, top_k=1, **low)
    assert [name for name, why in entities(one).items() if "vector" in why] == list(entities(loose))[:1]
    high = vectors(high="Berlin Spree Gamma Delta")
    assert len(relations(world.retrieve(mode="global", threshold=-1, top_k=2, **high))) == 2


# ---------------------------------------------------------------- walking


def insert_star(workspace: Workspace, leaves: int) -> None:
    """A hub with so many neighbours; the n-th edge has weight n."""
    workspace.rows(
        "insert into pgrag.entity (name, tokens) select case n when 0 then 'Hub' else 'Leaf' || n end, 10 "
        "from generate_series(0, $1::int) as n",
        leaves,
    )
    hub = workspace.one("select id from pgrag.entity where name = 'Hub'")
    workspace.rows("insert into pgrag.entity_alias (key, entity_id) select lower(name), id from pgrag.entity")
    workspace.rows(
        "insert into pgrag.relation (source, target, weight, tokens, description) select $1, id, id - $1, 10, name "
        "from pgrag.entity where id > $1",
        hub,
    )
    workspace.rows(
        "insert into pgrag.adjacency (entity_id, relation_id, other_id, weight) select source, id, target, weight "
        "from pgrag.relation union all select target, id, source, weight from pgrag.relation"
    )


def test_a_hub_gives_its_heaviest_edges_and_no_more(workspace: Workspace) -> None:
    """CASES 5."""
    insert_star(workspace, 2000)
    for cap in (1, 5, 32):
        rows = workspace.retrieve(mode="local", keys=["hub"], degree_cap=cap)
        assert [row["weight"] for row in layer(rows, "relation")] == [2000 - n for n in range(cap)]
        assert list(entities(rows)) == ["Hub", *(f"Leaf{2000 - n}" for n in range(cap))]
    two_hops = workspace.retrieve(mode="local", keys=["leaf7"], degree_cap=1, hops=2)
    assert [row["weight"] for row in layer(two_hops, "relation")] == [7, 2000], "one edge of the leaf, one of the hub"
    several = workspace.retrieve(mode="local", keys=["leaf7", "leaf9", "hub"], degree_cap=3)
    assert len(relations(several)) == 5


def test_hops_reach_further(workspace: Workspace) -> None:
    workspace.ingest(*(document(a, fact(a, b, f"{a} and {b}")) for a, b in ("AB", "BC", "CD", "DE", "EA")))
    assert entities(workspace.retrieve(mode="local", keys=["b"])) == {"B": "name", "A": "hop", "C": "hop"}
    two = workspace.retrieve(mode="local", keys=["b"], hops=2)
    assert set(entities(two)) == {"A", "B", "C", "D", "E"}
    assert next(iter(entities(two))) == "B"
    assert set(list(entities(two))[1:3]) == {"A", "C"}, "the nearer first"
    assert set(relations(workspace.retrieve(mode="local", keys=["b"], hops=3))) == {"A-B", "B-C", "C-D", "D-E", "A-E"}
    assert set(relations(two)) == {"A-B", "B-C", "C-D", "A-E"}


def test_local_and_global_relations_take_turns(workspace: Workspace) -> None:
    workspace.ingest(
        document("local", *(fact("Hub", f"Leaf{n}", f"leaf number {n}", 9 - n) for n in range(4))),
        document("global", *(fact(f"X{n}", f"Y{n}", "contract " * (4 - n) + f"other{n} words{n}") for n in range(4))),
    )
    rows = workspace.retrieve(mode="hybrid", keys=["hub"], threshold=0.1, **vectors(high="contract"))
    assert list(relations(rows).values()) == ["hop", "vector"] * 4
    assert list(relations(rows)) == [name for n in range(4) for name in (f"Hub-Leaf{n}", f"X{n}-Y{n}")]
    half_of_it = sum(row["tokens"] for row in layer(rows, "relation")[:4])
    cut = workspace.retrieve(
        mode="hybrid", keys=["hub"], threshold=0.1, relation_tokens=half_of_it, **vectors(high="contract")
    )
    assert list(relations(cut).values()) == ["hop", "vector"] * 2, "the cut starves neither"


# ---------------------------------------------------------------- budgets


def test_layers_hold_whole_items_within_their_budgets(workspace: Workspace) -> None:
    rng = seeded(1)
    names = [f"N{n}" for n in range(12)]
    workspace.ingest(
        *(document(f"d{n}", fact(*rng.sample(names, 2), f"says {n} " * rng.randrange(1, 20))) for n in range(40))
    )
    options = {
        "mode": "mix",
        "keys": [n.lower() for n in names],
        "chunk_top_k": 100,
        **vectors("says"),
        **asked("says"),
    }
    everything = workspace.retrieve(entity_tokens=10**6, relation_tokens=10**6, total_tokens=10**7, **options)
    for entity_tokens, relation_tokens, total in [
        (100, 300, 900), (0, 300, 500), (100, 0, 101), (0, 0, 0), (90, 210, 300), (6000, 8000, 400), (6000, 8000, 1),
        (3, 5, 100),
    ]:  # fmt: skip
        rows = workspace.retrieve(
            entity_tokens=entity_tokens, relation_tokens=relation_tokens, total_tokens=total, **options
        )
        sums = {}
        for name in ("entity", "relation", "chunk"):
            part = layer(rows, name)
            sums[name] = sum(row["tokens"] for row in part)
            if name != "chunk":
                assert [r["id"] for r in part] == [r["id"] for r in layer(everything, name)][: len(part)]
        assert sums["entity"] <= entity_tokens
        assert sums["relation"] <= relation_tokens
        assert sum(sums.values()) <= total, (entity_tokens, relation_tokens, total)
        if entity_tokens + relation_tokens <= total:
            after = layer(everything, "entity")[len(layer(rows, "entity"))]
            assert sums["entity"] + after["tokens"] > entity_tokens, "one more would have been too much"
            assert sum(sums.values()) + max(r["tokens"] for r in layer(everything, "chunk")) > total


def test_chunk_top_k_bounds_the_passages(workspace: Workspace) -> None:
    workspace.ingest(*(document(f"d{n}", fact("Hub", f"Leaf{n}", f"says {n}")) for n in range(30)))
    for ranking in RANKINGS:
        for k in (1, 7):
            rows = workspace.retrieve(
                mode="mix", ranking=ranking, keys=["hub"], chunk_top_k=k, **vectors("says 3"), **asked("says 3")
            )
            assert len(chunks(rows)) == k


# ---------------------------------------------------------------- passages


def test_passages_by_vector_are_the_nearest_of_each_channel_in_turn(workspace: Workspace) -> None:
    texts = {n: "\n" + " ".join(["question"] * n + [f"noise{n}{i}" for i in range(4)]) for n in range(6)}
    workspace.ingest(*(document(f"d{n}", fact("Hub", f"Leaf{n}", f"t{n}") + text) for n, text in texts.items()))
    rows = workspace.retrieve(mode="local", ranking="vector", keys=["hub"], **vectors("question"))
    bodies = dict(workspace.rows("select uri, body from pgrag.document"))
    nearest = sorted(bodies, key=lambda uri: -cosine("question", bodies[uri]))
    assert chunks(rows) == dict.fromkeys(nearest, "entity")
    assert list(chunks(rows)) == nearest
    words_first = workspace.retrieve(mode="mix", ranking="vector", **vectors("question"), **asked("noise31 noise32"))
    assert nearest[1] != "d3"
    assert list(chunks(words_first))[:3] == [nearest[0], "d3", nearest[1]]


def test_passages_by_weight_are_those_most_often_linked(workspace: Workspace) -> None:
    workspace.ingest(
        document("one", mention("A")),
        document("three", mention("A") + "\n" + mention("B") + "\n" + mention("C")),
        document("two", mention("B") + "\n" + mention("C")),
    )
    rows = workspace.retrieve(mode="local", ranking="weight", keys=["a", "b", "c"], **vectors("whatever"))
    assert [(row["uri"], row["score"]) for row in layer(rows, "chunk")] == [("three", 3), ("two", 2), ("one", 1)]
    assert chunks(rows)["two"] == "entity"


def test_passages_by_pagerank_are_in_its_order_then_the_rest(world: Workspace) -> None:
    question = vectors("Alpha Motors", "Alpha Motors", "") | {"threshold": 0.5}
    rows = world.retrieve(mode="mix", ranking="pagerank", **asked("Alpha Motors"), **question)
    ranked = world.rows(
        "select uri, score from pgrag.rank_chunks($1, $2) with ordinality r (id, score, walked, near, n) "
        "join pgrag.chunk c using (id) join pgrag.document d on d.id = c.document_id order by n",
        half("Alpha Motors"), ["alpha", "motors"],
    )  # fmt: skip
    assert list(chunks(rows)) == [uri for uri, _ in ranked]
    assert [row["score"] for row in layer(rows, "chunk")] == pytest.approx([score for _, score in ranked])
    assert all("pagerank" in why for why in chunks(rows).values())
    local = world.retrieve(mode="local", ranking="pagerank", **asked("Alpha Motors"), **question)
    assert list(chunks(local)) == [uri for uri, _ in ranked if uri in ("cars", "river")]


# ---------------------------------------------------------------- corners


def test_an_unknown_mode_or_ranking_is_refused_with_what_is_allowed(workspace: Workspace) -> None:
    for options, hint in (
        ({"mode": "bypass"}, "local, global, hybrid, mix or naive"),
        ({"mode": None}, "local, global, hybrid, mix or naive"),
        ({"mode": "'; drop table chunk; --"}, "local, global, hybrid, mix or naive"),
        ({"ranking": "best"}, "vector, weight or pagerank"),
        ({"ranking": None}, "vector, weight or pagerank"),
    ):
        with pytest.raises(UsageError, match=hint) as raised:
            workspace.retrieve(**options)
        assert isinstance(raised.value.__cause__, asyncpg.PostgresError)
        assert raised.value.__cause__.sqlstate == "PGR02"
        assert "\n" not in str(raised.value)


def test_it_can_be_called_without_arguments(world: Workspace) -> None:
    assert world.rows("select * from pgrag.retrieve()") == []


def test_an_empty_workspace_gives_nothing(workspace: Workspace) -> None:
    everything = {"keys": ["x"], "similar": ["y"], "hops": 3, **vectors("q", "l", "h"), **asked("z")}
    for mode in ("local", "global", "hybrid", "mix", "naive"):
        for ranking in RANKINGS:
            assert workspace.retrieve(mode=mode, ranking=ranking, **everything) == []


def test_names_and_words_work_without_any_vector(world: Workspace) -> None:
    for ranking in RANKINGS:
        rows = world.retrieve(mode="mix", ranking=ranking, keys=["spree"], **asked("zebra"))
        assert entities(rows) == {"Spree": "name", "Berlin": "hop"}
        assert chunks(rows)["zoo"] == "words"
        assert set(chunks(rows)) == {"zoo", "river", "cars"}
        assert chunks(world.retrieve(mode="naive", ranking=ranking, **asked("zebra"))) == {}


def test_what_waits_for_extraction_is_found_by_words(workspace: Workspace) -> None:
    workspace.put(document("u", "zebra"))
    assert chunks(workspace.retrieve(mode="mix", ranking="vector", **vectors("zebra"), **asked("zebra"))) == {
        "u": "words"
    }


def test_hostile_arguments_do_no_harm(world: Workspace) -> None:
    hostile = ["'; drop table chunk; --", "\\", "%", "_", "a & b", "(", "", "'" * 50, "x" * 5000, "\u202e", "{}"]
    rows = world.retrieve(mode="mix", keys=hostile, similar=hostile, words=hostile, **QUESTION)
    assert entities(rows) == entities(world.retrieve(mode="mix", **QUESTION))


def test_the_same_question_has_the_same_answer(workspace: Workspace) -> None:
    rng = seeded(3)
    names = [f"N{n}" for n in range(10)]
    workspace.ingest(*(document(f"d{n}", fact(*rng.sample(names, 2), f"tie {n % 3}")) for n in range(60)))
    for ranking in RANKINGS:
        options = {
            "mode": "mix",
            "ranking": ranking,
            "keys": ["n1", "n2"],
            "hops": 2,
            **vectors("tie", "N3", "tie"),
            **asked("tie 1"),
        }
        first = [tuple(row) for row in workspace.retrieve(**options)]
        workspace.rows("analyze")
        assert [tuple(row) for row in workspace.retrieve(**options)] == first
        assert first


# ---------------------------------------------------------------- the ranking of passages, in plain Python


@pytest.mark.parametrize("seed", range(3))
def test_passages_are_ranked_by_the_recipe(workspace: Workspace, seed: int) -> None:
    """Small graphs, all within the candidate limits."""
    rng = seeded(seed)
    vocabulary = [f"w{n}" for n in range(30)]
    names = [f"Name{n}" for n in range(14)]
    docs = [
        document(
            f"d{n}",
            "\n".join(
                [fact(*rng.sample(names, 2), " ".join(rng.sample(vocabulary, 5)) + f" {n}.{i}", rng.choice([0.5, 1, 2]))
                 for i in range(rng.randrange(0, 4))]
                + [" ".join(rng.choices(vocabulary, k=12)) + f" nr{n}"]
            ),
        )
        for n in range(26)
    ]  # fmt: skip
    workspace.ingest(*docs)
    for lexical in (0.05, 0.05, 0.0, 0.2):
        asked_words = rng.sample(vocabulary, 4)
        question = " ".join(asked_words)
        expected = passage_ranks(docs, question, asked_words, lexical)
        rows = workspace.rows(
            "select body, score, near from pgrag.rank_chunks($1, $2, $3) with ordinality r (id, score, near, n) "
            "join pgrag.chunk c using (id) order by n",
            half(question), list(asked_words), lexical,
        )  # fmt: skip
        assert {body for body, *_ in rows} == set(expected)
        for body, score, near in rows:
            assert score == pytest.approx(expected[body][0], abs=1e-6)
            assert near == pytest.approx(expected[body][1], abs=1e-6)
        assert [score for _, score, _ in rows] == sorted((score for _, score, _ in rows), reverse=True)


def test_ranking_parameters_are_heard(world: Workspace) -> None:
    query = "select chunk_id, score from pgrag.rank_chunks($1, $2, p_passages => $3, p_iterations => $4)"
    sums = {}
    for share, steps in ((0.0, 0), (0.0, 6), (0.25, 0), (1.0, 0)):
        sums[share, steps] = sum(s or 0 for _, s in world.rows(query, half("zebra"), ["zebra"], share, steps))
    assert sums[0.0, 0] == 0
    assert sums[0.25, 0] == pytest.approx(0.25)
    assert sums[1.0, 0] == pytest.approx(1)
    assert 0 < sums[0.0, 6] < 1, "it came over the entities"


def test_passages_without_facts_or_entities_are_ranked_by_nearness(workspace: Workspace) -> None:
    workspace.ingest(*(document(f"d{n}", text) for n, text in enumerate(["red", "red blue", "green"])))
    rows = workspace.rows("select chunk_id, near from pgrag.rank_chunks($1, '{}')", half("red"))
    assert [i for i, _ in rows] == [workspace.chunk_ids(f"d{n}")[0] for n in range(3)]
