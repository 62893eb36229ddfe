"""A workspace whose texts change: what was deleted lies dead in the indexes of vectors, and hides nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.sql.support import Workspace, document, fact, half

PARTS = 60
VECTORS = ("chunk_vector", "fact_vector", "entity_vector", "relation_vector")


def part(number: int, version: int) -> str:
    """A part of a manual: each version says something else of the same things."""
    return fact(f"Pump {number}", f"Valve {number}", f"Pump {number} feeds valve {number}, edition {version}.")


def manual(version: int) -> Sequence[str]:
    return [part(number, version) for number in range(PARTS)]


def found(workspace: Workspace, mode: str, layer: str, top_k: int = 40) -> set[str]:
    question = half("Which pump feeds which valve?")
    rows = workspace.retrieve(
        question=question.to_numpy(), low=question.to_numpy(), high=question.to_numpy(), mode=mode, top_k=top_k,
        chunk_top_k=20, threshold=-1.0, entity_tokens=1_000_000, relation_tokens=1_000_000, total_tokens=1_000_000,
    )  # fmt: skip
    return {str(row["id"]) for row in rows if row["layer"] == layer}


@pytest.fixture
def manual_of_years(own_workspace: Workspace) -> Workspace:
    """The ninth edition, with the eight before dead in the indexes."""
    workspace = own_workspace
    for table in VECTORS:
        workspace.rows(f"alter table pgrag.{table} set (autovacuum_enabled = false)")
    for version in range(9):
        workspace.ingest(document("manual", *manual(version)))
    return workspace


def test_an_updated_manual_is_found_whole(manual_of_years: Workspace) -> None:
    workspace = manual_of_years
    assert workspace.count("chunk_vector") == PARTS
    assert len(found(workspace, "naive", "chunk")) == 20
    assert len(found(workspace, "local", "entity")) >= 40
    assert len(found(workspace, "global", "relation")) == 40


def test_half_a_corpus_is_found_whole(own_workspace: Workspace) -> None:
    workspace = own_workspace
    for table in VECTORS:
        workspace.rows(f"alter table pgrag.{table} set (autovacuum_enabled = false)")
    workspace.ingest(*(document(f"doc/{number}", *manual(number)) for number in range(10)))
    workspace.delete(*(f"doc/{number}" for number in range(9)))
    workspace.refresh()
    assert len(found(workspace, "naive", "chunk")) == 20
    assert len(found(workspace, "global", "relation")) == 40
