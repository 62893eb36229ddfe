"""pgrag's side of benchmarks/peers/lightrag.py, in a process of its own as LightRAG's is.

    python lightrag_pgrag.py DIRECTORY DSN

Serves commands (worker.py) on a workspace of pgrag with default settings. Extraction, gleaning and summaries
go the way to a language model with all that belongs to it (prompts, cache, repetitions, reading the answer); only
LiteLLM is replaced, by the prepared answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydantic import SecretStr
from server import counting_proxy

from peers.lightrag_models import BETWEEN, DIMENSION, THRESHOLD, Models, Watch
from peers.worker import peak_megabytes, serve
from pgrag import Document, PgRAG
from pgrag.config import Settings
from pgrag.database.migrate import initialise
from pgrag.llm.litellm_models import Model
from pgrag.llm.requests import Requests, Server
from pgrag.types import Keywords

MODEL = "scripted"


class ScriptedEmbedder:
    """The corpus's vectors as pgrag's `Embedder`."""

    model = "words"
    dimension = DIMENSION
    prefixes = ("", "")
    cosine_threshold = THRESHOLD

    def __init__(self, models: Models) -> None:
        self._models = models

    async def embed(self, texts: Any, kind: Literal["query", "passage"]) -> Any:
        """(len(texts), DIMENSION)."""
        return self._models.embed(texts)


class ScriptedRequests(Requests):
    """Requests to the prepared answers: pgrag's own, but for the module that sends them."""

    def __init__(self, settings: Settings, models: Models) -> None:
        super().__init__(settings, asyncio.sleep)
        self._models = models

    async def model(self, server: Server, name: str) -> Model:
        """A model of that name, priced at nothing."""
        return Model(SimpleNamespace(acompletion=self._complete, model_cost={}), name, MODEL, name)

    async def _complete(self, *, messages: list[dict[str, str]], **_: Any) -> Any:
        with self._models.at_work():
            text = self._answer(messages)
        choice = SimpleNamespace(message=SimpleNamespace(content=text), finish_reason="stop")
        return SimpleNamespace(choices=[choice], usage=None)

    def _answer(self, messages: list[dict[str, str]]) -> str:
        asked = messages[1]["content"]
        _, noted, notes = asked.partition("<<< notes ")
        if noted:
            return self._models.summary(notes.partition("\n")[2].rpartition("\nnotes ")[0])
        passage = self._models.passage("gleaning" if len(messages) > 2 else "extraction", asked)
        found = passage or {"entities": [], "relations": []}
        return json.dumps(
            {
                "entities": [{"name": n, "type": "person", "description": said} for n, said in found["entities"]],
                "relations": [
                    {"source": s, "target": t, "keywords": keywords, "description": said, "strength": 5}
                    for s, t, keywords, said in found["relations"]
                ],
                "keywords": [],
            }
        )


class Side:
    """The commands."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self._models = Models(directory)
        self._settings = Settings(dsn=SecretStr(dsn), llm_model=MODEL)
        self._rag = self._pgrag(self._settings)

    async def open(self) -> None:
        """Makes an empty workspace."""
        await asyncio.to_thread(initialise, self._settings, ScriptedEmbedder(self._models))
        await self._rag.__aenter__()

    async def ingest(self, uris: list[str]) -> dict[str, Any]:
        """Ingests these documents, in one call."""
        documents = [Document(uri, BETWEEN.join(self._models.documents[uri])) for uri in uris]
        with Watch(self._models) as watch:
            report = await self._rag.ingest(documents)
        if report.added != len(uris) or report.failures or report.dropped:
            raise RuntimeError(f"pgrag ingested {report} of {len(uris)} documents")
        return watch.report()

    async def ask(self, numbers: list[int], plain: bool = False) -> dict[str, Any]:
        """The context of each of these questions: what it took (`Watch`), and its characters.

        plain: passages in LightRAG's order, by vectors alone.
        """
        options: dict[str, Any] = {"chunk_ranking": "vector", "lexical": 0.0} if plain else {}
        found = []
        for row in (self._models.questions[number] for number in numbers):
            keywords = Keywords(tuple(row["low"]), tuple(row["high"]))
            with Watch(self._models) as watch:
                result = await self._rag.query(row["question"], keywords=keywords, only_context=True, **options)
            context = result.context
            if row["low"][0] not in context:
                raise RuntimeError(f"pgrag found no context of {row['question']!r}: {context[:200]}")
            found.append(watch.report() | {"characters": len(context)})
        return {"questions": found}

    async def wire(self) -> dict[str, Any]:
        """Requests of a warm `query` for the context, and of a warm `retrieve`, through a counting proxy."""
        assert self._settings.dsn is not None, "given"
        row = self._models.questions[0]
        keywords = Keywords(tuple(row["low"]), tuple(row["high"]))
        async with (
            counting_proxy(self._settings.dsn.get_secret_value()) as proxy,
            self._pgrag(Settings(dsn=SecretStr(proxy.dsn), llm_model=MODEL, pool_size=1)) as rag,
        ):
            for _ in range(3):
                proxy.turns = 0
                await rag.query(row["question"], keywords=keywords, only_context=True)
                context = proxy.turns
                await rag.retrieve(row["question"], keywords=keywords)
                retrieve = proxy.turns - context
        return {"context": context, "retrieve": retrieve}

    async def delete(self, uri: str) -> dict[str, Any]:
        """Deletes a document, and makes anew what else it had a part in."""
        with Watch(self._models) as watch:
            started = time.perf_counter()
            report = await self._rag.delete(uri)
            gone = time.perf_counter() - started
            await self._rag.refresh()
        if report.documents != 1:
            raise RuntimeError(f"pgrag does not delete {uri}: {report}")
        return watch.report() | {"gone": gone}

    async def measure(self) -> dict[str, Any]:
        """What it holds."""
        stats = await self._rag.stats()
        kept = stats.chunks + stats.entities + stats.relations + stats.facts
        return {
            "entities": stats.entities,
            "relations": stats.relations,
            "vectors": kept,
            "peak_mb": peak_megabytes(),
        }

    async def close(self) -> None:
        """Ends it."""
        await self._rag.__aexit__(None, None, None)

    def _pgrag(self, settings: Settings) -> PgRAG:
        rag = PgRAG(settings=settings, embedder=ScriptedEmbedder(self._models), chunker=parts)
        rag._models._gateway.requests = ScriptedRequests(settings, self._models)
        return rag


def parts(document: Document) -> list[str]:
    """The chunks of a document."""
    return document.body.split(BETWEEN)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # as on LightRAG's side
    asyncio.run(serve(Side))
