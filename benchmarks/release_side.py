"""One side of releases.py: the pgrag of PYTHONPATH, a checkout of a release or the working tree, in its own process.

    PYTHONPATH=TREE python release_side.py QUESTIONS.npz TREE

Serves commands (peers/worker.py). Of pgrag it imports what `pgrag` itself exports and nothing else, for modules move.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
from peers.worker import serve

import pgrag


class Prepared:
    """Embedder, extractor and keyword extractor that answer at once for the question that is being asked."""

    label = digest = "benchmark"

    def __init__(self, file: Path) -> None:
        with np.load(file) as stored:
            said = json.loads(str(stored["said"]))
            self._vectors = {kind: stored[kind] for kind in ("question", "low", "high")}
        self.model, self.dimension, self.cosine_threshold = said["model"], said["dimension"], said["threshold"]
        self.prefixes = ("", "")
        self.questions: list[dict[str, Any]] = said["questions"]
        self.number = 0

    async def embed(self, texts: Sequence[str], kind: str) -> Any:
        """By what a text says, for releases may join keywords in other ways."""
        asked = self.questions[self.number]
        found = []
        for text in texts:
            if text == asked["text"]:
                vectors = self._vectors["question"]
            else:
                vectors = self._vectors["low" if all(word in text for word in asked["low"]) else "high"]
            found.append(vectors[self.number])
        return np.stack(found)

    async def keywords(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> Any:
        """Those of the question."""
        asked = self.questions[self.number]
        return pgrag.Keywords(tuple(asked["low"]), tuple(asked["high"]))

    async def extract(self, chunks: Sequence[Any]) -> list[Any]:
        """Never asked for: no document is ingested."""
        return [pgrag.PgragError("this workspace is for searching") for _ in chunks]


class Side:
    """The commands."""

    def __init__(self, questions: Path, tree: str) -> None:
        if Path(tree).resolve() not in Path(pgrag.__file__).resolve().parents:
            raise SystemExit(f"pgrag was imported from {pgrag.__file__}, not from {tree}")
        self._models = Prepared(questions)
        self._stack = AsyncExitStack()
        self._rag: Any = None

    async def make(self, dsn: str, workspace: str) -> dict[str, Any]:
        """Makes an empty workspace if there is none; returns its schema."""
        settings = self._settings(dsn, workspace)
        async with self._open(settings) as rag:
            await rag.ingest([])
        return {"schema": settings.schema_name}

    async def open(self, dsn: str, workspace: str) -> None:
        """Opens a workspace for questions."""
        self._rag = await self._stack.enter_async_context(self._open(self._settings(dsn, workspace)))

    async def ask(self, number: int, options: dict[str, Any], filter: dict[str, Any]) -> dict[str, Any]:
        """Milliseconds of a whole `retrieve()`, and the ids it found by layer, best first."""
        self._models.number = number
        text = self._models.questions[number]["text"]
        given = dict(options, filter=pgrag.Filter(**filter)) if filter else options
        started = time.perf_counter()
        found = await self._rag.retrieve(text, **given)
        ms = (time.perf_counter() - started) * 1000
        layers = {layer: [row.id for row in getattr(found, layer)] for layer in ("entities", "relations", "chunks")}
        return {"ms": round(ms, 4), "rows": layers}

    async def close(self) -> None:
        """Closes the workspace."""
        await self._stack.aclose()

    def _open(self, settings: Any) -> Any:
        m = self._models
        return pgrag.PgRAG(settings=settings, embedder=m, extractor=m, keyword_extractor=m)

    def _settings(self, dsn: str, workspace: str) -> Any:
        return pgrag.Settings(dsn=dsn, workspace=workspace, pool_size=1, statement_timeout=600)


if __name__ == "__main__":
    import asyncio

    asyncio.run(serve(Side))
