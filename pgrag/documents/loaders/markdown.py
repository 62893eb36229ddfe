"""Markdown files: simple YAML front matter (key: value, lists) becomes title, date, labels and metadata."""

from __future__ import annotations

import re
from typing import Any

from pgrag.documents.chunker import first_title
from pgrag.documents.loaders.fields import labels_of, moment_of
from pgrag.errors import UsageError
from pgrag.types import Document

_FRONT_MATTER = re.compile(r"---[ \t]*\n((?:(?!(?:---|\.\.\.)[ \t]*\n).*\n){0,500}?)(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_PAIR = re.compile(r"([A-Za-z_][\w.-]{0,80}(?: [\w.-]{1,40}){0,3})[ \t]*:(?:[ \t]+(.*))?$")
_ITEM = re.compile(r"[ \t]*-[ \t]+(.*)$")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(\.\d{1,17})?")
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None, "": None}


def markdown_document(text: str, uri: str) -> Document:
    """The document without its front matter. The title is the front matter's, else the first heading of level 1."""
    fields, body = split_front_matter(text)
    title = fields.pop("title", None)
    labels = [label for name in ("labels", "tags") for label in labels_of(fields.pop(name, None))]
    published_at = None
    for name in ("date", "published_at"):
        try:
            published_at = moment_of(fields.get(name)) or published_at
        except UsageError:
            continue  # some other kind of date: it stays in the metadata as written
        fields.pop(name, None)
    return Document(
        uri=uri,
        body=body,
        title=str(title) if title else first_title(body),
        mime="text/markdown",
        metadata=fields,
        labels=tuple(dict.fromkeys(labels)),
        published_at=published_at,
    )


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """(fields, rest). Text that does not begin with front matter, or with nothing else after it, is all rest."""
    match = _FRONT_MATTER.match(text)
    fields = _fields(match[1].splitlines()) if match else None
    if match is None or fields is None or not text[match.end() :].strip():
        return {}, text
    return fields, text[match.end() :]


def _fields(lines: list[str]) -> dict[str, Any] | None:
    """The pairs of simple YAML; None if a line is something else. Nested mappings are left out."""
    fields: dict[str, Any] = {}
    name = ""
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if pair := _PAIR.match(line):
            name = pair[1]
            fields[name] = _value(pair[2] or "")
        elif name and (item := _ITEM.match(line)):
            known = fields[name]
            fields[name] = [*(known if isinstance(known, list) else ()), _scalar(item[1])]
        elif not name or not line[0].isspace():
            return None
    return fields


def _value(written: str) -> Any:
    written = written.strip()
    if written.startswith("[") and written.endswith("]"):
        return [_scalar(item) for item in written[1:-1].split(",") if item.strip()]
    return _scalar(written)


def _scalar(written: str) -> Any:
    written = written.strip()
    if len(written) > 1 and written[0] == written[-1] and written[0] in "\"'":
        return written[1:-1]
    if written.lower() in _CONSTANTS:
        return _CONSTANTS[written.lower()]
    if number := _NUMBER.fullmatch(written):
        return float(written) if number[1] else int(written)
    return written
