"""The context of a question: three layers of lines, and the numbered references to the passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgrag.text.lines import entity_line, relation_line
from pgrag.text.tokens import Tokenizer
from pgrag.types import Reference, Retrieval, RetrievedChunk

ENTITIES = "Entities"
RELATIONS = "Relations"
CHUNKS = "Passages"
LAYER_TOKENS = 32  # of the titles of the layers, and of a code around the context longer than around nothing
CHUNK_TOKENS = 4  # of the line ends around a passage, which can take a token more than they took alone


def chunk_block(number: int, chunk: RetrievedChunk) -> str:
    """A passage under its reference number, with where it stands."""
    return f"[{number}] {chunk_place(chunk)}\n" + "\n".join((*chunk.headings, chunk.body.strip())) + "\n\n"


def chunk_place(chunk: RetrievedChunk) -> str:
    """Document, page if there is one, and characters of a passage."""
    page = f", page {chunk.page}" if chunk.page is not None else ""
    return f"{' '.join(chunk.uri.split())}{page}, characters {chunk.start}-{chunk.end}"


def render(retrieval: Retrieval) -> str:
    """The context as one text: entities, relations, passages numbered from 1. Empty layers are left out."""
    layers = (
        (ENTITIES, "".join(entity_line(e.name, e.type, e.description) for e in retrieval.entities)),
        (RELATIONS, "".join(relation_line(r.source, r.target, r.description) for r in retrieval.relations)),
        (CHUNKS, "".join(chunk_block(n, c) for n, c in enumerate(retrieval.chunks, 1))),
    )
    return "\n".join(f"# {title}\n{text}" for title, text in layers if text).strip()


def fitting_chunks(found: Retrieval, room: int, tokenizer: Tokenizer) -> tuple[RetrievedChunk, ...]:
    """The first passages that fit, with their numbers and places, into what the other layers leave of `room` tokens."""
    room -= sum(e.tokens for e in found.entities) + sum(r.tokens for r in found.relations)
    for n, chunk in enumerate(found.chunks, 1):
        place = chunk_block(n, replace(chunk, headings=(), body=""))
        room -= chunk.tokens + tokenizer.count(place) + CHUNK_TOKENS
        if room < 0:
            return found.chunks[: n - 1]
    return found.chunks


def references(chunks: Sequence[RetrievedChunk]) -> tuple[Reference, ...]:
    """The numbered references of the passages, in the order of the context."""
    return tuple(
        Reference(n, c.document_id, c.uri, c.title, c.id, c.ordinal, c.headings, c.page, c.start, c.end)
        for n, c in enumerate(chunks, 1)
    )
