"""The search: which channel brings what, in which order, within which budgets; and the ranking of passages."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import numpy as np
import pytest

from pgrag.database.rows import NewDocument
from pgrag.errors import UsageError
from pgrag.text.folding import words
from tests.sql.reference import passage_ranks
from tests.sql.reference_ranking import contrast
from tests.sql.reference_words import part_bits
from tests.sql.support import EMBEDDER, Workspace, document, fact, half, mention, said, seeded

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


@pytest.mark.parametrize(
    ("name", "similar"), [("东京大学", "东京大学院"), ("Zürich Süd", "zürich sud"), ("Мосэнерго", "мосэнерга")]
)
def test_similar_names_are_found_in_any_script(workspace: Workspace, name: str, similar: str) -> None:
    workspace.ingest(document("one", mention(name), mention("Berlin")))
    assert entities(workspace.retrieve(mode="local", similar=[similar])) == {name: "similar name"}


def test_similar_names_are_seeds_where_no_exact_name_is_known(world: Workspace) -> None:
    found = entities(world.retrieve(mode="local", similar=["alpha motor", "zzz"]))
    assert found == {"Alpha Motors": "similar name", "Berlin": "hop"}
    assert entities(world.retrieve(mode="local", similar=["xyz", ""])) == {}
    world.ingest(document("more", mention("Alpha Motor")))
    assert entities(world.retrieve(mode="local", similar=["alpha motor"])) == {}, "there is one of exactly this name"


def test_channels_of_an_entity_add_up(world: Workspace) -> None:
    rows = world.retrieve(
        mode="hybrid",
        keys=["berlin"],
        similar=["alpha moters"],
        threshold=0.5,
        **vectors("x", "Berlin Alpha Motors", "Berlin lies on the Spree"),
    )
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


def test_of_many_similar_names_the_most_similar_is_found(workspace: Workspace) -> None:
    """Though it came last: more than a hundred are like enough to be looked at."""
    workspace.rows(
        "insert into pgrag.entity (name, tokens) select n, 10 from ("
        "select 'harbour office ' || lpad(n::text, 3, '0') as n from generate_series(0, 299) as n "
        "union all select 'Harbour officer') as names order by n like '%officer'"
    )
    workspace.rows(
        "insert into pgrag.entity_alias (key, entity_id) select lower(name), id from pgrag.entity order by id"
    )
    alike = "select count(*) from pgrag.entity_alias where public.similarity(key, 'harbour officers') >= .5"
    assert workspace.one(alike) > 200
    found = entities(workspace.retrieve(mode="local", similar=["harbour officers"]))
    assert next(iter(found)) == "Harbour officer"
    assert len(found) == 3


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


def test_a_passage_that_has_two_names_of_one_entity_is_linked_once(workspace: Workspace) -> None:
    """As after a merge, where the passage keeps a mention for each name."""
    first, second = mention("Acme"), mention("Acme Incorporated")
    workspace.ingest(document("two names", f"{first}\n{second}\nred"), document("one name", f"{first}\nblue"))
    acme = workspace.one("select entity_id from pgrag.entity_alias where key = 'acme'")
    for table in ("entity_alias", "mention"):
        workspace.rows(f"update pgrag.{table} set entity_id = $1", acme)  # noqa: S608 - tables of ours
    rows = workspace.retrieve(mode="local", ranking="weight", keys=["acme"], **vectors("red"))
    assert [row["score"] for row in layer(rows, "chunk")] == [1, 1]
    found = ranked(workspace, "blue", [], names=["acme"], steps=1, passages=0.0)
    assert [walked for _, walked, _ in found.values()] == pytest.approx([0.6 / 2] * 2), "both are as near to it"


@pytest.mark.parametrize("filter", [None, {"labels": ["in"]}])
def test_a_passage_that_states_a_relation_often_is_one_of_its_fifty_links(
    workspace: Workspace, filter: dict[str, Any] | None
) -> None:
    """With a filter and without: of passages the first fifty, not of facts."""
    often = document("often", "\n".join(fact("A", "B", f"says {n}") for n in range(60)), labels=["in"])
    once = [document(f"d{n:02}", fact("A", "B", f"states {n}"), labels=["in"]) for n in range(60)]
    workspace.ingest(often, *once)
    rows = workspace.retrieve(
        mode="global", ranking="weight", entity_tokens=0, chunk_top_k=100, threshold=-1, filter=filter,
        **vectors("", high="states 3"),
    )  # fmt: skip
    assert set(chunks(rows)) == {"often", *(f"d{n:02}" for n in range(49))}


def test_passages_by_pagerank_are_in_its_order_then_the_rest(world: Workspace) -> None:
    question = vectors("Alpha Motors", "Alpha Motors", "") | {"threshold": 0.5}
    rows = world.retrieve(mode="mix", ranking="pagerank", **asked("Alpha Motors"), **question)
    ranked = world.rows(
        "select uri, score from pgrag.rank_chunks($1, $2) with ordinality r (id, score, walked, near, n) "
        "join pgrag.chunk c using (id) join pgrag.document d on d.id = c.document_id order by n",
        half("Alpha Motors"),
        ["alpha", "motors"],
    )
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

VOCABULARY = [f"w{n}" for n in range(30)]
RECIPES: list[dict[str, Any]] = [
    {},
    {"lexical": 0.0},
    {"nearness": 0.0},
    {"nearness": 0.3},
    {"nearness": 1.0, "lexical": 0.5},
    {"nearness": 0.0, "steps": 0, "passages": 0.25},
    {"nearness": 0.5, "steps": 6, "support": 0.0, "tau": 0.03, "damping": 0.4},
    {"flat": 0.3, "sharp": 2.0, "most": 1.0},
    {"flat": 0.5, "sharp": 3.0, "most": 0.5, "support": 0.6},
    {"of_names": 0.0},
    {"of_names": 0.7, "nearness": 0.0},
    {"flat": 5.0, "sharp": 6.0},
    {"flat": 0.01, "sharp": 0.02},
]


def random_documents(seed: int, size: int, facts: int, names: int, filler: int = 12) -> list[NewDocument]:
    """Documents of one chunk with up to so many facts, some about one entity; every text differs from every other."""
    rng = seeded(seed)
    named = [f"Name{n}" for n in range(names)]
    docs = []
    for n in range(size):
        lines = [
            fact(*rng.choices(named, k=2), " ".join(rng.sample(VOCABULARY, 5)) + f" {n}.{i}", rng.choice([0.5, 1, 2]))
            for i in range(rng.randrange(facts + 1))
        ]
        lines += [mention(rng.choice(named))] if named and rng.random() < 0.3 else []
        docs.append(document(f"d{n}", "\n".join([*lines, " ".join(rng.choices(VOCABULARY, k=filler)) + f" nr{n}"])))
    return docs


def ranked(
    workspace: Workspace,
    question: str,
    asked: list[str],
    parts: list[list[str]] | None = None,
    names: list[str] | None = None,
    **recipe: Any,
) -> dict[str, tuple[float, float | None, float]]:
    """text -> (score, walked, near) of the passages of `rank_chunks`, in its order."""
    called = {"steps": "iterations", "of_names": "names"}
    bits = part_bits(parts or [])
    options: dict[str, Any] = {"part": [bits.get(word, 0) for word in asked]} if parts else {}
    options |= {"name": names} if names else {}
    options |= {name: recipe.pop(name) for name in ("lexical", "nearness") if name in recipe}
    arguments = "".join(f", p_{name} => ${n}" for n, name in enumerate(options, 3))
    if recipe:
        arguments += f", p_recipe => jsonb_populate_record(pgrag.shipped_recipe(), ${len(options) + 3})"
        options["recipe"] = json.dumps({called.get(name, name): value for name, value in recipe.items()})
    rows = workspace.rows(
        f"select body, score, walked, near from pgrag.rank_chunks($1, $2{arguments}) "  # noqa: S608 - names of ours
        "with ordinality r (id, score, walked, near, n) join pgrag.chunk c using (id) order by n",
        half(question),
        asked,
        *options.values(),
    )
    return {body: (score, walked, near) for body, score, walked, near in rows}


def assert_ranked_as_promised(
    workspace: Workspace,
    docs: list[NewDocument],
    asked: list[str],
    parts: list[list[str]] | None = None,
    names: list[str] | None = None,
    **recipe: Any,
) -> None:
    """Row by row: the score, what the walk brought and the nearness of every passage, and their order."""
    question = " ".join(asked)
    expected = passage_ranks(docs, question, asked, parts or (), names or (), **recipe)
    found = ranked(workspace, question, asked, parts, names, **recipe)
    assert set(found) == set(expected)
    for body, (score, walked, near) in found.items():
        assert near == pytest.approx(expected[body].near, abs=1e-6), (body, recipe)
        assert (walked or 0) == pytest.approx(expected[body].walked or 0, rel=5e-4), (body, recipe)
        assert score == pytest.approx(expected[body].score, abs=2e-4), (body, recipe)
    assert [score for score, *_ in found.values()] == sorted((score for score, *_ in found.values()), reverse=True)


@pytest.mark.parametrize(
    ("size", "facts", "names"),
    [(26, 3, 14), (28, 2, 5), (9, 2, 6), (4, 1, 3), (26, 0, 8), (15, 0, 0), (1, 2, 4), (1, 0, 0)],
    ids=["usual", "few names", "under ten", "four", "no facts", "no entities", "one passage", "one bare passage"],
)
def test_passages_are_ranked_by_the_recipe(workspace: Workspace, size: int, facts: int, names: int) -> None:
    """Small graphs, all within the candidate limits."""
    rng = seeded(size)
    docs = random_documents(size + names, size, facts, names)
    workspace.ingest(*docs)
    for recipe in RECIPES:
        first, second = rng.sample(VOCABULARY, 4), rng.sample(VOCABULARY, 3)
        both = list(dict.fromkeys([*first, *second]))
        assert_ranked_as_promised(workspace, docs, first, **recipe)
        keys = [f"name{n}" for n in rng.sample(range(16), 3)]
        assert_ranked_as_promised(workspace, docs, both, [first, second], ["", *keys, keys[0], "unknown"], **recipe)


def test_the_share_of_nearness_follows_the_larger_contrast(workspace: Workspace) -> None:
    """Passages that stand out and facts that do not, and the other way round."""
    rng = seeded(7)
    bare = [document(f"b{n}", " ".join(rng.choices(VOCABULARY, k=9)) + f" nr{n}") for n in range(14)]
    said_often = [
        document(f"f{n}", fact(f"A{n}", f"B{n}", f"w0 w1 {rng.choice(VOCABULARY)} s{n}") + f"\nnr{n} " + "filler " * 9)
        for n in range(12)
    ]
    said_once = document("one", fact("Lone", "Star", "zebra crossing") + "\n" + "filler " * 5)
    docs = [*bare, *said_often, said_once]
    workspace.ingest(*docs)
    contrasts = set()
    for asked in (["w0", "w1"], ["zebra", "crossing"], ["filler"], ["w4", "w5", "w6"]):
        question = " ".join(asked)
        of_passages = contrast(cosine(question, doc.body) for doc in docs)
        of_facts = contrast(cosine(question, f.text) for doc in docs for f in said(doc.body).facts)
        assert of_passages is not None
        assert of_facts is not None
        contrasts.add((of_passages > 1.1, of_facts > 1.1))
        for flat, sharp in ((0.9, 1.1), (0.6, 1.4)):
            assert_ranked_as_promised(workspace, docs, asked, flat=float(flat), sharp=sharp)
    assert len(contrasts) > 1, "the questions differ in what stands out"


@pytest.mark.parametrize("edge", [0.01, 1.0, 5.0])
def test_the_share_may_fall_at_once(workspace: Workspace, edge: float) -> None:
    """p_flat = p_sharp: nearness up to it, the graph above."""
    docs = random_documents(3, 20, 2, 8)
    workspace.ingest(*docs)
    assert_ranked_as_promised(workspace, docs, ["w1", "w2", "w3"], flat=edge, sharp=edge)


def test_few_passages_and_facts_have_no_contrast_and_the_graph_decides(workspace: Workspace) -> None:
    docs = random_documents(5, 9, 1, 4)
    assert sum(len(said(doc.body).facts) for doc in docs) < 10
    workspace.ingest(*docs)
    question, asked = "w1 w2", ["w1", "w2"]
    assert ranked(workspace, question, asked) == ranked(workspace, question, asked, nearness=0.0)
    assert ranked(workspace, question, asked) != ranked(workspace, question, asked, nearness=0.8)


def test_equal_passages_are_ranked_by_their_age(workspace: Workspace) -> None:
    workspace.ingest(*(document(f"d{n}", "red blue") for n in range(12)))
    for nearness in (None, 0.0, 0.3, 1.0):
        rows = workspace.rows(
            "select chunk_id, score from pgrag.rank_chunks($1, '{red}', p_nearness => $2)", half("red"), nearness
        )
        assert rows == [(workspace.chunk_ids(f"d{n}")[0], 1) for n in range(12)]


def test_ranking_parameters_are_heard(world: Workspace) -> None:
    sums = {}
    for share, steps in ((0.0, 0), (0.0, 6), (0.25, 0), (1.0, 0)):
        rows = ranked(world, "zebra", ["zebra"], passages=share, steps=steps)
        sums[share, steps] = sum(walked or 0 for _, walked, _ in rows.values())
    assert sums[0.0, 0] == 0
    assert sums[0.25, 0] == pytest.approx(0.25)
    assert sums[1.0, 0] == pytest.approx(1)
    assert 0 < sums[0.0, 6] < 1, "it came over the entities"


def test_passages_without_facts_or_entities_are_ranked_by_nearness(workspace: Workspace) -> None:
    workspace.ingest(*(document(f"d{n}", text) for n, text in enumerate(["red", "red blue", "green"])))
    rows = workspace.rows("select chunk_id, near from pgrag.rank_chunks($1, '{}')", half("red"))
    assert [i for i, _ in rows] == [workspace.chunk_ids(f"d{n}")[0] for n in range(3)]


def test_the_walk_goes_to_the_heaviest_ten_neighbours_of_a_seed(workspace: Workspace) -> None:
    """One passage, one seed of fourteen edges: 5 + ... + 14 and the edge to the passage share what the seed has."""
    insert_star(workspace, 14)
    workspace.ingest(document("p", mention("Hub")))
    [(_, walked, _)] = ranked(workspace, "zebra", [], names=["hub"], steps=1).values()
    assert walked == pytest.approx(0.4 * 0.4 + 0.6 * 0.6 / (95 + 1))


def test_the_walk_reaches_the_five_nearest_passages_of_a_seed_and_starts_from_the_twenty_nearest_of_all(
    workspace: Workspace,
) -> None:
    near = [document(f"near{n}", "question " * 9 + f"n{n}") for n in range(33)]
    of_hub = [
        document(f"hub{n}", mention("Hub") + "\n" + " ".join(f"x{n}y{i}" for i in range(3 + n))) for n in range(8)
    ]
    workspace.ingest(*near, *of_hub)
    found = ranked(workspace, "question", [], names=["hub"])
    nearest = sorted((doc.body for doc in of_hub), key=lambda body: -cosine("question", body))
    assert {doc.body for doc in of_hub if found[doc.body][1]} == set(nearest[:5])
    assert sum(walked is not None for _, walked, _ in found.values()) == 20 + 5
    assert len(found) == 41


def test_options_of_a_search_reach_the_ranking(workspace: Workspace) -> None:
    docs = random_documents(11, 20, 2, 8)
    workspace.ingest(*docs)
    first, second = ["w1", "w2", "w3"], ["w9", "w10"]
    orders = set()
    for recipe in ({}, {"nearness": 0.0}, {"nearness": 1.0}, {"lexical": 0.0, "nearness": 1.0}, {"lexical": 1.0}):
        expected = ranked(workspace, "w1 w4", [*first, *second], [first, second], **recipe)
        rows = workspace.retrieve(
            mode="mix", words=[*first, *second], parts=[1] * 3 + [2] * 2, **vectors("w1 w4"), **recipe
        )
        assert [row["body"] for row in layer(rows, "chunk")] == list(expected)
        orders.add(tuple(expected))
    assert len(orders) == 5


def test_names_that_are_asked_for_are_seeds_of_the_ranking(workspace: Workspace) -> None:
    docs = random_documents(12, 20, 2, 8)
    workspace.ingest(*docs)
    orders = set()
    for names in ([], ["name3"], ["name5", "name6"]):
        expected = ranked(workspace, "w1 w4", ["w1", "w4"], names=names, nearness=0.0)
        rows = workspace.retrieve(mode="mix", words=["w1", "w4"], similar=names, nearness=0.0, **vectors("w1 w4"))
        assert [row["body"] for row in layer(rows, "chunk")] == list(expected)
        orders.add(tuple(expected))
    assert len(orders) == 3


def test_passages_by_vector_without_words_are_in_lightrag_s_order(workspace: Workspace) -> None:
    """Its round robin: a passage by vector, one of the entities, one of the relations; a passage counts once."""
    workspace.ingest(
        *(document(f"near{n}", "question " * 4 + f"near{n} " * n) for n in range(1, 4)),
        document("entity2", mention("Hub") + "\nquestion " + "c " * 8),
        document("entity1", mention("Hub") + "\nquestion " + "b " * 4),
        document("relation2", fact("X", "Y", "they trade") + "\nquestion " + "e " * 16),
        document("relation1", fact("X", "Y", "they trade") + "\nquestion " + "d " * 10),
        document("both", mention("Hub") + "\n" + fact("X", "Y", "they trade") + "\n" + "f " * 30),
    )
    hub = workspace.one("select tokens from pgrag.entity where name = 'Hub'")
    rows = workspace.retrieve(
        mode="mix", ranking="vector", lexical=0.0, keys=["hub"], threshold=0.5, words=["b", "c", "e"],
        entity_tokens=hub, **vectors("question", high="X Y they trade"),
    )  # fmt: skip
    assert (list(entities(rows)), list(relations(rows))) == (["Hub"], ["X-Y"])
    assert list(chunks(rows)) == [
        "near1", "entity1", "relation1",
        "near2", "entity2", "relation2",
        "near3", "both",
    ]  # fmt: skip
    assert chunks(rows)["both"] == "entity+vector", "not in the turn of the relations, where it is the third"
    assert chunks(rows)["relation1"] == "relation+vector"
