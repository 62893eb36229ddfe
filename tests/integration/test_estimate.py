"""A dry run: right numbers, no call to any model, no write."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgrag import Document, PgRAG, Settings
from pgrag.errors import ModelAccessError
from pgrag.text.tokens import Tokenizer
from pgrag.types import DocumentFailure, IngestEstimate
from tests.support.limits import PROGRAM_SECONDS
from tests.support.llm import llm_rag, think, using
from tests.support.openai_server import OpenAIServer
from tests.support.rag import graph, with_rag

NAMES = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir")
VOYAGES = "\n\n".join(f"{n} sailed the long way round the cape with tea and a crew of twenty men." for n in NAMES)
CHINESE = "王小明在上海的东方研究所工作，研究所由李华于一九九八年创立，他们一起出海航行。"
SMALL = {"chunk_tokens": 32, "chunk_overlap": 0}
TOKENIZER = Tokenizer()


def estimate(dsn: str, texts: dict[str, str], **settings: Any) -> IngestEstimate:
    """With a priced model behind an address where nobody answers: a call would fail."""
    given: dict[str, Any] = {
        "dsn": dsn, "llm_model": "openai/gpt-4o-mini", "llm_api_base": "http://127.0.0.1:1/v1", "llm_retries": 0,
        "embedding_model": "openai/text-embedding-3-small", "embedding_api_base": "http://127.0.0.1:1/v1",
        **SMALL, **settings,
    }  # fmt: skip
    documents = [Document(uri, text) for uri, text in texts.items()]
    return asyncio.run(using(PgRAG(settings=Settings(**given)), lambda rag: rag.estimate(documents)))


def test_an_empty_database_stays_empty(empty_dsn: str) -> None:
    found = estimate(empty_dsn, {"a": VOYAGES, "b": VOYAGES, "c": " \n"})
    assert (found.documents_new, found.documents_changed, found.documents_skipped) == (2, 0, 0)
    assert found.failures == (DocumentFailure("c", "is empty: there is nothing to ingest"),)
    assert (found.chunks, found.chunks_to_extract, found.llm_calls) == (12, 6, 12), "equal texts once"
    assert (found.extraction_model, found.embedding_model) == ("openai/gpt-4o-mini", "openai/text-embedding-3-small")
    tokens = [TOKENIZER.count(part) for part in VOYAGES.split("\n\n")]
    assert len(tokens) == 6
    assert found.completion_tokens == pytest.approx(1.65 * sum(tokens), rel=0.1)
    assert found.embedding_tokens == pytest.approx(sum(tokens) + 2 * found.completion_tokens, rel=0.05)
    dollars = (found.prompt_tokens * 0.15 + found.completion_tokens * 0.60 + found.embedding_tokens * 0.02) / 1e6
    assert found.cost == pytest.approx(Decimal(dollars))
    assert "1.2 tokens a token of the chunk, 0.45 for each gleaning" in found.assumptions
    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("select from pg_namespace where nspname like 'pgrag%'").fetchall() == []


def test_the_estimated_prompts_are_those_that_are_sent(words_dsn: str) -> None:
    """Whatever the answers are: without gleaning, prompts depend on the chunks alone."""
    documents = [Document("a", VOYAGES), Document("b", CHINESE)]
    with OpenAIServer(dimension=384) as llm:
        brain = think(llm)
        found = asyncio.run(using(llm_rag(words_dsn, llm, gleaning=0), lambda rag: rag.estimate(documents)))
        assert llm.requests == []
        asyncio.run(using(llm_rag(words_dsn, llm, gleaning=0), lambda rag: rag.ingest(documents)))
        sent = [message["content"] for request in llm.of("chat") for message in request.body["messages"]]
        assert found.llm_calls == len(brain.seen) > 6
        assert found.prompt_tokens == pytest.approx(sum(TOKENIZER.count_many(sent)), rel=0.01)
        assert found.cost is None, "nobody knows the price of this one"
        again = asyncio.run(using(llm_rag(words_dsn, llm, gleaning=0), lambda rag: rag.estimate(documents[0])))
    assert (again.documents_skipped, again.chunks, again.llm_calls, again.cost) == (1, 0, 0, Decimal(0))


def test_each_gleaning_repeats_the_conversation(empty_dsn: str) -> None:
    one, two, three = (estimate(empty_dsn, {"a": VOYAGES}, gleaning=n) for n in range(3))
    assert (one.llm_calls, two.llm_calls, three.llm_calls) == (6, 12, 18)
    assert one.prompt_tokens < two.prompt_tokens - one.prompt_tokens < three.prompt_tokens - two.prompt_tokens
    gleaned = two.completion_tokens - one.completion_tokens
    assert gleaned == three.completion_tokens - two.completion_tokens < one.completion_tokens
    limited = estimate(empty_dsn, {"a": VOYAGES}, gleaning=2, max_output_tokens=5)
    assert limited.completion_tokens == 18 * 5


def test_only_what_is_new_is_counted_and_nothing_is_written(words_dsn: str) -> None:
    texts = {"a": VOYAGES, "b": CHINESE}

    async def work(rag: PgRAG) -> tuple[IngestEstimate, IngestEstimate]:
        await rag.ingest([Document(uri, text) for uri, text in texts.items()])
        before = graph(words_dsn)
        changed = Document("a", VOYAGES.replace("Cedar", "Cypress"))
        found = await rag.estimate([changed, Document("b", CHINESE), Document("c", VOYAGES)])
        relabelled = await rag.estimate([Document("b", CHINESE)], labels=["new"])
        assert graph(words_dsn) == before
        return found, relabelled

    found, relabelled = with_rag(words_dsn, work, **SMALL)
    assert (found.documents_new, found.documents_changed, found.documents_skipped) == (1, 1, 1)
    assert (found.chunks, found.chunks_to_extract) == (12, 1), "one text that nobody has extracted"
    assert (relabelled.documents_changed, relabelled.chunks_to_extract) == (1, 0)
    assert (found.llm_calls, found.prompt_tokens, found.cost) == (0, 0, Decimal(0))
    assert (found.extraction_model, found.embedding_model) == (None, "words")
    assert "no call to an LLM counted (by function)" in found.assumptions


def test_what_cannot_be_read_or_cut_is_told_as_by_ingest(words_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Alder met Birch.", "utf-8")
    (tmp_path / "long.txt").write_text("Alder met Birch. " * 40, "utf-8")
    (tmp_path / "bad.md").write_bytes(b"good\xff\xfe")
    (tmp_path / "picture.png").write_bytes(b"png")
    strict: dict[str, Any] = {**SMALL, "split_by_character": "|", "split_by_character_only": True}

    async def work(rag: PgRAG) -> tuple[IngestEstimate, Any]:
        return await rag.estimate(tmp_path), await rag.ingest(tmp_path)

    found, report = with_rag(words_dsn, work, **strict)
    assert (found.documents_new, len(found.failures)) == (1, 2)
    assert found.failures == report.failures
    assert found.skipped_files == report.skipped_files == ((str(tmp_path / "picture.png"), found.skipped_files[0][1]),)


def test_a_model_that_cannot_be_is_an_error_and_a_keyless_estimate_needs_no_litellm(empty_dsn: str) -> None:
    with pytest.raises(ModelAccessError, match="names no model LiteLLM can place"):
        estimate(empty_dsn, {"a": VOYAGES}, llm_model="nobody-knows-this")
    program = (
        "import asyncio, sys\n"
        "from pgrag import Document, PgRAG\n"
        "async def main():\n"
        "    async with PgRAG(sys.argv[1]) as rag:\n"
        "        found = await rag.estimate(Document('a', 'Alder met Birch.'))\n"
        "    print(found.documents_new, found.cost, found.embedding_model)\n"
        "asyncio.run(main())\n"
        "print({'litellm', 'spacy', 'sqlalchemy', 'alembic', 'onnxruntime'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, empty_dsn], capture_output=True, text=True, timeout=PROGRAM_SECONDS
    )
    assert (ran.stdout, ran.stderr) == ("1 0 multilingual-e5-small\nset()\n", "")
