"""Models that answer at once from a prepared corpus, and what is counted meanwhile: what all sides share.

Runs in LightRAG's environment as in pgrag's, so it needs numpy and nothing of either. A directory holds

    corpus.jsonl     a document a line: {uri, chunks: [{number, text, entities, relations}]}
                     entities: [[name, description]], relations: [[source, target, keywords, description]]
    questions.jsonl  {question, low, high}

A text's vector is what its words have in common with all texts and what they have of their own: a random direction
each. Equal texts have equal vectors on all sides, and unrelated ones a cosine of about .75, as those of real models.
"""

from __future__ import annotations

import re
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peers.worker import Timed, read_lines

DIMENSION = 384
ANCHOR = 1.75  # length of what all vectors share, against 1 for their own
THRESHOLD = 0.2  # the cosine below which LightRAG takes a match for noise
SUMMARY_WORDS = 120
BETWEEN = "\n\n"  # chunks of a document
PASSAGE = "Passage {}:"  # begins each chunk: by its number a model's answer is found
_NUMBER = re.compile(r"Passage (\d+):")
_WORDS = re.compile(r"\w+")


class Models(Timed):
    """Answers of a language model and vectors, at once."""

    def __init__(self, directory: Path) -> None:
        self.documents: dict[str, list[str]] = {}
        self.passages: dict[int, dict[str, Any]] = {}
        for document in read_lines(directory / "corpus.jsonl"):
            self.documents[document["uri"]] = [chunk["text"] for chunk in document["chunks"]]
            self.passages |= {chunk["number"]: chunk for chunk in document["chunks"]}
        self.questions = read_lines(directory / "questions.jsonl")
        shared = np.random.default_rng(0).standard_normal(DIMENSION)
        self._shared = (ANCHOR * shared / np.linalg.norm(shared)).astype(np.float32)
        self._words: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> Any:
        """(len(texts), DIMENSION) float32 unit vectors."""
        with self.at_work():
            self.embedded += texts
            return np.stack([self._vector(text) for text in texts])

    def passage(self, purpose: str, prompt: str) -> dict[str, Any] | None:
        """What the corpus says of the passage in the prompt; nothing when asked what was left out."""
        self.calls[purpose] += 1
        if purpose == "gleaning":
            return None
        if (found := _NUMBER.search(prompt)) is None:
            raise LookupError(f"no passage in a prompt: {prompt[-200:]!r}")
        return self.passages[int(found[1])]

    def summary(self, notes: str) -> str:
        """The first words of the notes."""
        self.calls["summary"] += 1
        return " ".join(_WORDS.findall(notes)[:SUMMARY_WORDS]) + "."

    def _vector(self, text: str) -> Any:
        own = np.sum([self._word(word) for word in _WORDS.findall(text.lower()) or [text]], axis=0)
        vector = self._shared + own / max(float(np.linalg.norm(own)), 1e-6)
        return vector / np.linalg.norm(vector)

    def _word(self, word: str) -> Any:
        if (vector := self._words.get(word)) is None:
            random = np.random.default_rng(zlib.crc32(word.encode()))
            vector = self._words[word] = random.standard_normal(DIMENSION, np.float32)
        return vector


class Watch:
    """What happens while it is used as a context: seconds, of the processor too, calls of models, texts embedded.

    The seconds in the models are taken off both.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def __enter__(self) -> Watch:
        self._calls, self._texts = self._models.calls.copy(), len(self._models.embedded)
        self._processor = time.process_time() - self._models.processor
        self._wall = time.perf_counter() - self._models.seconds
        return self

    def __exit__(self, *_: object) -> None:
        self.net = time.perf_counter() - self._models.seconds - self._wall
        self.processor = time.process_time() - self._models.processor - self._processor
        self.texts = self._models.embedded[self._texts :]
        self.calls = dict(self._models.calls - self._calls)

    def report(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "net": self.net,
            "processor": self.processor,
            "calls": self.calls,
            "embedded": len(self.texts),
            "distinct": len(set(self.texts)),
        }
