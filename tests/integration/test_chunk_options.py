"""How documents are cut, through the whole library: separators, own chunkers, what a changed option does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from pgrag import Document
from pgrag.config import load_settings
from pgrag.errors import ConfigError, UsageError
from pgrag.types import Chunk, DocumentFailure
from tests.support.rag import extractor, ingest, open_rag, rows, value, with_rag

LOG = "Alder met Birch.\n---\nCedar met Dogwood.\n---\nElm met Fir."
BODIES = "select c.ordinal, c.start_char, c.end_char, c.body from chunk c order by c.document_id, c.ordinal"


def by_line(document: Document) -> Iterable[str]:
    """Each line that is no rule."""
    return [line for line in document.body.split("\n") if line != "---"]


def bad_second(document: Document) -> list[Chunk]:
    """One chunk too far in documents that name Elm."""
    chunks = [Chunk(0, document.body, 0, len(document.body), 1)]
    return [*chunks, Chunk(1, "x", 500, 501, 1)] if "Elm" in document.body else chunks


def with_own(dsn: str, chunker: Any, texts: dict[str, str], **details: Any) -> Any:
    documents = [Document(uri, body) for uri, body in texts.items()]

    async def work(rag: Any) -> Any:
        return await rag.ingest(documents)

    return with_rag(dsn, work, chunker=chunker, **details)


def test_a_separator_by_setting(words_dsn: str) -> None:
    report = ingest(words_dsn, {"log": LOG}, split_by_character="---\n")
    assert (report.chunks, report.failures) == (3, ())
    assert rows(words_dsn, BODIES) == [
        (0, 0, 21, "Alder met Birch.\n---\n"),
        (1, 21, 44, "Cedar met Dogwood.\n---\n"),
        (2, 44, 56, "Elm met Fir."),
    ]
    assert LOG[44:56] == "Elm met Fir."


def test_a_part_that_is_too_long_fails_its_document_only(words_dsn: str) -> None:
    texts = {"a": LOG, "b": "Gorse met Hazel. " * 30 + "---\nIvy."}
    strict = {"split_by_character": "---\n", "split_by_character_only": True, "chunk_tokens": 32}
    report = ingest(words_dsn, texts, **strict)
    assert report.added == 1
    [failure] = report.failures
    assert (failure.uri, failure.ordinal) == ("b", None)
    assert "tokens between two separators (characters 0 to 514), and chunk_tokens is 32" in failure.error
    again = ingest(words_dsn, {"b": texts["b"]}, **{**strict, "split_by_character_only": False})
    assert (again.added, again.failures) == (1, ())


@pytest.mark.parametrize(
    "changed", [{"split_by_character": "\n"}, {"split_by_character": "---\n", "split_by_character_only": True}]
)
def test_a_changed_option_is_reported_and_not_silently_applied(words_dsn: str, changed: dict[str, Any]) -> None:
    ingest(words_dsn, {"log": LOG}, split_by_character="---\n")
    same = ingest(words_dsn, {"log": LOG}, split_by_character="---\n")
    assert (same.skipped, same.changed_settings) == (1, ())
    other = ingest(words_dsn, {"log": LOG}, **changed)
    assert (other.skipped, other.changed_settings) == (1, ("log",))
    assert value(words_dsn, "select count(*) from chunk") == 3


def test_the_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"split_by_character_only given as .*needs split_by_character"):
        load_settings({"split_by_character_only": True}, environ={})
    with pytest.raises(ConfigError, match=r"split_by_character .*at least 1 character"):
        load_settings({"split_by_character": ""}, environ={})
    given = load_settings({}, environ={"PGRAG_SPLIT_BY_CHARACTER": "\n\n", "PGRAG_SPLIT_BY_CHARACTER_ONLY": "true"})
    assert (given.split_by_character, given.split_by_character_only) == ("\n\n", True)
    with pytest.raises(UsageError, match="chunker is a function from a Document to its chunks, not str"):
        open_rag("postgresql://nowhere/x", chunker="by line")


def test_an_own_chunker(words_dsn: str) -> None:
    asked = extractor()
    report = with_own(words_dsn, by_line, {"log": LOG}, extracts=asked)
    assert (report.chunks, report.failures) == (3, ())
    bodies = ["Alder met Birch.", "Cedar met Dogwood.", "Elm met Fir."]
    assert [row[3] for row in rows(words_dsn, BODIES)] == asked.asked == bodies
    assert all(LOG[start:end] == body for _, start, end, body in rows(words_dsn, BODIES))
    result = with_rag(words_dsn, lambda rag: rag.query("Whom met Cedar?"))
    assert LOG[result.references[0].start : result.references[0].end] == "Cedar met Dogwood."
    changed = ingest(words_dsn, {"log": LOG})
    assert changed.changed_settings == ("log",), "without it, documents would be cut otherwise"


def test_a_chunk_that_is_wrong_fails_its_document_only(words_dsn: str) -> None:
    report = with_own(words_dsn, bad_second, {"a": "Elm met Fir.", "b": "Alder met Birch."})
    assert report.added == 1
    assert report.failures == (DocumentFailure("a", "chunk 1 of the chunker: 500 to 501 is no span of 12 characters"),)
    assert rows(words_dsn, "select uri from document") == [("b",)]


def test_what_every_document_of_a_call_gets(words_dsn: str) -> None:
    own, given = datetime(2020, 1, 2, tzinfo=UTC), datetime(2024, 5, 31, tzinfo=UTC)
    documents = [
        Document("a", "Alder met Birch."),
        Document("b", "Elm met Fir.", metadata={"team": "ships", "page": 2}, labels=("old",), published_at=own),
    ]

    async def work(rag: Any) -> Any:
        options: dict[str, Any] = {"labels": ["new"], "metadata": {"team": "trees", "year": "2024"}}
        first = await rag.ingest(documents, published_at=given, **options)
        again = await rag.ingest(documents, published_at=given, **options)
        return first, again, await rag.documents()

    first, again, (a, b) = with_rag(words_dsn, work)
    assert (first.added, again.skipped) == (2, 2)
    assert (a.metadata, a.labels, a.published_at) == ({"team": "trees", "year": "2024"}, ("new",), given)
    assert (b.metadata, b.labels) == ({"team": "ships", "page": 2, "year": "2024"}, ("old", "new"))
    assert b.published_at == own
