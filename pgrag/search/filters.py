"""Which documents a search may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

from pgrag.errors import UsageError
from pgrag.text.folding import clean, clean_json

Texts = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions on documents; all that are given must hold. Nothing that only other documents say is then told.

    `metadata` is contained in the document's, at every level; `uri` is a glob, or globs of which one must match (`*`
    any characters, `/` too, `?` one); `documents` are whole uris, of which it must be one; `labels` are all wanted, of
    `any_label` one is; `published_from` and `published_until` bound the date, both included: a `date` is the whole day,
    a moment without a zone is of UTC, and documents without a date are left out. None is no condition, an empty list of
    alternatives is met by no document. Raises UsageError for values of another kind.
    """

    metadata: Mapping[str, Any] = field(default_factory=dict)
    uri: Texts | None = None
    documents: Texts | None = None
    labels: Texts = ()
    any_label: Texts | None = None
    published_from: datetime | date | None = None
    published_until: datetime | date | None = None

    def __post_init__(self) -> None:
        self.conditions()

    def conditions(self) -> dict[str, Any]:
        """The conditions as the parameter `p_filter` of `retrieve()` has them; empty where there are none."""
        if not isinstance(self.metadata, Mapping):
            raise UsageError("filter metadata: give a mapping, such as {'team': 'search'}")
        given = {
            "metadata": clean_json(dict(self.metadata)) or None,
            "uri": _texts("uri", self.uri),
            "documents": _texts("documents", self.documents),
            "labels": _texts("labels", self.labels) or None,
            "any_label": _texts("any_label", self.any_label),
            "published_from": _moment("published_from", self.published_from, time.min),
            "published_until": _moment("published_until", self.published_until, time.max),
        }
        return {name: value for name, value in given.items() if value is not None}


def _texts(name: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence | set | frozenset) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"filter {name}: give a text or a list of texts")
    return [clean(text) for text in texts]


def _moment(name: str, value: Any, at: time) -> str | None:
    if value is None:
        return None
    if not isinstance(value, date):
        raise UsageError(f"filter {name}: give a date or a datetime")
    moment = value if isinstance(value, datetime) else datetime.combine(value, at)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
