"""Filters as callers write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from pgrag import Filter, PgragError
from pgrag.cli.filters import filter_of
from pgrag.errors import UsageError


def test_conditions_are_those_that_were_given() -> None:
    assert Filter().conditions() == {}
    assert Filter(metadata={}, labels=[]).conditions() == {}
    assert Filter(labels="a", uri="docs/*", documents=("x",), any_label={"b"}).conditions() == {
        "labels": ["a"],
        "uri": ["docs/*"],
        "documents": ["x"],
        "any_label": ["b"],
    }
    assert Filter(metadata={"a": {"b": (1, True, None)}}).conditions() == {"metadata": {"a": {"b": [1, True, None]}}}


def test_an_empty_list_of_alternatives_is_a_condition() -> None:
    """Who may see no document sees none."""
    assert Filter(uri=[], documents=(), any_label=[]).conditions() == {"uri": [], "documents": [], "any_label": []}


def test_dates_are_whole_days_and_moments_have_a_zone() -> None:
    day = Filter(published_from=date(2024, 5, 31), published_until=date(2024, 5, 31)).conditions()
    assert day == {
        "published_from": "2024-05-31T00:00:00+00:00",
        "published_until": "2024-05-31T23:59:59.999999+00:00",
    }
    zone = timezone(timedelta(hours=2))
    moments = Filter(published_from=datetime(2024, 5, 31, 12, tzinfo=zone), published_until=datetime(2024, 6, 1, 12))
    assert moments.conditions() == {
        "published_from": "2024-05-31T12:00:00+02:00",
        "published_until": "2024-06-01T12:00:00+00:00",
    }


def test_what_cannot_be_stored_is_left_out_as_in_documents() -> None:
    chosen = Filter(labels="a\0b", uri="c\ud800", metadata={"k\0": "v\0", "n": float("nan")})
    assert chosen.conditions() == {"labels": ["ab"], "uri": ["c"], "metadata": {"k": "v", "n": None}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": 3}, "filter labels: give a text"),
        ({"labels": ["a", 3]}, "filter labels"),
        ({"uri": b"a"}, "filter uri"),
        ({"documents": {"a": 1}}, "filter documents"),
        ({"any_label": [["a"]]}, "filter any_label"),
        ({"metadata": "team=x"}, "filter metadata: give a mapping"),
        ({"metadata": [("a", 1)]}, "filter metadata"),
        ({"published_from": "2024-05-31"}, "filter published_from: give a date or a datetime"),
        ({"published_until": 2024}, "filter published_until"),
    ],
)
def test_wrong_values_are_refused_at_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Filter(**given)


def test_deep_metadata_is_refused() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    with pytest.raises(PgragError, match="nested"):
        Filter(metadata=deep)


# ---------------------------------------------------------------- the command line


def options(**given: Any) -> Filter | None:
    names = ("metadata", "labels", "any_label", "uri", "documents", "since", "until")
    return filter_of(*(given.get(name) for name in names))


def test_options_make_a_filter() -> None:
    assert options() is None
    assert options(metadata=[], labels=[], uri=[]) is None
    chosen = options(
        metadata=["team=search", '{"n": 3, "deep": {"odd": true}}', "x=a=b"], labels=["a", "b"], any_label=["c"],
        uri=["docs/*"], documents=["d"], since="2024-05-31", until="2024-06-30",
    )  # fmt: skip
    assert chosen is not None
    assert chosen.conditions() == {
        "metadata": {"team": "search", "n": 3, "deep": {"odd": True}, "x": "a=b"},
        "labels": ["a", "b"],
        "any_label": ["c"],
        "uri": ["docs/*"],
        "documents": ["d"],
        "published_from": "2024-05-31T00:00:00+00:00",
        "published_until": "2024-06-30T23:59:59.999999+00:00",
    }
    moment = options(until="2024-05-31T12:00:00+02:00")
    assert moment is not None
    assert moment.published_until == datetime(2024, 5, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metadata": ["team"]}, "write KEY=VALUE or a JSON object"),
        ({"metadata": ["=x"]}, "write KEY=VALUE"),
        ({"metadata": ['{"a": ']}, "is no JSON object"),
        ({"since": "yesterday"}, "--since 'yesterday' is no ISO 8601 date"),
        ({"until": ""}, "--until '' is no ISO 8601 date"),
        ({"until": "2024-02-30"}, "--until"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options(**given)
