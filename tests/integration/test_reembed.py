"""Another embedding model: all vectors again, nothing extracted again. A real PostgreSQL, small models."""

from __future__ import annotations

import pytest

from pgrag.errors import DimensionError, ModelError, WorkspaceError
from pgrag.types import Chunk, ExtractedFact, ExtractedMention, Extraction, FactEntity, Role
from tests.support.models import WordEmbedder
from tests.support.rag import ask, count, extractor, ingest, value, with_rag

TEXTS = {"a": "Alder knows Birch. Birch hired Cedar.", "b": "Cedar sold Dogwood."}
VECTORS = ("chunk_vector", "fact_vector", "entity_vector", "relation_vector")


def test_a_workspace_changes_its_model_without_extracting_again(words_dsn: str) -> None:
    ingest(words_dsn, TEXTS)
    before = [count(words_dsn, table) for table in VECTORS]
    assert all(before)
    other = WordEmbedder(dimension=96, model="other words")
    with pytest.raises(DimensionError, match="384 dimensions"):
        ask(words_dsn, "Who knows Birch?", opening={"embedder": other})

    extracts = extractor()
    report = with_rag(words_dsn, lambda rag: rag.reembed(), embedder=other, extracts=extracts)
    assert [report.chunks, report.facts, report.entities, report.relations] == before
    assert extracts.asked == []
    assert [count(words_dsn, table) for table in VECTORS] == before
    assert value(words_dsn, "select embedding_model || ' ' || dimension from meta") == "other words 96"
    assert value(words_dsn, "select count(distinct vector_dims(embedding)) = 1 from chunk_vector")
    assert ask(words_dsn, "Who knows Birch?", opening={"embedder": other}).retrieval.chunks[0].uri == "a"
    with pytest.raises(DimensionError, match="96 dimensions"):
        ask(words_dsn, "Who knows Birch?")
    assert with_rag(words_dsn, lambda rag: rag.reembed(), embedder=other).chunks == 0  # nothing is left to do


def test_an_interrupted_change_goes_on_where_it_stopped(words_dsn: str) -> None:
    ingest(words_dsn, TEXTS)

    class Dying(WordEmbedder):
        async def embed(self, texts, kind):  # type: ignore[no-untyped-def]
            if any(text.startswith("Cedar sold") for text in texts) and not healed:
                raise ModelError("the embedding server is gone")
            return await super().embed(texts, kind)

    healed: list[bool] = []
    with pytest.raises(ModelError, match="is gone"):
        with_rag(words_dsn, lambda rag: rag.reembed(), embedder=Dying(model="other"), embedding_batch=1)
    with pytest.raises(WorkspaceError, match="holds vectors of other"):
        ask(words_dsn, "Who knows Birch?")
    healed.append(True)
    with_rag(words_dsn, lambda rag: rag.reembed(), embedder=Dying(model="other"))
    assert count(words_dsn, "chunk_vector") == count(words_dsn, "chunk")
    assert count(words_dsn, "fact_vector") == count(words_dsn, "fact")
    assert count(words_dsn, "stale") == 0


def test_a_fact_is_embedded_after_its_context_also_the_second_time(words_dsn: str) -> None:
    def told(chunk: Chunk) -> Extraction:
        fact = ExtractedFact("It sank.", (FactEntity("Vasa", Role.NAMED),), context="The Vasa")
        return Extraction((ExtractedMention("Vasa"),), (fact,))

    embedder, again = WordEmbedder(), WordEmbedder(model="other")
    ingest(words_dsn, {"a": "It sank."}, embedder=embedder, extracts=extractor(told))
    assert "The Vasa: It sank." in embedder.asked
    assert value(words_dsn, "select fact || '|' from sources") == "It sank.|"
    with_rag(words_dsn, lambda rag: rag.reembed(), embedder=again)
    assert "The Vasa: It sank." in again.asked
