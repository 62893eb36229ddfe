"""The passages that questions are drafted from: which, how many, and the same ones for the same texts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sql.support import Workspace, document, fact

Draws = dict[int, list[tuple[str, str, int]]]


def draws(workspace: Workspace, kind: str, seed: str = "", limit: int = 100) -> Draws:
    """(subject, uri, ordinal) of the passages of each draw."""
    found: Draws = {}
    for row in workspace.do(workspace.store.draw_passages(kind, seed, limit)):
        found.setdefault(row["draw"], []).append((row["subject"], row["uri"], row["ordinal"]))
    return found


def about(name: str, number: int) -> str:
    return fact(name, f"Other{number}", f"{name} met Other{number} on day {number}")


@pytest.fixture
def filled(workspace: Workspace) -> Workspace:
    """Seven documents: Zoe in three, Acme in two, Hub in 21 chunks of one, Twin in two equal chunks and no other."""
    workspace.ingest(
        document("a", about("Zoe", 1), about("Hub", 2), "nothing is stated here"),
        document("b", about("Zoe", 3), about("Zoe", 4), about("Acme", 5)),
        document("c", about("Zoe", 6), about("Acme", 7)),
        document("hub", *[about("Hub", n) for n in range(10, 31)]),
        document("one", about("Twin", 40)),
        document("two", about("Twin", 40)),
        document("bare", "nothing at all"),
    )
    return workspace


def places(found: list[tuple[str, str, int]]) -> set[tuple[str, int]]:
    return {(uri, ordinal) for _, uri, ordinal in found}


@pytest.mark.parametrize("kind", ["single_fact", "null"])
def test_single_passages_come_from_every_document_in_turn(filled: Workspace, kind: str) -> None:
    found = draws(filled, kind)
    assert list(found) == list(range(1, 33))
    assert all(len(passages) == 1 and passages[0][0] == "" for passages in found.values())
    first = {passages[0][1] for number, passages in found.items() if number <= 7}
    assert first == {"a", "b", "c", "hub", "one", "two", "bare"}
    assert max(number for number, passages in found.items() if passages[0][1] != "hub") <= 7 + 4 + 3
    of_a = [ordinal for [(_, uri, ordinal)] in found.values() if uri == "a"]
    assert of_a[-1] == 2, "what states nothing comes last"


def test_a_pair_shares_an_entity_across_documents(filled: Workspace) -> None:
    found = draws(filled, "multi_hop")
    assert {passages[0][0] for passages in found.values()} == {"Zoe", "Acme"}, "not the hub, and not the equal texts"
    for passages in found.values():
        assert len(passages) == len({uri for _, uri, _ in passages}) == 2
        assert len({subject for subject, _, _ in passages}) == 1
    acme = next(passages for passages in found.values() if passages[0][0] == "Acme")
    assert places(acme) == {("b", 2), ("c", 1)}


def test_an_entity_of_many_documents_gives_three_pairs(workspace: Workspace) -> None:
    workspace.ingest(*(document(f"d{n}", about("Zoe", n)) for n in range(9)))
    found = draws(workspace, "multi_hop")
    assert list(found) == [1, 2, 3]
    assert len({place for passages in found.values() for place in places(passages)}) == 6
    assert len(draws(workspace, "multi_hop", limit=2)) == 2


def test_an_aggregation_has_three_to_five_passages_of_one_entity(filled: Workspace) -> None:
    assert [(p[0][0], places(p)) for p in draws(filled, "aggregation").values()] == [
        ("Zoe", {("a", 0), ("b", 0), ("b", 1), ("c", 0)})
    ]


def test_a_theme_is_the_neighbourhood_of_a_well_connected_entity(filled: Workspace) -> None:
    found = {passages[0][0]: passages for passages in draws(filled, "thematic").values()}
    assert set(found) == {"Zoe", "Acme", "Hub"}
    assert len(found["Hub"]) == 5
    assert places(found["Acme"]) == {("b", 2), ("c", 1)}
    assert draws(filled, "riddle") == {}


@pytest.mark.parametrize("kind", ["single_fact", "multi_hop", "aggregation", "thematic", "null"])
def test_the_same_texts_and_seed_give_the_same_draws(filled: Workspace, kind: str) -> None:
    def shown(seed: str) -> list[Any]:
        return [passages for _, passages in sorted(draws(filled, kind, seed).items())]

    first = shown("x")
    assert first
    filled.delete("bare")
    filled.ingest(document("bare", "nothing at all"))
    assert shown("x") == first, "ids play no part"
    if kind in ("single_fact", "null"):
        assert shown("y") != first
    assert draws(filled, kind, "x", 1) == {1: first[0]}
