"""Documents from files, folders and streams: text, Markdown, HTML and JSON lines. One file at a time is in memory."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pgrag.documents.chunker import RST
from pgrag.documents.loaders.decoding import decode
from pgrag.documents.loaders.jsonlines import json_documents, json_line_documents
from pgrag.documents.loaders.markdown import markdown_document
from pgrag.errors import DocumentError
from pgrag.types import Document, DocumentFailure

__all__ = ["MAX_BYTES", "SkippedFile", "load", "load_stdin"]

MAX_BYTES = 200 * 1024 * 1024
"""A document (a file, or one JSON line) of more bytes is refused."""

_TEXT = {".txt": "text/plain", ".text": "text/plain", ".log": "text/plain", ".rst": RST}
_MARKDOWN = {".md", ".markdown"}
_HTML = {".html", ".htm"}
_JSON_LINES = {".jsonl", ".ndjson"}
_SUPPORTED = {*_TEXT, *_MARKDOWN, *_HTML, *_JSON_LINES, ".json"}


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file or folder inside a folder that is not meant to be read; no failure."""

    path: str
    reason: str


Loaded = Document | DocumentFailure | SkippedFile


def load(source: str | Path, *, root: Path | None = None) -> Iterator[Loaded]:
    """The documents of a file, or of a folder and its subfolders in the order of their names; a generator.

    A document's uri is the file's `file://` URI, for JSON lines with `#<id>`. What cannot be read is yielded as a
    DocumentFailure and the rest goes on; nothing is raised. In a folder, hidden files, other types than text, Markdown,
    HTML and JSON lines, and symbolic links to folders or out of the folder are yielded as SkippedFile. A file named
    itself is read as text whatever its suffix. A relative `source` is looked up in `root`, by default the current
    folder.
    """
    given = Path(source) if root is None else root / source
    try:
        path = given.resolve()
        mode = path.stat().st_mode
    except FileNotFoundError:
        yield DocumentFailure(_uri_of(given), "does not exist")
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name, a loop of links
        yield DocumentFailure(_uri_of(given), f"cannot be opened: {_reason(error)}")
    else:
        if stat.S_ISDIR(mode):
            yield from _load_folder(path)
        else:
            yield from _load_file(path)


def load_stdin(stream: IO[bytes], uri: str = "stdin:") -> Iterator[Document | DocumentFailure]:
    """The one document of a binary stream, as plain text."""
    try:
        data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise DocumentError(_too_large(len(data)))
        yield _text_document(data, uri, "text/plain")
    except DocumentError as error:
        yield DocumentFailure(uri, str(error))
    except (OSError, ValueError) as error:
        yield DocumentFailure(uri, f"cannot be read: {_reason(error)}")


def _load_folder(folder: Path) -> Iterator[Loaded]:
    seen: set[Path] = set()
    for found in _walk(folder):
        if not isinstance(found, Path):
            yield found
            continue
        path = found.resolve()
        if path in seen:
            yield SkippedFile(_shown(found), f"is the same file as {_shown(path)}")
            continue
        seen.add(path)
        if not path.suffix and _is_binary(path):
            yield SkippedFile(_shown(path), "is a binary file")
        else:
            yield from _load_file(path)


def _walk(folder: Path) -> Iterator[Path | DocumentFailure | SkippedFile]:
    """The files under a folder that are to be read, depth first, in the order of their names."""
    todo = [folder]
    while todo:
        path = todo.pop()
        try:
            reason = _why_skip(path, folder) if path != folder else ""
            if reason:
                yield SkippedFile(_shown(path), reason)
            elif path.is_dir():
                todo.extend(sorted(path.iterdir(), reverse=True))
            else:
                yield path
        except (OSError, ValueError, RuntimeError) as error:
            yield DocumentFailure(_uri_of(path), f"cannot be opened: {_reason(error)}")


def _why_skip(path: Path, folder: Path) -> str:
    if path.name.startswith("."):
        return "is hidden"
    is_link = path.is_symlink()
    target = path.resolve(strict=True) if is_link else path
    mode = target.stat().st_mode
    if is_link and stat.S_ISDIR(mode):
        return "is a symbolic link to a folder"
    if is_link and not target.is_relative_to(folder):
        return "is a symbolic link out of the folder"
    if stat.S_ISDIR(mode):
        return ""
    if not stat.S_ISREG(mode):
        return "is no regular file"
    if path.suffix and path.suffix.lower() not in _SUPPORTED:
        return f"has a type that is not read ({_shown(Path(path.suffix))})"
    return ""


def _load_file(path: Path) -> Iterator[Document | DocumentFailure]:
    uri = path.as_uri()
    try:
        suffix = path.suffix.lower()
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise DocumentError("is no regular file")
        if suffix in _JSON_LINES:
            with path.open("rb") as stream:
                yield from json_line_documents(stream, uri, MAX_BYTES)
            return
        if status.st_size > MAX_BYTES:
            raise DocumentError(_too_large(status.st_size))
        data = path.read_bytes()
        if suffix == ".json":
            yield from json_documents(data, uri, MAX_BYTES)
        elif suffix in _MARKDOWN:
            yield markdown_document(decode(data), uri)
        elif suffix in _HTML:
            from pgrag.documents.loaders.webpage import html_document  # here: a query needs no parser of web pages

            yield html_document(data, uri)
        else:
            yield _text_document(data, uri, _TEXT.get(suffix, "text/plain"))
    except DocumentError as error:
        yield DocumentFailure(uri, str(error))
    except (OSError, ValueError) as error:
        yield DocumentFailure(uri, f"cannot be read: {_reason(error)}")


def _text_document(data: bytes, uri: str, mime: str) -> Document:
    body = decode(data)
    pages = [0, *(place + 1 for place, char in enumerate(body) if char == "\f")] if "\f" in body else []
    return Document(uri=uri, body=body, mime=mime, page_starts=tuple(pages))


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return b"\0" in stream.read(8192)
    except OSError:
        return False  # reading it will say what is wrong


def _too_large(size: int) -> str:
    return f"has {size / 2**20:,.0f} MB; a document may have {MAX_BYTES // 2**20} MB: split it"


def _shown(path: Path) -> str:
    """The path for people: bytes that are no UTF-8 as escapes."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _uri_of(path: Path) -> str:
    try:
        return path.absolute().as_uri()
    except ValueError:  # a name that no file can have
        return _shown(path)


def _reason(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
