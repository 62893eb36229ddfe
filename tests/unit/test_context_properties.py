"""The prompt never exceeds its budget and holds whole items only, whatever the texts are made of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrag.llm.prompts import language_of
from pgrag.search.answer import AnswerOptions, LLMAnswerer
from pgrag.search.context import LAYER_TOKENS, chunk_place, fitting_chunks, references, render
from pgrag.text.folding import clean
from pgrag.text.lines import entity_line, relation_line
from pgrag.text.tokens import Tokenizer, available_encodings
from pgrag.types import Keywords, Mode, Retrieval, RetrievedChunk, RetrievedEntity, RetrievedRelation

T = TypeVar("T", RetrievedEntity, RetrievedRelation)
TOKENIZERS = {name: Tokenizer(name) for name in available_encodings()}
CHAT_FORMAT = 8  # tokens of a message's frame, at most
STEADY = settings(max_examples=60, deadline=None, derandomize=True, database=None)

# What tokenizers join over boundaries, or take many tokens for, next to whatever hypothesis thinks of.
FRAGMENTS = [
    "深圳", "天天中彩票", "资料。", "！\n", "العربية", " الله", "한국어", "日本語です", "кот", " Кот", "ก็",
    "👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "e\u0301", "a\u0300\u0323", "\u200d", "\ufe0f",
    " antidisestablishmentarianism", "Donaudampfschifffahrt", "ZZZq", "aB", "0", "12", "1234567",
    " def f(x):\n    return x\n", ");\n\n", "*/\n", "}\n", '{"', '"', "\\", "/", "//", "!!!!", "====", "'s", "###", "…",
    "\n", "\n\n", "\r\n", "\t", "    ", " ", "\u3000", "\u00a0", "\x1c", "\x85", "\u2028",
    "[12]", "<|endoftext|>", "<<< sources", "$context",
]  # fmt: skip
anything = st.sampled_from(FRAGMENTS) | st.text(st.characters(codec="utf-8"), max_size=6)
long_runs = st.builds(lambda part, n: part * n, anything, st.integers(1, 120))


def texts(parts: int) -> st.SearchStrategy[str]:
    return st.lists(anything | long_runs, max_size=parts).map("".join).map(clean)  # as the store has them


turns = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts(4)})
answer_options = st.builds(
    AnswerOptions, texts(2).map(lambda text: text or "List"), texts(3), st.lists(turns, max_size=5)
)
questions = st.sampled_from(["谁认识白桦？", "Who knows Birch?", "من يعرف؟"]).flatmap(
    lambda start: texts(3).map(lambda rest: start + rest)
)


@st.composite
def retrievals(draw: st.DrawFn, tokenizer: Tokenizer) -> Retrieval:
    """Rows as the database has them: with the tokens of their lines, and of headings and body of a passage."""
    entities, relations, chunks = [], [], []
    for n, (name, kind, told) in enumerate(draw(st.lists(st.tuples(texts(2), texts(1), texts(4)), max_size=5)), 1):
        size = tokenizer.count(entity_line(name, kind, told))
        entities.append(RetrievedEntity(n, n, name, kind, told, size, 0.5, "vector"))
    for n, (one, other, told) in enumerate(draw(st.lists(st.tuples(texts(2), texts(2), texts(4)), max_size=5)), 1):
        size = tokenizer.count(relation_line(one, other, told))
        relations.append(RetrievedRelation(n, n, one, other, (), told, 1.0, size, 0.5, "hop"))
    passages = st.tuples(texts(2), texts(6), st.lists(texts(1), max_size=3), st.none() | st.integers(1, 99_999))
    for n, (uri, body, headings, page) in enumerate(draw(st.lists(passages, max_size=14)), 1):
        size = tokenizer.count("\n".join((*headings, body)))
        start = draw(st.integers(0, 10**7))
        chunks.append(
            RetrievedChunk(
                n, n, 7, uri, "", n - 1, tuple(headings), page, start, start + len(body), body, size, 0.5, ""
            )
        )
    return Retrieval("?", Mode.MIX, Keywords(), tuple(entities), tuple(relations), tuple(chunks))


def first(items: tuple[T, ...], budget: int) -> tuple[T, ...]:
    """As many as the budget takes, as `retrieve()` cuts a layer."""
    total = 0
    for n, item in enumerate(items):
        total += item.tokens
        if total > budget:
            return items[:n]
    return items


def pieces(found: Retrieval) -> Iterator[str]:
    """All that a context may hold, in its order."""
    gap = ""
    if found.entities:
        yield "# Entities\n"
        yield from (entity_line(e.name, e.type, e.description) for e in found.entities)
        gap = "\n"
    if found.relations:
        yield f"{gap}# Relations\n"
        yield from (relation_line(r.source, r.target, r.description) for r in found.relations)
        gap = "\n"
    if found.chunks:
        yield f"{gap}# Passages\n"
        for n, chunk in enumerate(found.chunks, 1):
            yield "\n".join((f"[{n}] {chunk_place(chunk)}", *chunk.headings, chunk.body.strip(), "\n"))


def answerer(tokenizer: Tokenizer) -> LLMAnswerer:
    nobody: Any = None  # is asked for a prompt
    return LLMAnswerer(nobody, nobody, "none", tokenizer)


@STEADY
@given(data=st.data(), name=st.sampled_from(sorted(TOKENIZERS)), question=questions, answer_options=answer_options,
       room=st.integers(1, 3000), shares=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)))  # fmt: skip
def test_the_whole_prompt_stays_within_its_budget(
    data: st.DataObject, name: str, question: str, answer_options: AnswerOptions, room: int, shares: tuple[float, float]
) -> None:
    tokenizer = TOKENIZERS[name]
    answering = answerer(tokenizer)
    total = answering.overhead(question, answer_options) + LAYER_TOKENS + room
    offered = data.draw(retrievals(tokenizer))
    limits = [int(share * room) for share in shares]
    found = replace(offered, entities=first(offered.entities, limits[0]), relations=first(offered.relations, limits[1]))
    found = replace(found, chunks=fitting_chunks(found, room, tokenizer))

    context = render(found)
    prompt = answering.prompt(question, context, answer_options)
    assert sum(tokenizer.count(message["content"]) + CHAT_FORMAT for message in prompt) <= total
    assert context == "".join(pieces(found)).strip(), "whole items, and nothing else"
    assert context in prompt[-1]["content"], "as they are"
    for layer, limit, title in ((found.entities, limits[0], "Entities"), (found.relations, limits[1], "Relations")):
        if layer:
            block = context.split(f"# {title}\n", 1)[1].split("}\n\n# ")[0]
            assert tokenizer.count(block) <= limit + 1, "a line end may have moved"
    assert [r.chunk_id for r in references(found.chunks)] == [c.id for c in offered.chunks[: len(found.chunks)]]


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@pytest.mark.parametrize("question", ["谁认识白桦？", "Who knows Birch?"])
def test_the_budget_is_used(name: str, question: str) -> None:
    tokenizer = TOKENIZERS[name]
    answering, answer_options = (
        answerer(tokenizer),
        AnswerOptions(history=[{"role": "user", "content": "Hello. " * 50}]),
    )
    assert language_of(question) == ("zh" if "谁" in question else "en")
    body = "Alder met Birch at the harbour in the spring of 1921, and both of them went to sea. " * 3
    size = tokenizer.count(body)
    chunks = [RetrievedChunk(n, n, 7, "a.md", "", n, (), None, 0, len(body), body, size, 0.5, "") for n in range(1, 99)]
    offered = Retrieval(question, Mode.NAIVE, Keywords(), (), (), tuple(chunks))
    for room in (1, size, size + 40, 1000, 3000):
        found = replace(offered, chunks=fitting_chunks(offered, room, tokenizer))
        prompt = answering.prompt(question, render(found), answer_options)
        used = sum(tokenizer.count(message["content"]) + CHAT_FORMAT for message in prompt)
        total = answering.overhead(question, answer_options) + LAYER_TOKENS + room
        assert total - 1.5 * size - 60 - 8 * len(found.chunks) < used <= total
        assert bool(found.chunks) == (room > size)


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_an_item_over_the_whole_budget_is_left_out_whole(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for body in ("Alder. " * 2000, "深" * 2000, "x" * 9000, "👩‍👩‍👧‍👦" * 300):
        chunk = RetrievedChunk(1, 1, 7, "a", "", 0, (), None, 0, len(body), body, tokenizer.count(body), 0.5, "")
        found = Retrieval("?", Mode.NAIVE, Keywords(), (), (), (chunk,))
        assert fitting_chunks(found, chunk.tokens - 1, tokenizer) == ()
        assert fitting_chunks(found, chunk.tokens + 40, tokenizer) == (chunk,)


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_a_budget_that_is_used_up_to_the_last_token(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    answering, answer_options = answerer(tokenizer), AnswerOptions(history=[{"role": "user", "content": "Hello."}] * 9)
    for part in FRAGMENTS:
        line = entity_line("Alder", "tree", f"It stands.{part}")
        entity = RetrievedEntity(1, 1, "Alder", "tree", f"It stands.{part}", tokenizer.count(line), 0.5, "vector")
        body = f"{part}Alder{part}"
        chunk = RetrievedChunk(1, 1, 7, part, "", 0, (), None, 0, 9, body, tokenizer.count(body), 0.5, "")
        for entities, chunks in (((entity,) * 9, ()), ((), (chunk,) * 40), ((entity,) * 9, (chunk,) * 40)):
            offered = Retrieval("?", Mode.MIX, Keywords(), entities, (), chunks)
            room = bisect_left(
                range(9000), len(chunks), key=lambda room, o=offered: len(fitting_chunks(o, room, tokenizer))
            )
            room = max(room, sum(entity.tokens for entity in entities))
            assert room < 9000
            prompt = answering.prompt("?", render(offered), answer_options)
            used = sum(tokenizer.count(message["content"]) + CHAT_FORMAT for message in prompt)
            assert used <= answering.overhead("?", answer_options) + LAYER_TOKENS + room, repr(part)
