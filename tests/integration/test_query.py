"""Questions: options, keywords, budgets, references, errors and the one round trip. Small models, a real PostgreSQL."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.server import counting_proxy
from pgrag import Document, Keywords, Mode, PgRAG
from pgrag.errors import DatabaseError, ExitCode, ModelError, UsageError
from pgrag.search.terms import search_terms
from pgrag.text.tokens import Tokenizer
from pgrag.types import Extraction, QueryResult
from tests.support.models import FixedKeywords, WordEmbedder
from tests.support.postgres import Postgresql, create_database, drop_database
from tests.support.rag import ask, capitals, extractor, ingest, open_rag, rows, with_rag

DOCUMENTS = [
    Document(
        f"handbook/{place}.md",
        "\n\n".join(
            [
                f"# The office in {place}",
                f"{boss} leads the office in {place}. {boss} hired {helper} in the spring of 2021.",
                f"## Machines\n\n{machine} stands in {place}. {helper} repairs {machine} every month.",
                f"## Costs\n\n{place} pays {amount} crowns a year for {machine}. The contract ends in December.",
            ]
        ),
        title=f"Office {place}",
        mime="text/markdown",
    )
    for place, boss, helper, machine, amount in [
        ("Varnholm", "Ingrid", "Tove", "Krakatoa", "4,100"),
        ("Lommerdal", "Henrik", "Pelle", "Stromboli", "8,200"),
        ("Ansgar", "Ingrid", "Sanna", "Etna", "1,350"),
        ("Quorn", "Brita", "Pelle", "Vesuvius", "7,700"),
    ]
]
SMALL = {"chunk_tokens": 48, "chunk_overlap": 0}
GRAPH_MODES = ["local", "global", "hybrid", "mix"]
SEARCHING = [mode for mode in Mode if mode is not Mode.BYPASS]


@pytest.fixture(scope="module")
def offices(server: Postgresql, words_template: str) -> Any:
    """A database with DOCUMENTS in it, for tests that only read."""
    create_database(server.url(), "offices", template=words_template)
    dsn = server.url(database="offices")
    assert ingest(dsn, DOCUMENTS, **SMALL).failures == ()
    yield dsn
    drop_database(server.url(), "offices")


class Recorder(FixedKeywords):
    """Remembers the questions it was asked."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[str] = []

    async def keywords(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> Keywords:
        self.asked.append(question)
        return await super().keywords(question, history)


# ---------------------------------------------------------------- modes, keywords, options


@pytest.mark.parametrize("mode", SEARCHING)
def test_every_mode_finds_the_passage_and_its_layers(offices: str, mode: Mode) -> None:
    result = ask(offices, "Who repairs Stromboli?", mode=mode, chunk_top_k=3)
    assert any("repairs Stromboli" in c.body for c in result.retrieval.chunks)
    assert "repairs Stromboli" in result.answer
    assert result.retrieval.mode is mode
    assert set(result.timings) == {"keywords", "embedding", "search", "answer"}
    assert all(seconds >= 0 for seconds in result.timings.values())
    if mode is Mode.NAIVE:
        assert (result.retrieval.entities, result.retrieval.relations) == ((), ())
    else:
        assert "Stromboli" in {e.name for e in result.retrieval.entities}
        pairs = {frozenset((r.source, r.target)) for r in result.retrieval.relations}
        assert frozenset(("Pelle", "Stromboli")) in pairs


@pytest.mark.parametrize("mode", GRAPH_MODES)
def test_empty_keywords_fall_back_to_the_question_for_both_levels(offices: str, mode: str) -> None:
    embedder = WordEmbedder()
    empty = ask(
        offices, "Who repairs Etna?", mode=mode, opening={"embedder": embedder, "keywords": FixedKeywords(["  "])}
    )
    assert embedder.asked == ["Who repairs Etna?"], "one text serves all three"
    assert "Etna" in {e.name for e in empty.retrieval.entities}
    given = ask(
        offices, "Who repairs Etna?", mode=mode, keywords=Keywords(("Who repairs Etna?",), ("Who repairs Etna?",))
    )
    assert [r.id for r in given.retrieval.relations] == [r.id for r in empty.retrieval.relations]


def test_given_keywords_replace_the_extraction(offices: str) -> None:
    recorder = Recorder(["Etna"], ["repairs"])
    kept = ask(offices, "Who?", opening={"keywords": recorder})
    assert (recorder.asked, kept.retrieval.keywords) == (["Who?"], Keywords(("Etna",), ("repairs",)))
    recorder.asked.clear()
    own = Keywords(("Vesuvius",))
    result = ask(offices, "Who?", mode="local", keywords=own, opening={"keywords": recorder})
    assert (recorder.asked, result.retrieval.keywords) == ([], own)
    assert result.retrieval.entities[0].name == "Vesuvius"
    assert "name" in result.retrieval.entities[0].why
    ask(offices, "Who?", mode="naive", opening={"keywords": recorder})
    assert recorder.asked == []


def test_bypass_needs_a_language_model(offices: str) -> None:
    with pytest.raises(UsageError, match="PGRAG_LLM_MODEL"):
        ask(offices, "Who?", mode="bypass")
    with pytest.raises(UsageError, match="searches nothing"):
        with_rag(offices, lambda rag: rag.retrieve("Who?", mode="bypass"))


def test_only_context_makes_no_answer(offices: str) -> None:
    result = ask(offices, "Who repairs Etna?", only_context=True)
    assert (result.answer, result.notice) == ("", "")
    assert result.context.startswith("# Entities\n{")
    assert "# Relations" in result.context
    assert "# Passages\n[1] handbook/" in result.context
    full = ask(offices, "Who repairs Etna?")
    assert full.context == result.context
    assert "no LLM" in full.notice


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "sideways"}, ["sideways", "local, global, hybrid, mix, naive"]),
        ({"topk": 3}, ["topk", "top_k", "chunk_top_k", "max_total_tokens"]),
        ({"top_k": 0}, ["top_k", "greater than or equal to 1"]),
        ({"top_k": "many"}, ["top_k", "integer"]),
        ({"chunk_top_k": 201}, ["chunk_top_k", "200"]),
        ({"hops": 4}, ["hops", "3"]),
        ({"degree_cap": 0}, ["degree_cap"]),
        ({"chunk_ranking": "fate"}, ["chunk_ranking", "vector|weight|pagerank"]),
        ({"max_entity_tokens": -1}, ["max_entity_tokens"]),
        ({"lexical": -0.1}, ["lexical", "greater than or equal to 0"]),
        ({"lexical": 1.5}, ["lexical", "less than or equal to 1"]),
        ({"lexical": "much"}, ["lexical", "number"]),
        ({"nearness": 2}, ["nearness", "less than or equal to 1"]),
        ({"nearness": float("nan")}, ["nearness"]),
        ({"rounds": 0}, ["rounds", "greater than or equal to 1"]),
        ({"rounds": 3}, ["rounds", "less than or equal to 2"]),
        ({"rounds": 1.5}, ["rounds", "integer"]),
        ({"workspace": "x"}, ["workspace"]),
    ],
)
def test_a_wrong_option_is_a_usage_error_that_names_what_is_allowed(
    words_dsn: str, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        ask(words_dsn, "Who?", **options)
    assert caught.value.exit_code == ExitCode.USAGE == 2
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("question", ["", "  \n", "\0", "\ud800"])
def test_an_empty_question_is_refused(words_dsn: str, question: str) -> None:
    with pytest.raises(UsageError, match="the question is empty"):
        ask(words_dsn, question)


def test_a_far_too_long_question_is_refused_before_any_model_is_asked(words_dsn: str) -> None:
    embedder, recorder = WordEmbedder(), Recorder()
    with pytest.raises(UsageError, match=r"40000 characters; 32000 at most"):
        ask(words_dsn, "x" * 40_000, opening={"embedder": embedder, "keywords": recorder})
    assert (embedder.asked, recorder.asked) == ([], [])


@pytest.mark.parametrize("mode", SEARCHING)
def test_hostile_questions_are_questions(offices: str, mode: Mode) -> None:
    for question in (
        "Who repairs\0 Etna\ud800?",
        "'); drop table chunk; --",
        "%_\\ $1 {} \u202e",
        "😀" * 50,
        "?",
        "的",
    ):
        result = ask(offices, question, mode=mode)
        assert result.question == question.replace("\0", "").replace("\ud800", "")
        assert result.references, question
    assert rows(offices, "select count(*) from chunk")[0][0] > 4


def test_the_longest_question_is_answered(offices: str) -> None:
    question = ("Who repairs Etna? " * 2000)[:32_000].strip()
    assert ask(offices, question).references


def test_a_question_longer_than_the_budget_is_refused(offices: str) -> None:
    with pytest.raises(UsageError, match=r"max_total_tokens \(100\)"):
        ask(offices, "Who repairs Etna? " * 40, max_total_tokens=100)


def test_an_empty_workspace_finds_nothing(words_dsn: str) -> None:
    for mode in SEARCHING:
        result = ask(words_dsn, "Who repairs Etna?", mode=mode)
        assert (result.answer, result.references, result.context) == ("Nothing was found.", (), "")


# ---------------------------------------------------------------- words, nearness and rounds

TALLY = "What does Pelle repair?"


def search(dsn: str, vector: Any, question: str = TALLY, limit: int = 20, **options: Any) -> list[int]:
    """Chunks of one search in SQL, best first, where only the question's vector may differ from what it says."""
    terms = search_terms(question, Keywords(), Mode.MIX)
    own = WordEmbedder().vector(question)
    found = rows(
        dsn,
        "select id from retrieve(p_question => %s::halfvec, p_low => %s::halfvec, p_high => %s::halfvec, "
        "p_words => %s, p_parts => %s, p_keys => %s, p_similar => %s, p_threshold => 0, p_chunk_top_k => %s, "
        "p_ranking => %s, p_lexical => %s, p_nearness => %s) where layer = 'chunk' order by rank",
        *(str(v.tolist()) for v in (vector, own, own)),
        *map(list, (terms.words, terms.parts, terms.keys, terms.similar)),
        limit,
        options.get("chunk_ranking", "pagerank"),
        options.get("lexical", 0.2),
        options.get("nearness"),
    )
    return [i for (i,) in found]


@pytest.mark.parametrize(
    ("options", "others"),
    [
        ({}, {"nearness": 1.0, "lexical": 0.0}),
        ({"nearness": 0.0}, {"nearness": 1.0}),
        ({"nearness": 1.0, "lexical": 0.0}, {"nearness": 1.0, "lexical": 1.0}),
        ({"chunk_ranking": "vector", "lexical": 0.0}, {"chunk_ranking": "vector", "lexical": 1.0}),
    ],
)
def test_lexical_and_nearness_reach_the_search(offices: str, options: dict[str, Any], others: dict[str, Any]) -> None:
    question = (
        "What does a contract in Quorn cost, how many crowns a year, and does it end in spring, 2021, or later on?"
    )
    vector = WordEmbedder().vector(question)
    expected, other = (search(offices, vector, question, **chosen) for chosen in (options, others))
    assert expected != other
    for chosen, order in ((options, expected), (others, other)):
        by_option = ask(offices, question, only_context=True, **chosen)
        by_setting = ask(offices, question, only_context=True, opening=chosen)
        for result in (by_option, by_setting):
            assert [c.id for c in result.retrieval.chunks] == order


def test_a_second_round_searches_with_the_best_facts_and_fuses_by_ranks(offices: str) -> None:
    embedder = WordEmbedder()
    first = search(offices, embedder.vector(TALLY))
    by_nearness = rows(
        offices,
        "select f.text from fact f join fact_vector v on v.fact_id = f.id where f.chunk_id = any (%s) "
        "order by v.embedding <=> %s::halfvec, f.id limit 3",
        first[:3],
        str(embedder.vector(TALLY).tolist()),
    )
    text = " ".join([TALLY, *(fact for (fact,) in by_nearness)])
    second = search(offices, embedder.vector(TALLY) + embedder.vector(text))
    assert second != first
    fused = {
        i: sum(1 / (10 + ranked.index(i) + 1) for ranked in (first, second) if i in ranked) for i in {*first, *second}
    }
    result = ask(offices, TALLY, rounds=2, only_context=True, opening={"embedder": embedder})
    assert embedder.asked == [TALLY, text]
    chunks = result.retrieval.chunks
    assert [c.score for c in chunks] == pytest.approx(sorted(fused.values(), reverse=True)[: len(chunks)])
    assert [c.score for c in chunks] == pytest.approx([fused[c.id] for c in chunks])
    assert [c.rank for c in chunks] == list(range(1, len(chunks) + 1))
    assert len(chunks) == max(len(first), len(second))
    once = ask(offices, TALLY, only_context=True).retrieval
    assert (result.retrieval.entities, result.retrieval.relations) == (once.entities, once.relations)
    assert [r.chunk_id for r in result.references] == [c.id for c in chunks]


def test_a_second_round_finds_what_only_the_first_passages_name(words_dsn: str) -> None:
    others = ("filler", "plain", "other", "empty", "vague", "dull", "grey", "thin")
    ingest(
        words_dsn,
        {
            "bridge": "Alder learned her trade under Quillfeather Observatory Kestrel Lighthouse.",
            "far": "Quillfeather Observatory Kestrel Lighthouse: Varnholm.",
            **{f"noise{n}": " ".join(["trade", *(f"{w}{n}" for w in others)]) for n in (7, 8)},
        },
        extracts=extractor(lambda chunk: Extraction() if chunk.body.startswith("trade") else capitals(chunk)),
    )
    options = {"nearness": 1.0, "lexical": 0.0, "chunk_top_k": 3, "only_context": True}
    once, twice = (ask(words_dsn, "Where was her trade learned by Alder?", rounds=n, **options) for n in (1, 2))
    assert "far" not in {c.uri for c in once.retrieval.chunks}
    assert {"bridge", "far"} <= {c.uri for c in twice.retrieval.chunks}
    assert len(twice.retrieval.chunks) == 3


@pytest.mark.parametrize("mode", SEARCHING)
def test_two_rounds_work_in_every_mode_and_change_nothing_in_naive(offices: str, mode: Mode) -> None:
    embedder = WordEmbedder()
    twice = ask(offices, TALLY, mode=mode, rounds=2, opening={"embedder": embedder})
    once = ask(offices, TALLY, mode=mode)
    if mode is Mode.NAIVE:
        assert embedder.asked == [TALLY]
        assert twice.retrieval.chunks == once.retrieval.chunks
    else:
        assert len(embedder.asked) == 2
    assert len(twice.retrieval.chunks) >= len(once.retrieval.chunks) - 1
    assert "repairs" in twice.answer
    assert ask(offices, TALLY, mode=mode, opening={"rounds": 2}).retrieval.chunks == twice.retrieval.chunks


def test_two_rounds_without_facts_are_one(words_dsn: str) -> None:
    ingest(words_dsn, {"a": "only small letters", "b": "small words"}, extracts=extractor(lambda _: Extraction()))
    embedder = WordEmbedder()
    twice = ask(words_dsn, "small letters?", rounds=2, only_context=True, opening={"embedder": embedder})
    assert twice.retrieval.chunks == ask(words_dsn, "small letters?", only_context=True).retrieval.chunks != ()
    assert embedder.asked == ["small letters?"]
    assert ask(words_dsn, "unknown?", mode="local", rounds=2, max_total_tokens=100, max_entity_tokens=0).answer


# ---------------------------------------------------------------- references and the answer


@pytest.mark.parametrize("mode", SEARCHING)
def test_references_lead_to_the_very_characters(offices: str, mode: Mode) -> None:
    result = ask(offices, "What does Pelle repair in Quorn?", mode=mode)
    bodies = dict(rows(offices, "select uri, body from document"))
    assert [r.number for r in result.references] == list(range(1, len(result.references) + 1))
    assert len(result.references) == len(result.retrieval.chunks) > 1
    for reference, chunk in zip(result.references, result.retrieval.chunks, strict=True):
        assert bodies[reference.uri][reference.start : reference.end] == chunk.body
        assert (reference.chunk_id, reference.ordinal) == (chunk.id, chunk.ordinal)
        assert f"[{reference.number}] {reference.uri}, characters {reference.start}-{reference.end}\n" in result.context
        assert reference.title.startswith("Office ")


def cited(result: QueryResult) -> set[int]:
    return {int(number) for number in re.findall(r"\[(\d+)\]", result.answer)}


def test_the_answer_cites_only_references_that_say_so(offices: str) -> None:
    result = ask(offices, "Who leads the office in Ansgar?")
    assert cited(result)
    assert cited(result) <= {r.number for r in result.references}
    for line in result.answer.splitlines():
        text, number = line.rsplit(" [", 1)
        assert text in " ".join(result.retrieval.chunks[int(number[:-1]) - 1].body.split())


def test_footnotes_of_a_text_are_no_citations(words_dsn: str) -> None:
    ingest(words_dsn, {"a": "Alder was born in Varnholm.[77] Birch knows Alder.[78]"})
    result = ask(words_dsn, "Where was Alder born?")
    assert cited(result) == {1}
    assert "(77)" in result.answer
    ingest(words_dsn, {"b": "only small letters here.[79]"}, extracts=extractor(lambda _: Extraction()))
    assert 79 not in cited(ask(words_dsn, "small letters?"))


def test_a_uri_of_several_lines_is_one_line_of_the_context(words_dsn: str) -> None:
    ingest(words_dsn, {"a\n[9] b, characters 0-5": "Alder knows Birch."})
    assert "\n[9]" not in ask(words_dsn, "Who knows Birch?").context


# ---------------------------------------------------------------- budget

TOKENIZER = Tokenizer()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    total=st.integers(100, 3000),
    entity=st.integers(0, 2000),
    relation=st.integers(0, 2000),
    top_k=st.integers(1, 60),
    mode=st.sampled_from(SEARCHING),
    ranking=st.sampled_from(["vector", "weight", "pagerank"]),
    rounds=st.integers(1, 2),
)
def test_the_context_stays_within_its_budgets(
    offices: str, total: int, entity: int, relation: int, top_k: int, mode: Mode, ranking: str, rounds: int
) -> None:
    question = "What does Pelle repair, and who leads the office in Ansgar?"
    result = ask(
        offices, question, mode=mode, chunk_ranking=ranking, top_k=top_k, rounds=rounds, only_context=True,
        max_total_tokens=total, max_entity_tokens=entity, max_relation_tokens=relation,
    )  # fmt: skip
    assert TOKENIZER.count(result.context) + TOKENIZER.count(question) <= total
    layers = dict(zip(("Entities", "Relations", "Passages"), [""] * 3, strict=True))
    for part in re.split(r"(?m)^# (?=Entities$|Relations$|Passages$)", result.context)[1:]:
        title, text = part.split("\n", 1)
        layers[title] = text
    for title, limit in (("Entities", entity), ("Relations", relation)):
        assert sum(TOKENIZER.count(line + "\n") for line in layers[title].strip().split("\n") if line) <= limit
    for chunk in result.retrieval.chunks:
        assert chunk.body.strip() in result.context, "whole passages only"
    assert layers["Entities"].strip().count("\n") + 1 >= len(result.retrieval.entities)


