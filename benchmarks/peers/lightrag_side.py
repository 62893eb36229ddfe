"""LightRAG's side of benchmarks/peers/lightrag.py; runs in LightRAG's own environment, never in pgrag's.

    python -I lightrag_side.py DIRECTORY files|postgres

Serves commands (worker.py) on LightRAG with its defaults over one of two backends: NetworkX, NanoVectorDB and
JSON files in the current directory, or the PostgreSQL that POSTGRES_* variables name, with plain tables for the graph.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

from lightrag import LightRAG, QueryParam
from lightrag.base import DocStatus
from lightrag.utils import EmbeddingFunc

sys.path.append(str(Path(__file__).resolve().parents[1]))

from peers.lightrag_models import BETWEEN, DIMENSION, THRESHOLD, Models, Watch
from peers.worker import peak_megabytes, serve

POSTGRES = {
    "kv_storage": "PGKVStorage",
    "vector_storage": "PGVectorStorage",
    "graph_storage": "PGTableGraphStorage",
    "doc_status_storage": "PGDocStatusStorage",
}


class Side:
    """The commands."""

    def __init__(self, directory: Path, backend: str) -> None:
        self._models = Models(directory)
        self._rag = LightRAG(
            working_dir="storage",
            **functions(self._models),
            vector_db_storage_cls_kwargs={"cosine_better_than_threshold": THRESHOLD},
            **(POSTGRES if backend == "postgres" else {}),
        )
        self._inserted = 0

    async def open(self) -> None:
        """Makes empty stores."""
        await self._rag.initialize_storages()

    async def ingest(self, uris: list[str]) -> dict[str, Any]:
        """Inserts these documents, in one call."""
        texts = [BETWEEN.join(self._models.documents[uri]) for uri in uris]
        with Watch(self._models) as watch:
            await self._rag.ainsert(
                texts, split_by_character=BETWEEN, split_by_character_only=True, ids=uris, file_paths=uris
            )
        self._inserted += len(uris)
        states = await self._rag.get_processing_status()
        if states.get("processed") != self._inserted:
            failed = await self._rag.doc_status.get_docs_by_statuses([DocStatus.FAILED])
            reasons = {state.error_msg for state in failed.values()}
            raise RuntimeError(f"LightRAG processed {states} of {self._inserted} documents: {reasons}")
        return watch.report()

    async def ask(self, numbers: list[int]) -> dict[str, Any]:
        """The context of each of these questions: what it took (`Watch`), and its characters."""
        found = []
        for row in (self._models.questions[number] for number in numbers):
            param = QueryParam(
                mode="mix",
                only_need_context=True,
                ll_keywords=list(row["low"]),
                hl_keywords=list(row["high"]),
                enable_rerank=False,
            )
            with Watch(self._models) as watch:
                context = await self._rag.aquery(row["question"], param)
            if not isinstance(context, str) or row["low"][0] not in context:
                raise RuntimeError(f"LightRAG found no context of {row['question']!r}: {str(context)[:200]}")
            found.append(watch.report() | {"characters": len(context)})
        return {"questions": found}

    async def delete(self, uri: str) -> dict[str, Any]:
        """Deletes a document."""
        with Watch(self._models) as watch:
            result = await self._rag.adelete_by_doc_id(uri)
        if result.status != "success":
            raise RuntimeError(f"LightRAG does not delete {uri}: {result.message}")
        self._inserted -= 1
        return watch.report()

    async def measure(self) -> dict[str, Any]:
        """What it holds."""
        graph = self._rag.chunk_entity_relation_graph
        nodes, edges = await graph.get_all_nodes(), await graph.get_all_edges()
        return {
            "entities": len(nodes),
            "relations": len(edges),
            "megabytes": megabytes(),
            "peak_mb": peak_megabytes(),
        }

    async def close(self) -> None:
        """Ends it."""
        await self._rag.finalize_storages()


def megabytes() -> float:
    """Of the files it keeps."""
    return sum(file.stat().st_size for file in Path("storage").rglob("*") if file.is_file()) / 2**20


def functions(models: Models) -> dict[str, Any]:
    """The models as LightRAG takes them: plain functions, since it copies what a method is bound to."""

    async def embed(texts: list[str], **_: Any) -> Any:
        return models.embed(texts)

    async def complete(prompt: str, system_prompt: str | None = None, history_messages: Any = (), **_: Any) -> str:
        with models.at_work():
            return answer(models, prompt, again=bool(history_messages))

    embedding = EmbeddingFunc(embedding_dim=DIMENSION, func=embed, model_name="words")
    return {"llm_model_func": complete, "llm_model_name": "scripted", "embedding_func": embedding}


def answer(models: Models, prompt: str, *, again: bool) -> str:
    """A summary, or the records of a passage; none when asked `again` for what was left out."""
    _, listed, notes = prompt.partition("Description List:")
    if listed:
        return models.summary(notes.partition("---Output---")[0].replace('"Description":', ""))
    passage = models.passage("gleaning" if again else "extraction", prompt)
    rows = []
    if passage is not None:
        rows += [f"entity<|#|>{name}<|#|>person<|#|>{said}" for name, said in passage["entities"]]
        rows += [
            f"relation<|#|>{source}<|#|>{target}<|#|>{','.join(keywords)}<|#|>{said}"
            for source, target, keywords, said in passage["relations"]
        ]
    return "\n".join([*rows, "<|COMPLETE|>"])


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # not counted in its time
    asyncio.run(serve(Side))
