"""The keyless embedder: multilingual-e5-small in worker threads of this process."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

if TYPE_CHECKING:
    from pgrag.embedding.e5 import E5
    from pgrag.types import Vectors

MODEL = "multilingual-e5-small"
DIMENSION = 384
# Unrelated texts score .75 to .84 with this model: no absolute value tells noise from a match, and ranks do that work.
# This one drops only what is further away than any two ordinary texts.
COSINE_THRESHOLD = 0.75
PART_CHARACTERS = (1000, 12_000)  # of a thread's piece of work; the upper one is about one forward pass
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
OPENBLAS_FUNCTIONS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


def limit_blas_threads() -> bool:
    """Give numpy's BLAS one thread, in the whole process, unless OPENBLAS_NUM_THREADS says how many.

    The embedder runs a thread per processor of its own. BLAS threads on top wait for one another on the same
    processors: measured, five times slower while PostgreSQL is busy, and far worse on a loaded machine. Call it
    first thing: then the variable does it. Once numpy is loaded, its OpenBLAS is told. False if that cannot be done.
    """
    chosen = "OPENBLAS_NUM_THREADS" in os.environ
    for name in BLAS_VARIABLES:
        os.environ.setdefault(name, "1")
    numpy = sys.modules.get("numpy")
    if chosen or numpy is None:
        return True
    libraries = Path(str(numpy.__file__)).parent.parent / "numpy.libs"
    for file in libraries.glob("*openblas*"):
        library = ctypes.CDLL(str(file))  # the one numpy has loaded
        for function in OPENBLAS_FUNCTIONS:
            if hasattr(library, function):
                getattr(library, function)(1)
                return True
    return False


class KeylessEmbedder:
    """Embeds without key, network or server (extra `local`); the model is loaded at the first text, once.

    Share one instance: it may be used from many tasks, event loops and threads at the same time. Loading calls
    `limit_blas_threads`.
    """

    model = MODEL
    dimension = DIMENSION
    prefixes = ("query: ", "passage: ")
    cosine_threshold = COSINE_THRESHOLD

    def __init__(self, threads: int | None = None) -> None:
        """`threads` forward passes run at a time; by default one per processor."""
        self._threads = threads or os.cpu_count() or 1
        # an anyio limiter belongs to one event loop, an embedder does not
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(f"pgrag-embedder-{id(self)}")
        self._loading = Lock()
        self._loaded: E5 | None = None

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Vectors:
        """(len(texts), 384) float32 unit vectors, whatever the texts hold. Raises MissingExtraError, ModelError.

        A cancelled call returns at once; passes that already run end unheard.
        """
        import numpy as np

        try:
            limiter = self._limiter.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(self._threads)
            self._limiter.set(limiter)
        vectors = np.zeros((len(texts), DIMENSION), np.float32)

        async def work(start: int, end: int) -> None:
            vectors[start:end] = await anyio.to_thread.run_sync(
                self._embed, texts[start:end], kind, abandon_on_cancel=True, limiter=limiter
            )

        if self._loaded is None:  # here, so that its errors do not come wrapped in an exception group
            await anyio.to_thread.run_sync(self._load, limiter=limiter)
        async with anyio.create_task_group() as group:
            for part in _parts([len(text) for text in texts], self._threads):
                group.start_soon(work, *part)
        return vectors

    def _embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Vectors:
        return self._load().embed(texts, kind)

    def _load(self) -> E5:
        with self._loading:
            if self._loaded is None:
                from pgrag.embedding.e5 import E5

                limit_blas_threads()
                self._loaded = E5()
            return self._loaded


def _parts(sizes: Sequence[int], threads: int) -> list[tuple[int, int]]:
    """Consecutive ranges of texts of about equal `sizes` (characters), for `threads` to take one by one."""
    least, most = PART_CHARACTERS
    room = min(most, max(least, -(-sum(sizes) // threads)))
    parts: list[tuple[int, int]] = []
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > room:
            parts.append((start, i))
            start, total = i, 0
        total += size
    if sizes:
        parts.append((start, len(sizes)))
    return parts
