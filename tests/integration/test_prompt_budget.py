"""What a model is really sent, by a workspace with a tokenizer of its own: never more than max_total_tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrag import Document, Keywords
from pgrag.errors import UsageError
from pgrag.llm.prompts import answer_messages, as_text, language_of
from pgrag.search.context import LAYER_TOKENS
from pgrag.sync import PgRAG
from pgrag.text.tokens import Tokenizer
from tests.support.llm import Brain, llm_settings, think
from tests.support.models import WordEmbedder
from tests.support.openai_server import OpenAIServer
from tests.support.postgres import Postgresql, create_database, drop_database
from tests.support.rag import extractor

TOKENIZER = Tokenizer("p50k_base")  # needs the most tokens for what is not English
CHAT_FORMAT = 8
TEXTS = {
    "han": "Alder 在深圳遇见了 Birch。两人后来在上海共同创办了一家公司。Birch 把公司卖给了 Cedar。白桦认识赤杨。",
    "arabic": "Alder قابل Birch في القاهرة. Birch باع الشركة إلى Cedar في الربيع.",
    "emoji": "Alder 👩\u200d👩\u200d👧\u200d👦 met Birch 🏳\ufe0f\u200d🌈🏳\ufe0f\u200d🌈. "
    "Cedar e\u0301a\u0300\u0323 met Dogwood 👍🏽👍🏽👍🏽.",
    "code": 'Alder calls Birch:\n\n    def f(x):\n        return {"a": [1, 2]}["a"]\n\nCedar calls Dogwood.',
    "long": "Alder met " + "Donaudampfschifffahrtsgesellschaft" * 4 + " and Birch. Cedar wrote to Dogwood.",
    "places/" + "深" * 60: "Alder met Elm. Elm told Birch of the Cedar. Fir sold tea to Elm.",
}
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def asking(server: Postgresql) -> Iterator[tuple[PgRAG, Brain]]:
    create_database(server.url(), "budgets")
    dsn = server.url(database="budgets")
    with OpenAIServer() as llm:
        brain = think(llm)
        given = llm_settings(dsn, llm, tokenizer=TOKENIZER.name, chunk_tokens=96)
        with PgRAG(settings=given, embedder=WordEmbedder(), extractor=extractor()) as rag:
            assert rag.ingest([Document(uri, (text + "\n\n") * 3) for uri, text in TEXTS.items()]).failures == ()
            yield rag, brain
    drop_database(server.url(), "budgets")


def tokens(messages: list[dict[str, str]]) -> int:
    return sum(TOKENIZER.count(message["content"]) + CHAT_FORMAT for message in messages)


words = st.lists(
    st.sampled_from([*TEXTS.values(), "\n\n", "e\u0301", "👩\u200d👩\u200d👧\u200d👦", "=" * 40, "x" * 200]), max_size=4
).map("".join)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    question=st.sampled_from(["谁认识白桦？", "Whom met Alder?"]),
    total=st.integers(300, 3000),
    mode=st.sampled_from(["mix", "hybrid", "local", "global", "naive", "bypass"]),
    user_prompt=words,
    response_type=words,
    history=st.lists(words.map(lambda text: {"role": "user", "content": text}), max_size=3),
    limits=st.tuples(st.integers(0, 1500), st.integers(0, 1500)),
)
def test_no_model_is_sent_more_than_the_budget(
    asking: tuple[PgRAG, Brain], question: str, total: int, mode: str, user_prompt: str, response_type: str,
    history: list[dict[str, str]], limits: tuple[int, int],
) -> None:  # fmt: skip
    rag, brain = asking
    brain.forget()
    user_prompt = f"{user_prompt} {next(numbers)}"  # no answer comes from the cache
    wishes: dict[str, Any] = {"user_prompt": user_prompt, "response_type": response_type}
    without = answer_messages(question, "", language=language_of(question), history=history, **wishes)
    smallest = tokens(without) + LAYER_TOKENS
    if mode == "bypass":
        smallest = tokens([{"content": text} for text in (user_prompt, *(t["content"] for t in history), question)]) - 1
    options: dict[str, Any] = {
        "mode": mode, "keywords": Keywords(("Alder", "Birch"), ("met",)), "max_total_tokens": total,
        "max_entity_tokens": limits[0], "max_relation_tokens": limits[1], "conversation_history": history, **wishes,
    }  # fmt: skip
    if smallest >= total:
        told = re.escape(f"alone take max_total_tokens ({total}): shorten them, or raise it")
        with pytest.raises(UsageError, match=told):
            rag.query(question, **options)
        assert brain.counts.total() == 0, "nothing was paid for"
        return
    result = rag.query(question, **options)
    sent = [request.body["messages"] for _, request in brain.seen]
    if mode != "bypass" and not result.context:
        assert sent == [], "no model invents an answer from nothing"
        return
    [messages] = sent
    assert tokens(messages) <= total
    assert result.prompt == as_text(messages)
    assert result.context in messages[-1]["content"]
    for chunk in result.retrieval.chunks:
        assert chunk.body.strip() in result.context, "whole passages only"
    assert [r.chunk_id for r in result.references] == [c.id for c in result.retrieval.chunks]
    for layer, limit in ((result.retrieval.entities, limits[0]), (result.retrieval.relations, limits[1])):
        assert sum(item.tokens for item in layer) <= limit


def test_the_corpus_is_cut_by_small_budgets_and_not_by_large_ones(asking: tuple[PgRAG, Brain]) -> None:
    rag, _ = asking
    small, large = (rag.query("Whom met Alder?", max_total_tokens=n, only_prompt=True) for n in (900, 30_000))
    assert 0 < len(small.references) < len(large.references)
    assert 0 < len(small.retrieval.entities) < len(large.retrieval.entities)
    assert 600 < TOKENIZER.count(small.prompt) <= 900 < TOKENIZER.count(large.prompt)
