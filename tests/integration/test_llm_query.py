"""Questions with a language model, over real HTTP: two calls at most, none twice, and never more than the budget."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from benchmarks.server import counting_proxy
from pgrag import Document, PgRAG
from pgrag.errors import ModelError, UsageError
from pgrag.llm.prompts import as_text
from pgrag.text.tokens import Tokenizer
from pgrag.types import Keywords
from tests.support.llm import Brain, enclosed, llm_rag, purpose_of, think, using
from tests.support.openai_server import OpenAIServer, Reply, Request
from tests.support.rag import count, rows

QUESTION = "Who hired Birch?"
TEXTS = [
    Document("crew", "Alder hired Birch in the spring. Birch owns the Cedar. Alder trusts Birch with the ship."),
    Document("port", "Dogwood watches the port. Elm told Dogwood of the Cedar. Fir sold tea to Elm."),
]


@pytest.fixture
def llm() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


def after_ingest(
    dsn: str,
    llm: OpenAIServer,
    work: Callable[[PgRAG], Awaitable[Any]],
    replies: Mapping[Any, Any] | None = None,
    **settings: Any,
) -> tuple[Any, Brain]:
    """The result of `work` on a workspace with the texts, and the requests that it made."""
    brain = think(llm)

    async def run(rag: PgRAG) -> Any:
        await rag.ingest(TEXTS)
        brain.forget()
        brain.replies.update(replies or {})
        return await work(rag)

    return asyncio.run(using(llm_rag(dsn, llm, **settings), run)), brain


# ---------------------------------------------------------------- how many calls


@pytest.mark.parametrize("mode", ["mix", "hybrid", "local", "global", "naive"])
def test_a_search_that_nobody_answers_is_one_request(words_dsn: str, llm: OpenAIServer, mode: str) -> None:
    think(llm)
    keywords = Keywords(("Birch",), ("hiring",))

    async def run() -> None:
        await using(llm_rag(words_dsn, llm), lambda rag: rag.ingest(TEXTS))
        async with counting_proxy(words_dsn) as messages, llm_rag(messages.dsn, llm, pool_size=1) as rag:
            for _ in range(2):
                await rag.retrieve(QUESTION, mode=mode, keywords=keywords)
            messages.reset()
            await rag.retrieve(QUESTION, mode=mode, keywords=keywords)
            assert messages.turns == 1
            asked = await rag.query(QUESTION, mode=mode, keywords=keywords, only_context=True)
            assert asked.context
            assert messages.turns == 2

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["mix", "hybrid", "local", "global", "naive"])
def test_a_question_is_two_calls_and_a_repeated_one_none(words_dsn: str, llm: OpenAIServer, mode: str) -> None:
    async def work(rag: PgRAG) -> list[Any]:
        first, second = [await rag.query(QUESTION, mode=mode) for _ in range(2)]
        pieces = [piece async for piece in await rag.stream(QUESTION, mode=mode)]
        return [first, second, pieces]

    (first, second, pieces), brain = after_ingest(words_dsn, llm, work)
    expected = {"answer": 1} if mode == "naive" else {"keywords": 1, "answer": 1}
    assert brain.counts == Counter(expected)
    assert first.answer == second.answer == "".join(pieces) == "They sailed [1]."
    assert first.notice == "answer by openai/scripted"
    assert first.retrieval.keywords == (Keywords() if mode == "naive" else Keywords(("Birch",), ("voyages",)))
    assert first.references[0].uri in ("crew", "port")
    assert set(first.timings) >= {"answer", "search"}


def test_the_callers_keywords_spare_the_first_call(words_dsn: str, llm: OpenAIServer) -> None:
    given = Keywords(("Elm",), ("telling",))
    result, brain = after_ingest(words_dsn, llm, lambda rag: rag.query(QUESTION, mode="local", keywords=given))
    assert brain.counts == Counter({"answer": 1})
    assert result.retrieval.keywords == given
    assert result.retrieval.entities[0].name == "Elm"


def test_no_answer_is_asked_for_where_nothing_was_found(words_dsn: str, llm: OpenAIServer) -> None:
    async def work(rag: PgRAG) -> Any:
        await rag.delete([document.uri for document in TEXTS])
        told = await rag.query(QUESTION)
        return told, [piece async for piece in await rag.stream(QUESTION)]

    (told, pieces), brain = after_ingest(words_dsn, llm, work)
    assert (told.answer, told.references, pieces) == ("Nothing was found.", (), ["Nothing was found."])
    assert brain.counts["answer"] == 0


def test_bypass_asks_the_model_alone(words_dsn: str, llm: OpenAIServer) -> None:
    history = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]

    async def work(rag: PgRAG) -> Any:
        found = await rag.query("Say it\0 again", mode="bypass", conversation_history=history, user_prompt="Be brief.")
        with pytest.raises(UsageError, match="bypass"):
            await rag.retrieve("Say it", mode="bypass")
        return found

    result, brain = after_ingest(words_dsn, llm, work, {"bypass": Reply("Good day, again.")})
    (request,) = brain.of("bypass")
    assert brain.counts == Counter({"bypass": 1})
    assert request.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        *history,
        {"role": "user", "content": "Say it again"},
    ]
    assert (result.answer, result.references, result.context) == ("Good day, again.", (), "")


def test_each_call_has_its_own_model(words_dsn: str, llm: OpenAIServer) -> None:
    models = {f"{name}_model": f"openai/for-{name}" for name in ("extraction", "keyword", "answer")}
    brain = think(llm)

    async def work(rag: PgRAG) -> list[Any]:
        await rag.ingest(
            [
                *TEXTS,
                Document("long", "\n\n".join(f"Zoe{i} met Yew on the long road to the far market." for i in range(9))),
            ]
        )
        await rag.query(QUESTION)
        return await rag.usage()

    usage = asyncio.run(using(llm_rag(words_dsn, llm, llm_model=None, chunk_tokens=16, **models), work))
    used = {purpose: {request.body["model"] for request in brain.of(purpose)} for purpose in brain.counts}
    extraction = {"for-extraction"}
    assert used == {"extraction": extraction, "gleaning": extraction, "summary": extraction,
                    "keywords": {"for-keyword"}, "answer": {"for-answer"}}  # fmt: skip
    assert {(row.purpose, row.model) for row in usage} == {
        ("extraction", "openai/for-extraction"),
        ("gleaning", "openai/for-extraction"),
        ("summary", "openai/for-extraction"),
        ("keywords", "openai/for-keyword"),
        ("answer", "openai/for-answer"),
    }
    assert all(row.calls_without_price == row.calls for row in usage)


# ---------------------------------------------------------------- keywords (CASES 12)

LONG = "What is it that they all were told of by the others at last?"


@pytest.mark.parametrize(
    ("answer", "keywords"),
    [
        ("I am sorry, I cannot split this.", Keywords()),
        ("", Keywords()),
        ("<think>Birch, hmm</think>", Keywords()),
        ('{"high_level_keywords": [], "low_level_keywords": []}', Keywords()),
        ('{"high_level_keywords": "hiring, trust", "low_level_keywords": "Birch, Cedar"}',
         Keywords(("Birch", "Cedar"), ("hiring", "trust"))),
        ('```json\n{"high_level_keywords": ["hiring"], "low_level_keywords": ["Birch"]}\n```',
         Keywords(("Birch",), ("hiring",))),
        ('import json\nresult = {"high_level_keywords": ["hiring"], "low_level_keywords": ["Birch"]}\nprint(result)',
         Keywords(("Birch",), ("hiring",))),
        ('Sure! {"high_level_keywords": ["hiring"], "low_level_keywords": ["Birch", "Ced',
         Keywords(("Birch",), ("hiring",))),
    ],
)  # fmt: skip
def test_keyword_answers_of_every_kind(words_dsn: str, llm: OpenAIServer, answer: str, keywords: Keywords) -> None:
    """What can be read is used; else the question serves both levels, in every mode."""

    async def work(rag: PgRAG) -> list[Any]:
        return [await rag.query(LONG, mode=mode) for mode in ("mix", "local", "global", "hybrid")]

    results, brain = after_ingest(words_dsn, llm, work, {"keywords": Reply(answer)})
    assert [result.retrieval.keywords for result in results] == [keywords] * 4
    for result in results:
        assert result.references, result.retrieval.mode
        assert result.answer == "They sailed [1]."
    local, global_ = results[1].retrieval, results[2].retrieval
    assert local.entities
    assert global_.relations
    assert brain.counts["keywords"] == (1 if answer and "</think>" not in answer else 4), "an empty answer is not kept"


# ---------------------------------------------------------------- prompts


def test_history_and_wishes_reach_the_prompts(words_dsn: str, llm: OpenAIServer) -> None:
    history = [{"role": "user", "content": "Tell me of Elm."}, {"role": "assistant", "content": "Elm told Dogwood."}]

    async def work(rag: PgRAG) -> Any:
        return await rag.query(
            "And whom did he buy from?",
            conversation_history=history,
            response_type="One limerick",
            user_prompt="Name every ship.",
        )

    _, brain = after_ingest(words_dsn, llm, work)
    (keywords,), (answer,) = brain.of("keywords"), brain.of("answer")
    assert enclosed(keywords, "conversation") == "user: Tell me of Elm.\nassistant: Elm told Dogwood."
    assert enclosed(keywords, "question") == "And whom did he buy from?"
    assert keywords.body["response_format"]["type"] == "json_schema"
    system, *turns, last = answer.body["messages"]
    assert turns == history
    assert "One limerick" in system["content"]
    assert "Name every ship." in system["content"]
    assert last["role"] == "user"
    assert last["content"].rstrip().endswith("And whom did he buy from?")
    assert "response_format" not in answer.body


@pytest.mark.parametrize(
    "history", [[{"role": "system", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": None}], [{}]]
)
def test_a_wrong_history_is_refused_before_any_call(words_dsn: str, llm: OpenAIServer, history: Any) -> None:
    async def work(rag: PgRAG) -> None:
        for mode in ("mix", "naive", "bypass"):
            with pytest.raises(UsageError, match="conversation_history: turn 1"):
                await rag.query(QUESTION, mode=mode, conversation_history=history)

    _, brain = after_ingest(words_dsn, llm, work)
    assert brain.counts == Counter()


def test_the_prompt_that_is_shown_is_the_one_that_is_sent(words_dsn: str, llm: OpenAIServer) -> None:
    history = [{"role": "user", "content": "Tell me of Elm."}]

    async def work(rag: PgRAG) -> list[Any]:
        details: dict[str, Any] = {"conversation_history": history, "user_prompt": "Be brief."}
        return [
            await rag.query(QUESTION, only_prompt=True, **details),
            await rag.query(QUESTION, only_context=True, **details),
            await rag.query(QUESTION, **details),
        ]

    (shown, context, result), brain = after_ingest(words_dsn, llm, work)
    assert brain.counts == Counter({"keywords": 1, "answer": 1}), "neither of the first two asks for an answer"
    (request,) = brain.of("answer")
    assert shown.prompt == context.prompt == result.prompt == as_text(request.body["messages"])
    assert (shown.answer, context.answer) == ("", "")
    assert context.context == result.context == enclosed(request, "sources")
    assert shown.references == result.references != ()


@pytest.mark.parametrize("question", [QUESTION, "谁雇用了 Birch？她后来做了什么？"])
def test_all_messages_together_keep_to_the_budget(words_dsn: str, llm: OpenAIServer, question: str) -> None:
    tokenizer = Tokenizer("o200k_base")
    history = [{"role": "user", "content": "Tell me of Elm and the others."}, {"role": "assistant", "content": "No."}]
    text = "\n\n".join(
        f"Alder{i % 7} hired Birch{i % 5} in the year {i}, and they sailed the Cedar round the cape with tea 茶叶 and "
        f"silk 丝绸 for the markets of the far north, where Dogwood{i % 3} paid them."
        for i in range(60)
    )
    brain = think(llm)
    refused = [100, 200, 300]
    budgets = [*refused, 600, 700, 800, 1000, 1500, 2500, 5000, 30_000]

    async def work(rag: PgRAG) -> dict[int, int]:
        await rag.ingest([Document("a", text)])
        sizes: dict[int, int] = {}
        for budget in budgets:
            brain.forget()
            if budget in refused:
                with pytest.raises(UsageError, match="max_total_tokens"):
                    await rag.query(question, max_total_tokens=budget, conversation_history=history)
                continue
            await rag.query(question, max_total_tokens=budget, conversation_history=history)
            (request,) = brain.of("answer")
            sizes[budget] = sum(tokenizer.count_many(m["content"] for m in request.body["messages"]))
        return sizes

    sizes = asyncio.run(using(llm_rag(words_dsn, llm, chunk_tokens=64), work))
    assert [budget for budget, size in sizes.items() if size > budget] == []
    assert sizes[2500] > 2000, "the budget is used"
    assert len(set(sizes.values())) > 3


# ---------------------------------------------------------------- answers


def test_an_answer_is_not_the_cached_one_after_a_contradiction(words_dsn: str, llm: OpenAIServer) -> None:
    """CASES 21."""

    async def work(rag: PgRAG) -> list[str]:
        first = await rag.query(QUESTION)
        await rag.ingest([Document("news", "Elm hired Birch away. Alder never hired Birch.")])
        return [first.answer, (await rag.query(QUESTION)).answer]

    def told(request: Request) -> Reply:
        return Reply("Elm [1]." if "Elm hired Birch" in enclosed(request, "sources") else "Alder [1].")

    answers, _ = after_ingest(words_dsn, llm, work, {"answer": told})
    assert answers == ["Alder [1].", "Elm [1]."]


@pytest.mark.parametrize("text", ["", "<think>I wonder</think>", "<think>I wonder and wonder"])
def test_no_answer_is_an_error_that_is_asked_again(words_dsn: str, llm: OpenAIServer, text: str) -> None:
    replies = [Reply(text, finish_reason="length" if text else "stop"), Reply(text), Reply("At last [1].")]

    async def work(rag: PgRAG) -> str:
        with pytest.raises(ModelError, match="raise max_output_tokens" if text else "no answer: ask again"):
            await rag.query(QUESTION)
        stream = aiter(await rag.stream(QUESTION))
        with pytest.raises(ModelError, match="wrote no answer"):
            await anext(stream)
        answer: str = (await rag.query(QUESTION)).answer
        return answer

    answer, brain = after_ingest(words_dsn, llm, work, {"answer": lambda request: replies.pop(0)})
    assert answer == "At last [1]."
    assert brain.counts["answer"] == 3


def test_thoughts_are_no_part_of_an_answer(words_dsn: str, llm: OpenAIServer) -> None:
    """Neither whole nor in pieces; a tag that is spoken of stays."""
    texts = ["<think>Who, hmm?\n\nAlder < Birch</think>\n\nAlder did [1].", "Alder wrote <think> on the wall [1]."]

    async def work(rag: PgRAG) -> list[list[str]]:
        found = []
        for number, text in enumerate(texts):
            brain.replies["answer"] = Reply(text)
            question = f"{QUESTION} {number}"
            stream = await rag.stream(question)
            pieces = [piece async for piece in stream]
            assert stream.result is not None
            assert stream.result.answer == "".join(pieces)
            cached = [piece async for piece in await rag.stream(question)]
            found.append(["".join(pieces), "".join(cached), (await rag.query(question)).answer])
        return found

    brain = think(llm)

    async def run(rag: PgRAG) -> Any:
        await rag.ingest(TEXTS)
        return await work(rag)

    found = asyncio.run(using(llm_rag(words_dsn, llm), run))
    assert found == [["Alder did [1]."] * 3, [texts[1]] * 3]
    assert brain.counts["answer"] == 2


# ---------------------------------------------------------------- streams


def test_pieces_come_before_the_end_and_references_before_the_first(words_dsn: str, llm: OpenAIServer) -> None:
    async def work(rag: PgRAG) -> Any:
        stream = await rag.stream(QUESTION)
        assert stream.references
        assert stream.result is None
        times = []
        pieces = []
        async for piece in stream:
            times.append(time.perf_counter())
            pieces.append(piece)
        assert stream.result is not None
        assert stream.result.references == stream.references
        return pieces, times, stream.result

    (pieces, times, result), brain = after_ingest(
        words_dsn, llm, work, {"answer": Reply("Alder hired Birch [1].", piece_delay=0.1)}
    )
    assert pieces == ["Alder", " hired", " Birch", " [1]."]
    assert times[-1] - times[0] > 0.2
    assert result.answer == "Alder hired Birch [1]."
    assert brain.counts == Counter({"keywords": 1, "answer": 1})
    assert count(words_dsn, "llm_cache", "purpose = 'answer'") == 1


def test_stopping_early_ends_the_request_counts_it_and_keeps_nothing(words_dsn: str, llm: OpenAIServer) -> None:
    async def work(rag: PgRAG) -> Any:
        async with aclosing(await rag.stream(QUESTION)) as stream:
            async for piece in stream:
                assert piece == "Alder"
                break
        assert stream.result is None
        return await rag.usage()

    usage, _ = after_ingest(words_dsn, llm, work, {"answer": Reply("Alder hired Birch away", piece_delay=0.2)})
    (row,) = [row for row in usage if row.purpose == "answer"]
    assert (row.calls, row.completion_tokens) == (1, Tokenizer("o200k_base").count("Alder"))
    assert row.prompt_tokens > 500
    assert count(words_dsn, "llm_cache", "purpose = 'answer'") == 0


def test_a_stream_that_breaks_says_so(words_dsn: str, llm: OpenAIServer) -> None:
    async def work(rag: PgRAG) -> list[str]:
        stream = aiter(await rag.stream(QUESTION))
        pieces = [await anext(stream), await anext(stream)]
        with pytest.raises(ModelError, match="openai/scripted"):
            await anext(stream)
        return pieces

    pieces, _ = after_ingest(words_dsn, llm, work, {"answer": Reply("Alder hired Birch away", cut=2)})
    assert pieces == ["Alder", " hired"]


def test_questions_at_one_time_are_one(words_dsn: str, llm: OpenAIServer) -> None:
    async def work(rag: PgRAG) -> list[Any]:
        return list(await asyncio.gather(*(rag.query(QUESTION) for _ in range(5))))

    results, brain = after_ingest(words_dsn, llm, work, {"answer": Reply("Alder [1].", delay=0.1)})
    assert {result.answer for result in results} == {"Alder [1]."}
    assert brain.counts == Counter({"keywords": 1, "answer": 1})


def test_a_deletion_while_the_answer_is_written(words_dsn: str, llm: OpenAIServer) -> None:
    """The answer comes, but nothing of it is kept: it may say what only the deleted document said."""

    def reply(request: Request) -> Reply:
        assert purpose_of(request) == "answer"
        asyncio.run(using(llm_rag(words_dsn, llm), lambda rag: rag.delete("port")))
        return Reply("Elm told Dogwood.")

    async def work(rag: PgRAG) -> Any:
        keywords = Keywords(("Dogwood",), ("hiring",))
        found = await rag.query(QUESTION, chunk_top_k=1, chunk_ranking="vector", keywords=keywords)
        assert [reference.uri for reference in found.references] == ["crew"], "of the other document only a description"
        assert "Elm told Dogwood" in found.context
        return found

    result, brain = after_ingest(words_dsn, llm, work, {"answer": reply})
    assert result.answer == "Elm told Dogwood."
    assert brain.counts == Counter({"answer": 1})
    assert rows(words_dsn, "select response from llm_cache where purpose = 'answer'") == []
    assert json.dumps(rows(words_dsn, "select response from llm_cache")).count("Dogwood") == 0


def test_a_deletion_while_keywords_of_a_conversation_are_found(words_dsn: str, llm: OpenAIServer) -> None:
    """They may hold what an answer before said of the deleted document."""
    history = [{"role": "user", "content": "Tell me of Elm."}, {"role": "assistant", "content": "Elm told Dogwood."}]

    def reply(_: Request) -> Reply:
        asyncio.run(using(llm_rag(words_dsn, llm), lambda rag: rag.delete("port")))
        return Reply('{"high_level_keywords": ["telling"], "low_level_keywords": ["Dogwood"]}')

    async def work(rag: PgRAG) -> Any:
        return await rag.query("And who hired Birch?", conversation_history=history)

    result, brain = after_ingest(words_dsn, llm, work, {"keywords": reply})
    assert result.retrieval.keywords.low == ("Dogwood",)
    assert brain.counts["keywords"] == 1
    assert json.dumps(rows(words_dsn, "select response from llm_cache")).count("Dogwood") == 0