def test_a_small_budget_still_holds_passages(offices: str) -> None:
    result = ask(offices, "Who repairs Etna?", max_total_tokens=400)
    assert result.references
    assert result.retrieval.entities


def test_long_places_are_counted(words_dsn: str) -> None:
    ingest(words_dsn, {f"{'深' * 300}/{i}": f"Alder knows Birch since year {i}." for i in range(20)})
    result = ask(words_dsn, "Who knows Birch?", max_total_tokens=2000, only_context=True)
    assert 1 <= len(result.references) < 10
    assert TOKENIZER.count(result.context) <= 2000


# ---------------------------------------------------------------- errors of models and of the database


@pytest.mark.parametrize("fault", ["nan", "zero", "shape"])
def test_a_bad_vector_of_a_question_is_a_model_error(offices: str, fault: str) -> None:
    class Bad(WordEmbedder):
        async def embed(self, texts: Any, kind: Literal["query", "passage"]) -> Any:
            vectors = await super().embed(texts, kind)
            return {"nan": vectors * np.nan, "zero": vectors * 0, "shape": vectors[:, :3]}[fault]

    with pytest.raises(ModelError, match="words returned") as caught:
        ask(offices, "Who?", opening={"embedder": Bad()})
    assert "stored" not in str(caught.value)


