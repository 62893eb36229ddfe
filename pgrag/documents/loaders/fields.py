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


def moment_of(value: Any) -> datetime | None:
    """An ISO 8601 date or time in UTC, which is also its zone if it names none; None for none.

    Raises UsageError for anything else.
    """
    if value is None or value == "":
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (AttributeError, ValueError, OverflowError):
        raise UsageError('has a "published_at" that is no ISO 8601 date such as 2024-05-31') from None
