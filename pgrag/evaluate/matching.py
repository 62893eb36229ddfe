"""Which of the passages found hold what a question needs, and at which rank.

What is ranked depends on what the gold names. Where all gold of a question names documents only, the documents are
ranked, each where its first chunk stands: further chunks of a document take no rank from other documents. Where gold
names a chunk or a text, every chunk is a rank. With one chunk a document, both are the same.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from pgrag.evaluate.results import Gold
from pgrag.types import RetrievedChunk


@dataclass(frozen=True, slots=True)
class Matches:
    """`ranks`, from 1, at which each gold is found, None where it is not; and for each rank whether it is `relevant`.

    A rank is relevant if what stands there holds a gold, or a gold is not held without it.
    """

    ranks: tuple[int | None, ...]
    relevant: tuple[bool, ...]


def match(gold: Sequence[Gold], chunks: Sequence[RetrievedChunk]) -> Matches:
    """Gold against the chunks found, best first; a chunk that comes twice counts once.

    A document is known by its uri or by the end of one, from a "/" or "#" on, percent-encoded or not. Evidence is found
    at the first rank where the chunks so far hold it: in one of them, or in the stretch of text that chunks of one
    document make together which touch or overlap. White space, case and width make no difference.
    """
    whole = by_document(gold)
    first: dict[tuple[int, int], RetrievedChunk] = {}
    for chunk in chunks:
        first.setdefault((chunk.document_id, 0 if whole else chunk.ordinal), chunk)
    distinct = list(first.values())
    ranks: list[int | None] = []
    relevant = [False] * len(distinct)
    for item in gold:
        able = [(rank, c) for rank, c in enumerate(distinct, 1) if _may_hold(item, c)]
        rank, holders = _held(item, able)
        ranks.append(rank)
        for holder in holders:
            relevant[holder - 1] = True
    return Matches(tuple(ranks), tuple(relevant))


def by_document(gold: Sequence[Gold]) -> bool:
    """Whether ranks are those of documents: all gold names documents only."""
    return all(item.ordinal is None and not item.text for item in gold)


def names(document: str, uri: str) -> bool:
    """Whether `document` is the uri, or its end from a "/" or "#" on."""
    return any(
        whole == document or whole.endswith((f"/{document.lstrip('/')}", f"#{document.lstrip('#')}"))
        for whole in (uri, unquote(uri))
    )


def missing_documents(gold: Iterable[Gold], uris: Iterable[str]) -> list[str]:
    """The documents that gold names and none of the uris is, in the sense of `names`, each once."""
    named = {item.document.lstrip("/#"): item.document for item in gold if item.document}
    for uri in uris:
        if not named:
            break
        for whole in {uri, unquote(uri)}:
            for start in (0, *(place + 1 for place, character in enumerate(whole) if character in "/#")):
                named.pop(whole[start:].lstrip("/#"), None)
    return list(named.values())


def compact(text: str) -> str:
    """The text without white space and without differences of case and width (NFKC)."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _may_hold(gold: Gold, chunk: RetrievedChunk) -> bool:
    return (not gold.document or names(gold.document, chunk.uri)) and gold.ordinal in (None, chunk.ordinal)


def _held(gold: Gold, able: Sequence[tuple[int, RetrievedChunk]]) -> tuple[int | None, set[int]]:
    """The rank at which a gold is found, and the ranks that hold it."""
    if not gold.text:
        return (able[0][0] if able else None), {rank for rank, _ in able}
    sought = compact(gold.text)
    alone = {rank for rank, chunk in able if sought in compact(chunk.body)}
    for count in range(1, len(able) + 1):
        rank, newest = able[count - 1]
        if rank in alone:
            return rank, alone
        together = [(r, c) for r, c in able[:count] if c.document_id == newest.document_id]
        if any(c is not newest and _touch(c, newest) for _, c in together) and _holds(sought, (c for _, c in together)):
            needed = {r for r, _ in together if not _holds(sought, (c for other, c in together if other != r))}
            return rank, alone | needed
    return None, set()


def _touch(one: RetrievedChunk, other: RetrievedChunk) -> bool:
    return one.start <= other.end and other.start <= one.end


def _holds(sought: str, chunks: Iterable[RetrievedChunk]) -> bool:
    """Whether a stretch of text that these chunks of one document make holds the compact text."""
    stretch, end = "", -1
    for chunk in sorted(chunks, key=lambda c: (c.start, c.end)):
        if chunk.start > end:
            if sought in compact(stretch):
                return True
            stretch, end = chunk.body, chunk.end
        elif chunk.end > end:
            stretch += chunk.body[end - chunk.start :]
            end = chunk.end
    return sought in compact(stretch)
