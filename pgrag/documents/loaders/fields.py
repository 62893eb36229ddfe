"""Fields that documents carry in several formats."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pgrag.errors import UsageError


def labels_of(value: Any) -> tuple[str, ...]:
    """Labels from a list, or from one string with commas; each once, in order. Raises UsageError for anything else."""
    if isinstance(value, str):
        value = value.split(",")
    items = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str | int | float | None) for item in items):
        raise UsageError('has "labels" that are not a list of strings')
    found = (str(item).strip() for item in items if item is not None)
    return tuple(dict.fromkeys(label for label in found if label))


def in_utc(moment: datetime | None) -> datetime | None:
    """The moment in UTC, which is also its zone if it names none. Raises UsageError where that is before year 1."""
    try:
        return moment if moment is None else moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise UsageError(f'has a "published_at" that is out of range: {moment}') from None


def moment_of(value: Any) -> datetime | None:
    """An ISO 8601 date or time in UTC, which is also its zone if it names none; None for none.

    Raises UsageError for anything else.
    """
    if value is None or value == "":
        return None
    try:
        return in_utc(datetime.fromisoformat(value.strip()))
    except (AttributeError, ValueError, OverflowError):
        raise UsageError('has a "published_at" that is no ISO 8601 date such as 2024-05-31') from None
