"""What analysts read."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.sql.support import CODE, Workspace, document, fact, mention

DAY = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def filled(workspace: Workspace) -> Workspace:
    """One complete document, one that failed, one that is empty and one that waits."""
    workspace.ingest(
        document(
            "good", fact("Zoe", "Acme", "Zoe runs Acme — 東京 🏯", 2, "work"), mention("Acme", "firm", "a firm"),
            title="Good", headings=("Top",), published_at=DAY, labels=("x",), metadata={"a": 1},
        )
    )  # fmt: skip
    workspace.put(document("bad", "fails", "waits"), document("empty", "nothing"))
    fails, _, nothing = claimed = workspace.claim()
    workspace.rows("select pgrag.fail_chunks($1, $2, $3, $4, 1, 0)", CODE, [fails.id], [fails.token], ["too odd"])
    workspace.save(nothing)
    workspace.do(workspace.store.release_chunks([claimed[1].token]))
    return workspace


def records(workspace: Workspace, view: str, order: str) -> list[dict[str, Any]]:
    with psycopg.connect(workspace.dsn, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute(f"select * from pgrag.{view} order by {order}").fetchall()  # noqa: S608 - ours


def test_documents(filled: Workspace) -> None:
    bad, empty, good = records(filled, "documents", "uri")
    assert [row["status"] for row in (bad, empty, good)] == ["pending", "empty", "complete"]
    counts = [(row["chunks"], row["chunks_done"], row["chunks_failed"]) for row in (bad, empty, good)]
    assert counts == [(2, 0, 1), (1, 1, 0), (2, 2, 0)]
    [(body,)] = filled.rows("select body from pgrag.document where uri = 'good'")
    expected = {"uri": "good", "title": "Good", "mime": "text/plain", "characters": len(body), "labels": ["x"]}
    assert {name: good[name] for name in expected} == expected
    assert (good["metadata"], good["published_at"], good["error"]) == ({"a": 1}, DAY, None)
    assert good["tokens"] == filled.one("select sum(tokens)::int from pgrag.chunk where document_id = $1", good["id"])


def test_entities_and_relations(filled: Workspace) -> None:
    acme, zoe = records(filled, "entities", "name")
    assert acme == {
        "id": acme["id"], "name": "Acme", "type": "firm", "description": "(2024-05-01) a firm", "degree": 1,
        "mentions": 2, "aliases": ["acme"],
    }  # fmt: skip
    assert (zoe["name"], zoe["type"], zoe["description"], zoe["degree"], zoe["mentions"]) == ("Zoe", "", "", 1, 1)
    [relation] = records(filled, "relations", "id")
    names = {acme["id"]: "Acme", zoe["id"]: "Zoe"}
    assert (names[relation["source_id"]], names[relation["target_id"]]) == (relation["source"], relation["target"])
    assert {relation["source"], relation["target"]} == {"Acme", "Zoe"}
    assert (relation["keywords"], relation["weight"]) == (["work"], 2)
    assert relation["description"] == "(2024-05-01) Zoe runs Acme — 東京 🏯"


def test_sources_lead_from_a_fact_to_the_characters_of_its_document(filled: Workspace) -> None:
    [row] = records(filled, "sources", "fact_id")
    assert (row["fact"], row["entities"], row["uri"], row["title"]) == (
        "Zoe runs Acme — 東京 🏯",
        ["Zoe", "Acme"],
        "good",
        "Good",
    )
    assert (row["keywords"], row["strength"], row["ordinal"], row["headings"], row["page"]) == (
        ["work"],
        2,
        0,
        ["Top"],
        None,
    )
    assert row["relation_id"] == filled.one("select id from pgrag.relation")
    wrong = "select count(*) from pgrag.sources s join pgrag.document d on d.id = s.document_id where passage <> "
    assert filled.one(wrong + "substr(d.body, s.start_char + 1, s.end_char - s.start_char)") == 0
    assert row["fact"] in row["passage"]


def test_failures(filled: Workspace) -> None:
    rows = filled.rows("select uri, ordinal, error, attempts, retry_at = 'infinity' from pgrag.failures")
    assert rows == [("bad", 0, "too odd", 1, True)]


def test_workspace_stats(filled: Workspace) -> None:
    [row] = records(filled, "workspace_stats()", "1")
    assert row.pop("bytes") > 100_000
    assert row == {
        "embedding_model": "words", "dimension": 384, "documents": 3, "documents_failed": 0, "documents_empty": 1,
        "chunks": 5, "chunks_pending": 1, "chunks_failed": 1, "entities": 2, "relations": 1, "facts": 1, "mentions": 3,
        "stale": 0,
    }  # fmt: skip


def test_an_empty_workspace_has_empty_views(workspace: Workspace) -> None:
    for view in ("documents", "entities", "relations", "sources", "failures"):
        assert records(workspace, view, "1") == []
    [row] = records(workspace, "workspace_stats()", "1")
    assert (row["documents"], row["chunks"], row["chunks_pending"], row["facts"]) == (0, 0, 0, 0)


def test_the_views_need_no_search_path_and_no_extension_in_sight(filled: Workspace) -> None:
    """As an analyst's tool sees them: another search_path, plain text results."""
    script = (
        "set search_path = pg_catalog; select uri || ':' || status from pgrag.documents order by uri; "
        "select source || '-' || target from pgrag.relations; select count(*) from pgrag.retrieve(p_keys => '{acme}')"
    )
    psql = shutil.which("psql")
    if psql:
        command = [psql, "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", filled.dsn, "-c", script]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    else:
        with psycopg.connect(filled.dsn) as connection:
            results = [connection.execute(statement) for statement in script.split("; ")]
            lines = [str(row[0]) for cursor in results if cursor.description for row in cursor.fetchall()]
    [relation] = filled.rows("select source || '-' || target from pgrag.relations")
    assert lines == ["bad:pending", "empty:empty", "good:complete", *relation, "5"]
