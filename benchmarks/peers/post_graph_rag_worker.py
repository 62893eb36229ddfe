"""One side of the comparison with post-graph-rag, in a process of its own (worker.py).

    python post_graph_rag_worker.py DIRECTORY pgrag|peer

It runs in pgrag's environment or in the peer's (environment.py) and imports only what is there. Its commands:

    {"do": "open", "dsn", "connections"}    connections: at most so many, null: the system's own default
    {"do": "ingest", "first", "end"}        documents -> seconds, of which in models; texts embedded so far, distinct
    {"do": "query", "variant", "first", "end"}  -> milliseconds net of models, characters of contexts, passages found
    {"do": "delete", "document"}            -> seconds, and those of making anew what the document had a part in
    {"do": "memory"}                        -> the most that the process has held, in MB
    {"do": "close"}

DIRECTORY holds corpus.jsonl, {uri, chunks: [{text, entities: [[name, type, description]], triples: [[subject,
predicate, object, description]]}]}, and questions.jsonl, {question, low, high, chunk}. Nothing is generated: both sides
get the same extraction, keywords and vectors, at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from peers.worker import Timed, peak_megabytes, read_lines, serve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

DIMENSION = 384
BUCKETS = 4096
PARAGRAPH = "\n\n"  # between the chunks of a document; both systems are told to cut there
REALM = "benchmark"


class Models(Timed):
    """Instant models: the vector of a text is the sum of fixed ones of its words."""

    model, dimension, prefixes, cosine_threshold = "words", DIMENSION, ("", ""), 0.0
    label = digest = "benchmark"

    def __init__(self, corpus: Sequence[dict[str, Any]]) -> None:
        self._words = np.random.default_rng(7).standard_normal((BUCKETS, DIMENSION), np.float32)
        self._extracted: dict[str, dict[str, Any]] = {
            chunk["text"]: chunk for document in corpus for chunk in document["chunks"]
        }
        self.asked = 0
        self.distinct: set[int] = set()

    def vectors(self, texts: Sequence[str]) -> Floats:
        """(len(texts), DIMENSION) unit vectors."""
        with self.at_work():
            rows = [
                self._words[[zlib.crc32(word.encode()) % BUCKETS for word in text.lower().split() or [text]]].sum(0)
                for text in texts
            ]
            found: Floats = np.stack(rows) if rows else np.zeros((0, DIMENSION), np.float32)
            found /= np.linalg.norm(found, axis=1, keepdims=True)
            self.asked += len(texts)
            self.distinct.update(map(hash, texts))
            return found

    def lists(self, texts: Sequence[str]) -> list[list[float]]:
        """The same as a server's answer is read."""
        vectors = self.vectors(texts)
        with self.at_work():
            found: list[list[float]] = vectors.tolist()
            return found

    def extracted(self, text: str) -> dict[str, Any]:
        """What is in a chunk."""
        return self._extracted[text]

    # ------------------------------------------------------------ as pgrag asks

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Floats:
        """(len(texts), DIMENSION)."""
        return self.vectors(texts)

    async def keywords(self, question: str, history: Sequence[Any] = ()) -> Any:
        """Never asked for: they come with the question."""
        raise NotImplementedError(question)

    async def extract(self, chunks: Sequence[Any]) -> list[Any]:
        """Mentions, and facts of two entities."""
        from pgrag.types import ExtractedFact, ExtractedMention, Extraction, FactEntity, Role

        found = []
        with self.at_work():
            for row in (self.extracted(chunk.body.strip()) for chunk in chunks):
                mentions = tuple(ExtractedMention(*entity) for entity in row["entities"])
                facts = tuple(
                    ExtractedFact(text, (FactEntity(s, Role.SOURCE), FactEntity(o, Role.TARGET)), (predicate,))
                    for s, predicate, o, text in row["triples"]
                )
                found.append(Extraction(mentions, facts))
        return found


