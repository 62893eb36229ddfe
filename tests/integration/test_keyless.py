"""The keyless path with its real models, over the example corpus: what a person sees who has no key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pgrag import Document, PgRAG, Settings
from pgrag.embedding.keyless import KeylessEmbedder
from pgrag.extraction.keyless.extractor import KeylessExtractor, KeylessKeywords, KeylessModels
from pgrag.types import IngestReport, QueryResult
from tests.support.postgres import Postgresql, create_database, drop_database
from tests.support.rag import count, rows

pytestmark = pytest.mark.models

T = TypeVar("T")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUESTIONS: list[dict[str, Any]] = [
    json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()
]
REFERENCES = 8


class Corpus:
    """The example documents in a database, and one set of models for all tests."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.embedder = KeylessEmbedder()
        self.models = KeylessModels()
        self.report = IngestReport()

    def run(self, work: Callable[[PgRAG], Awaitable[T]]) -> T:
        async def opened() -> T:
            async with PgRAG(
                settings=Settings(dsn=self.dsn, chunk_tokens=200, chunk_overlap=0),
                embedder=self.embedder,
                extractor=KeylessExtractor(self.models),
                keyword_extractor=KeylessKeywords(self.models),
            ) as rag:
                return await work(rag)

        return asyncio.run(opened())

    def ask(self, question: str, **options: Any) -> QueryResult:
        return self.run(lambda rag: rag.query(question, chunk_top_k=REFERENCES, **options))


@pytest.fixture(scope="session")
def corpus(server: Postgresql, template: str) -> Iterator[Corpus]:
    create_database(server.url(), "examples", template=template)
    made = Corpus(server.url(database="examples"))
    made.report = made.run(lambda rag: rag.ingest(EXAMPLES / "documents"))
    yield made
    drop_database(server.url(), "examples")


def missing(result: QueryResult, question: dict[str, Any], first: int = REFERENCES) -> list[str]:
    """The gold passages that are not among the first references."""
    found = [(c.uri, " ".join(c.body.split())) for c in result.retrieval.chunks[:first]]
    return [
        gold["text"]
        for gold in question["gold"]
        if not any(gold["document"] in uri and " ".join(gold["text"].split()) in body for uri, body in found)
    ]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [question for question in QUESTIONS if question["kind"] == kind]


def test_the_whole_corpus_is_ingested(corpus: Corpus) -> None:
    assert corpus.report.failures == ()
    assert corpus.report.empty == ()
    files = [path for path in (EXAMPLES / "documents").rglob("*") if path.is_file() and path.suffix != ".jsonl"]
    assert corpus.report.added > len(files)
    assert "no LLM" in corpus.report.notice
    again = corpus.run(lambda rag: rag.ingest(EXAMPLES / "documents"))
    assert (again.added, again.updated, again.skipped) == (0, 0, corpus.report.added)
    assert count(corpus.dsn, "stale") == 0


@pytest.mark.parametrize(
    "name",
    [
        "Corrigane",
        "Kestrelby",
        "Brindlecote",
        "Ilsabet Corwenna",
        "INC-2067",
        "QF-4410",
        "Quorndale Freight",
        "宁波枢纽",
    ],
)
def test_entities_that_a_reader_expects_are_there(corpus: Corpus, name: str) -> None:
    found = rows(corpus.dsn, "select mentions, degree from entities where name = %s", name)
    assert found, name
    assert found[0][0] >= 1


def test_one_service_is_linked_across_documents(corpus: Corpus) -> None:
    uris = rows(corpus.dsn, "select distinct uri from sources where 'Kestrelby' = any (entities)")
    assert len(uris) >= 2


@pytest.mark.parametrize("question", of_kind("single_fact"), ids=lambda q: q["id"])
def test_a_single_fact_is_within_the_first_three_and_quoted(corpus: Corpus, question: dict[str, Any]) -> None:
    result = corpus.ask(question["question"])
    assert missing(result, question, first=3) == []
    assert "no LLM" in result.notice
    assert " ".join(question["gold"][0]["text"].split())[:40] in result.answer


def test_chains_of_documents_are_found_that_plain_vector_search_misses(corpus: Corpus) -> None:
    lost = {
        mode: {
            question["id"]: missing(corpus.ask(question["question"], mode=mode, only_context=True), question)
            for question in of_kind("multi_hop")
        }
        for mode in ("mix", "naive")
    }
    passages = {mode: sum(map(len, of_mode.values())) for mode, of_mode in lost.items()}
    assert passages["mix"] <= 2
    assert passages["naive"] >= 2 * passages["mix"]
    assert lost["naive"]["mh-2"]
    assert not lost["mix"]["mh-2"]
    assert not lost["mix"]["mh-3"]


def test_a_chinese_question_is_answered_in_every_mode(corpus: Corpus) -> None:
    [question] = [q for q in of_kind("single_fact") if "宁波" in q["question"]]
    for mode in ("local", "hybrid", "mix", "naive"):
        assert missing(corpus.ask(question["question"], mode=mode, only_context=True), question) == [], mode


def test_references_lead_to_the_very_characters(corpus: Corpus) -> None:
    bodies = dict(rows(corpus.dsn, "select uri, body from document"))
    for question in QUESTIONS[::4]:
        result = corpus.ask(question["question"], only_context=True)
        for reference, chunk in zip(result.references, result.retrieval.chunks, strict=True):
            assert bodies[reference.uri][reference.start : reference.end] == chunk.body


def test_case_13_and_26_with_the_real_models(server: Postgresql, template: str, corpus: Corpus) -> None:
    name = "keyless_cases"
    create_database(server.url(), name, template=template)
    own = Corpus(server.url(database=name))
    own.embedder, own.models = corpus.embedder, corpus.models
    texts = [
        "The job failed with ORA-01555 because the undo segment was too small.",
        "The job failed with ORA-01554 because the listener was down.",
        "The job failed with ORA-01556 because the disk of the archive was full.",
        "In 2021 Ashcombe Robotics opened a plant in Rotterdam.",
        "The plant of ASHCOMBE ROBOTICS in Rotterdam builds pumps.",
        "ashcombe robotics was founded by Maria Delgado.",
    ]
    report = own.run(lambda rag: rag.ingest([Document(f"d:{i}", text) for i, text in enumerate(texts)]))
    assert report.failures == ()
    result = own.ask("What does ORA-01555 mean?")
    assert result.references[0].uri == "d:0"
    assert "ORA-01555" in result.answer
    [(mentions,)] = rows(own.dsn, "select mentions from entity where lower(name) = 'ashcombe robotics'")
    assert mentions >= 2
    drop_database(server.url(), name)
