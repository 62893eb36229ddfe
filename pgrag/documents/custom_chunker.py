"""A caller's own chunker: its chunks are checked against the document before anything is made of them."""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Iterable

from pgrag.config import Settings
from pgrag.documents.chunker import Chunker
from pgrag.errors import DocumentError, UsageError
from pgrag.text.folding import clean
from pgrag.text.tokens import Tokenizer
from pgrag.types import Chunk, ChunkerFunction, Document, DocumentChunker


def chunker_of(settings: Settings, tokenizer: Tokenizer, own: ChunkerFunction | None) -> DocumentChunker:
    """The caller's own chunker, else that of the settings. Raises UsageError for what is no function."""
    if own is not None:
        if not callable(own):
            raise UsageError(f"chunker is a function from a Document to its chunks, not {type(own).__name__}")
        return OwnChunker(own, tokenizer)
    return Chunker(
        tokenizer,
        settings.chunk_tokens,
        settings.chunk_overlap,
        split_by=settings.split_by_character,
        split_only=settings.split_by_character_only,
    )


class OwnChunker:
    """Cuts documents by a function, which returns `Chunk`s or their texts, in any size, with or without gaps.

    Ordinals and tokens are counted here. The function's attribute `digest`, else its name, tells one way of cutting
    from another.
    """

    def __init__(self, function: ChunkerFunction, tokenizer: Tokenizer) -> None:
        self._function = function
        self._tokenizer = tokenizer

    @property
    def digest(self) -> str:
        """Of the function and the tokenizer."""
        function = self._function
        named = function if hasattr(function, "__qualname__") else type(function)
        name = getattr(function, "digest", None) or f"{named.__module__}.{named.__qualname__}"
        return f"own chunker {name} {self._tokenizer.name}"

    def chunk(self, document: Document) -> list[Chunk]:
        """The document's chunks; none for a blank text. Raises DocumentError naming the chunk that is wrong."""
        if not document.body.strip():
            return []
        try:
            found = self._function(document)
            items = list(found) if isinstance(found, Iterable) and not isinstance(found, str) else None
        except Exception as error:
            raise DocumentError(f"the chunker failed: {type(error).__name__}: {error}") from error
        if items is None:
            if inspect.iscoroutine(found):
                found.close()
            raise DocumentError(f"the chunker returned {type(found).__name__}, not a sequence of chunks or texts")
        if not items:
            raise DocumentError("the chunker returned no chunks")
        chunks: list[Chunk] = []
        for item in items:
            chunks.append(self._checked(document, item, chunks))
        return chunks

    def _checked(self, document: Document, item: object, before: list[Chunk]) -> Chunk:
        number, body = len(before), document.body
        headings: tuple[str, ...] = (document.title,) if document.title else ()
        page: int | None = None
        if isinstance(item, Chunk):
            start, end, page = item.start, item.end, item.page
            headings = tuple(clean(str(heading)) for heading in item.headings)
            if not 0 <= start < end <= len(body):
                raise DocumentError(
                    f"chunk {number} of the chunker: {start} to {end} is no span of {len(body)} characters"
                )
            if body[start:end] != item.body:
                raise DocumentError(f"chunk {number} of the chunker: its body is not what stands at {start} to {end}")
        elif isinstance(item, str):
            start = _place(body, item, before[-1] if before else None)
            end = start + len(item)
            if start < 0:
                raise DocumentError(f"chunk {number} of the chunker: its text does not follow in the document")
        else:
            raise DocumentError(f"chunk {number} of the chunker is neither a Chunk nor a text: {type(item).__name__}")
        text = body[start:end]
        if not text.strip():
            raise DocumentError(f"chunk {number} of the chunker is empty")
        if page is None and document.page_starts:
            page = max(1, bisect_right(document.page_starts, start))
        tokens = self._tokenizer.count("\n".join((*headings, text)))
        return Chunk(number, text, start, end, tokens, headings, page)


def _place(body: str, text: str, before: Chunk | None) -> int:
    """Where the text begins: right after the chunk before, else at the next place that begins after its start."""
    if before is None:
        return body.find(text)
    following = before.end
    while following < len(body) and body[following].isspace() and not body.startswith(text, following):
        following += 1
    return following if body.startswith(text, following) else body.find(text, before.start + 1)