class Side(Protocol):
    """A system under test."""

    async def open(self, dsn: str, connections: int | None) -> None:
        """Makes what it needs in the database, if it is not there."""

    async def ingest(self, documents: Sequence[dict[str, Any]]) -> None:
        """Returns when all of them can be searched. Raises RuntimeError if anything is left out."""

    async def query(self, row: dict[str, Any], variant: dict[str, Any]) -> str:
        """The text of the context."""

    async def delete(self, uri: str) -> None:
        """Raises RuntimeError if there is no such document."""

    async def refresh(self) -> None:
        """Makes anew what a deletion has left to do, if it has."""

    async def close(self) -> None:
        """Closes its connections."""


class Pgrag:
    """pgrag, by its library."""

    def __init__(self, models: Models) -> None:
        from pgrag import Document, PgRAG, Settings
        from pgrag.types import Keywords

        self._models = models
        self._document, self._pgrag, self._settings, self._keywords = Document, PgRAG, Settings, Keywords
        self._rag: Any = None

    async def open(self, dsn: str, connections: int | None) -> None:
        """As Side."""
        given = {"dsn": dsn, "split_by_character": PARAGRAPH, "split_by_character_only": True}
        settings = self._settings.model_validate(given | ({"pool_size": connections} if connections else {}))
        models = self._models
        self._rag = self._pgrag(settings=settings, embedder=models, extractor=models, keyword_extractor=models)
        await self._rag.__aenter__()
        await self._rag.ingest([])  # makes the workspace

    async def ingest(self, documents: Sequence[dict[str, Any]]) -> None:
        """As Side."""
        given = [self._document(d["uri"], PARAGRAPH.join(c["text"] for c in d["chunks"])) for d in documents]
        report = await self._rag.ingest(given)
        wanted = sum(len(d["chunks"]) for d in documents)
        if report.failures or report.empty or (report.added, report.chunks) != (len(documents), wanted):
            raise RuntimeError(f"{len(documents)} documents, {wanted} chunks: {report}")

    async def query(self, row: dict[str, Any], variant: dict[str, Any]) -> str:
        """As Side."""
        keywords = self._keywords(tuple(row["low"]), tuple(row["high"]))
        found = await self._rag.query(row["question"], keywords=keywords, only_context=True, **variant)
        return str(found.context)

    async def delete(self, uri: str) -> None:
        """As Side."""
        report = await self._rag.delete(uri)
        if report.documents != 1:
            raise RuntimeError(f"{uri}: {report}")

    async def refresh(self) -> None:
        """As Side."""
        await self._rag.refresh()

    async def close(self) -> None:
        """As Side."""
        await self._rag.__aexit__(None, None, None)


