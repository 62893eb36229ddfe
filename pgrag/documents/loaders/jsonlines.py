"""JSON lines, a document a line: `{"id" or "uri", "title", "text" or "body", "metadata", "labels", "published_at"}`."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from typing import IO, Any, NoReturn
from urllib.parse import quote, unquote

from pgrag.documents.loaders.decoding import decode, tidy
from pgrag.documents.loaders.fields import labels_of, moment_of
from pgrag.errors import DocumentError, UsageError
from pgrag.text.folding import clean_json
from pgrag.types import Document, DocumentFailure

_KNOWN = {"id", "uri", "title", "text", "body", "metadata", "labels", "published_at", "mime"}
_SAFE = "/:@!$&'()*+,;=?-._~"  # what a URI's fragment may hold as it is (RFC 3986, section 3.5)


def json_line_documents(stream: IO[bytes], uri: str, max_bytes: int) -> Iterator[Document | DocumentFailure]:
    """The document of each line. A line that is none is a failure with the file's name and the line's number.

    The uri is the line's own, else `<uri>#<id>`, else `<uri>#line-<number>`; other fields go to the metadata.
    Raises DocumentError when there is no line at all, or the file is UTF-16.
    """
    number, is_empty = 0, True
    seen: set[str] = set()
    while line := stream.readline(max_bytes + 1):
        number += 1
        if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DocumentError("is UTF-16 text; convert it to UTF-8")
        if not line.removeprefix(codecs.BOM_UTF8).strip():
            continue
        is_empty = False
        anchor, place = f"line-{number}", f"{unquote(uri.rpartition('/')[2])}:{number}"
        if len(line) > max_bytes:
            while line and not line.endswith(b"\n"):
                line = stream.readline(max_bytes)
            yield DocumentFailure(f"{uri}#{anchor}", f"{place} has more than {max_bytes // 2**20} MB: split it")
            continue
        try:
            result: Document | DocumentFailure = _document(_parse(decode(line)), uri, anchor, seen)
        except (DocumentError, UsageError) as error:
            result = DocumentFailure(f"{uri}#{anchor}", f"{place} {error}")
        yield result
    if is_empty:
        raise DocumentError("is empty")


def json_documents(data: bytes, uri: str, max_bytes: int) -> Iterator[Document | DocumentFailure]:
    """The documents of a .json file: one object, a list of them, or JSON lines. Raises DocumentError for other JSON."""
    text = decode(data)
    try:
        value = _parse(text)
    except DocumentError:
        if not _is_object(text.lstrip().partition("\n")[0]):
            raise
        yield from json_line_documents(io.BytesIO(text.encode()), uri, max_bytes)
        return
    items = value if isinstance(value, list) else [value]
    if not items:
        raise DocumentError("is empty")
    seen: set[str] = set()
    for number, item in enumerate(items, start=1):
        anchor = f"item-{number}"
        try:
            result: Document | DocumentFailure = _document(item, uri, anchor, seen)
        except (DocumentError, UsageError) as error:
            result = DocumentFailure(f"{uri}#{anchor}", f"document {number} {error}")
        yield result


def _is_object(text: str) -> bool:
    try:
        return isinstance(_parse(text), dict)
    except DocumentError:
        return False


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DocumentError(f"is not valid JSON: {problem}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _document(item: Any, uri: str, anchor: str, seen: set[str]) -> Document:
    if not isinstance(item, dict):
        raise DocumentError('is no JSON object with "text"')
    body = item.get("text") if item.get("text") is not None else item.get("body")
    if not isinstance(body, str):
        raise DocumentError('has no "text" (or "body") that is a string')
    metadata = item.get("metadata")
    if not isinstance(metadata, dict | None):
        raise DocumentError('has "metadata" that is no object')
    extra = {name: value for name, value in item.items() if name not in _KNOWN}
    own_uri = _uri(item, uri, anchor)
    document = Document(
        uri=own_uri,
        body=tidy(body),
        title=" ".join(_string(item, "title").split()),
        mime=_string(item, "mime") or "text/plain",
        metadata=clean_json({**extra, **(metadata or {})}),
        labels=labels_of(item.get("labels")),
        published_at=moment_of(item.get("published_at")),
    )
    if own_uri in seen:
        raise DocumentError(f"repeats the document {own_uri}; give each its own id")
    seen.add(own_uri)
    return document


def _uri(item: dict[str, Any], uri: str, anchor: str) -> str:
    own = _string(item, "uri").strip()
    if own:
        return own
    value = item.get("id")
    if not isinstance(value, str | int | None) or isinstance(value, bool):
        raise DocumentError('has an "id" that is neither a string nor a whole number')
    identifier = str(value).strip() if value is not None else ""
    return f"{uri}#{quote(identifier, safe=_SAFE) if identifier else anchor}"


def _string(item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str | None):
        raise DocumentError(f'has a "{name}" that is no string')
    return value or ""
