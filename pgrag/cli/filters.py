"""The options that say which documents a search may see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgrag.errors import UsageError

if TYPE_CHECKING:
    from pgrag.search.filters import Filter

PANEL = "Documents"


def _repeated(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=PANEL)


Metadata = Annotated[
    list[str] | None,
    _repeated(
        "--filter-metadata", "KEY=VALUE", "Only with this metadata, or a JSON object contained in it; repeatable."
    ),
]
Labels = Annotated[list[str] | None, _repeated("--label", "LABEL", "Only with this label; repeatable: all of them.")]
AnyLabel = Annotated[list[str] | None, _repeated("--any-label", "LABEL", "Only with one of these labels; repeatable.")]
Uri = Annotated[
    list[str] | None,
    _repeated("--uri", "GLOB", "Only with such a uri: * any characters, ? one; repeatable: any of them."),
]
OnlyDocument = Annotated[
    list[str] | None, _repeated("--document", "URI", "Only this document; repeatable: any of them.")
]
Since = Annotated[
    str | None,
    typer.Option(metavar="DATE", help="Only published then or later, as 2024-05-31.", rich_help_panel=PANEL),
]
Until = Annotated[
    str | None, typer.Option(metavar="DATE", help="Only published until then, included.", rich_help_panel=PANEL)
]


def filter_of(
    metadata: Sequence[str] | None,
    labels: Sequence[str] | None,
    any_label: Sequence[str] | None,
    uri: Sequence[str] | None,
    documents: Sequence[str] | None,
    since: str | None,
    until: str | None,
) -> Filter | None:
    """The filter that the options make; None without any. Raises UsageError."""
    from pgrag.search.filters import Filter

    if not (metadata or labels or any_label or uri or documents or since is not None or until is not None):
        return None
    return Filter(
        metadata=_metadata(metadata or ()), labels=labels or (), any_label=any_label or None, uri=uri or None,
        documents=documents or None, published_from=_moment("--since", since),
        published_until=_moment("--until", until),
    )  # fmt: skip


def _metadata(given: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if text.lstrip().startswith("{"):
            try:
                found |= json.loads(text)
            except (ValueError, RecursionError):
                raise UsageError(f"--filter-metadata {text!r} is no JSON object") from None
        elif key and equals:
            found[key] = value
        else:
            raise UsageError(f"--filter-metadata {text!r}: write KEY=VALUE or a JSON object")
    return found


def _moment(option: str, given: str | None) -> date | None:
    """A date, which is a whole day, or a moment."""
    if given is None:
        return None
    for read in (date.fromisoformat, datetime.fromisoformat):
        try:
            return read(given.strip())
        except ValueError:
            continue
    raise UsageError(f"{option} {given!r} is no ISO 8601 date such as 2024-05-31")