class PostGraphRag:
    """post-graph-rag, by its library."""

    def __init__(self, models: Models) -> None:
        import post_graph_rag

        class InstantModels(post_graph_rag.LLMService):
            """Vectors at once; what it would have a model answer is kept instead."""

            prompt = ""

            async def get_embedding(self, text: str) -> list[float]:
                """One vector."""
                return models.lists([text])[0]

            async def get_embeddings(self, texts: list[str]) -> list[list[float]]:
                """A vector a text."""
                return models.lists(texts)

            async def chat_completion(self, messages: Any, response_format: Any = None, role: Any = None) -> str:
                """Only answers are asked for: keywords and extractions are given."""
                if role != "synthesis":
                    raise RuntimeError(f"a model was asked for {role}")
                self.prompt = messages[-1]["content"]
                return "-"

        self._package, self._models, self._service = post_graph_rag, models, InstantModels
        self._rag: Any = None

    async def open(self, dsn: str, connections: int | None) -> None:
        """As Side."""
        config = self._package.RAGConfig(
            db_uri=dsn,
            realm=REALM,
            embedding_dim=DIMENSION,
            extraction_fn=self._extract,
            **({"pool_min_size": connections, "pool_max_size": connections} if connections else {}),
        )
        self._rag = self._package.GraphRAG(config, llm=self._service(config), chunker=lambda t: t.split(PARAGRAPH))
        await self._rag.initialize()

    def _extract(self, text: str, _: Any) -> Any:
        with self._models.at_work():
            row = self._models.extracted(text)
            entities = [self._package.Entity(name=n, type=t, description=d) for n, t, d in row["entities"]]
            triples = [
                self._package.Triple(subject=s, predicate=p, object=o, description=d) for s, p, o, d in row["triples"]
            ]
            return self._package.ExtractionResult(entities=entities, triples=triples)

    async def ingest(self, documents: Sequence[dict[str, Any]]) -> None:
        """As Side. One after another: its writes must not run at the same time."""
        for document in documents:
            chunks = document["chunks"]
            text = PARAGRAPH.join(chunk["text"] for chunk in chunks)
            done = await self._rag.index_text(text, metadata={"source": document["uri"]})
            written = sum(result["triples_extracted"] for result in done)
            if (
                (len(done), written) != (len(chunks), sum(len(chunk["triples"]) for chunk in chunks))
                or any(result["embeddings_degraded"] for result in done)
                or sum(result["structure_errors"] for result in done)
            ):
                raise RuntimeError(f"{document['uri']}: {done}")

    async def query(self, row: dict[str, Any], variant: dict[str, Any]) -> str:
        """As Side: the prompt it would send, which is its context and a page of instructions."""
        keywords = {"ll_keywords": list(row["low"]), "hl_keywords": list(row["high"])}
        await self._rag.query(row["question"], self._package.QueryParam(**keywords, **variant))
        return str(self._rag.llm.prompt)

    async def delete(self, uri: str) -> None:
        """As Side."""
        gone = await self._rag.store.delete_document_chunks(uri)
        if not gone["chunks"]:
            raise RuntimeError(f"{uri}: {gone}")

    async def refresh(self) -> None:
        """As Side: it has nothing to do."""

    async def close(self) -> None:
        """As Side."""
        await self._rag.close()


class Worker:
    """Serves the commands by one side."""

    def __init__(self, directory: Path, side: str) -> None:
        self._corpus = read_lines(directory / "corpus.jsonl")
        self._questions = read_lines(directory / "questions.jsonl")
        self._models = Models(self._corpus)
        self._side: Side = Pgrag(self._models) if side == "pgrag" else PostGraphRag(self._models)
        self.open, self.close = self._side.open, self._side.close

    async def ingest(self, first: int, end: int) -> dict[str, Any]:
        """Documents."""
        models = self._models
        models.seconds = 0.0
        started = time.perf_counter()
        await self._side.ingest(self._corpus[first:end])
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "models": models.seconds, "asked": models.asked, "distinct": len(models.distinct)}

    async def query(self, variant: dict[str, Any], first: int, end: int) -> dict[str, Any]:
        """Questions."""
        times, characters, found = [], [], 0
        for row in self._questions[first:end]:
            self._models.seconds = 0.0
            started = time.perf_counter()
            context = await self._side.query(row, variant)
            times.append((time.perf_counter() - started - self._models.seconds) * 1000)
            characters.append(len(context))
            found += row["chunk"] in context
        return {"ms": times, "characters": characters, "found": found}

    async def delete(self, document: int) -> dict[str, Any]:
        """A document, and what it leaves to do."""
        started = time.perf_counter()
        await self._side.delete(self._corpus[document]["uri"])
        seconds = time.perf_counter() - started
        self._models.seconds = 0.0
        await self._side.refresh()
        return {"seconds": seconds, "refresh": time.perf_counter() - started - seconds - self._models.seconds}

    async def memory(self) -> dict[str, Any]:
        """Of this process."""
        return {"mb": peak_megabytes()}


if __name__ == "__main__":
    asyncio.run(serve(Worker))