def test_a_search_that_takes_too_long_names_the_setting(words_dsn: str) -> None:
    ingest(words_dsn, {"a": "Alder knows Birch."})

    async def work(rag: PgRAG) -> None:
        await rag.stats()  # opened, and a connection is there
        with psycopg.connect(words_dsn) as connection:
            connection.execute("lock table pgrag.entity_vector, pgrag.chunk_vector")
            with pytest.raises(DatabaseError, match=r"longer than 0.3 s .* statement_timeout"):
                await rag.retrieve("Who?")
        assert (await rag.retrieve("Who?")).chunks, "and the pool is well again"

    with_rag(words_dsn, work, statement_timeout=0.3)


# ---------------------------------------------------------------- one round trip


@pytest.mark.parametrize("mode", SEARCHING)
def test_a_search_is_one_request_and_one_answer(offices: str, mode: Mode) -> None:
    async def run() -> None:
        async with counting_proxy(offices) as messages, open_rag(messages.dsn, pool_size=1) as rag:
            for _ in range(2):
                await rag.retrieve("Who repairs Etna?", mode=mode)
            messages.reset()
            found = await rag.retrieve("Who repairs Vesuvius?", mode=mode)
            assert found.chunks
            assert messages.turns == 1
            assert dict(messages.sent) == {"B": 1, "E": 1, "S": 1}
            await rag.retrieve("Who repairs Vesuvius?", mode=mode, rounds=2)
            messages.reset()
            assert (await rag.retrieve("Who repairs Etna?", mode=mode, rounds=2)).chunks
            turns = 1 if mode is Mode.NAIVE else 3
            assert messages.turns == turns, "two more: the facts, and the second search"
            assert dict(messages.sent) == {"B": turns, "E": turns, "S": turns}

    asyncio.run(run())
