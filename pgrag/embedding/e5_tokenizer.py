"""The tokenizer of multilingual-e5-small: a character table, then a best split of each word into pieces."""

from __future__ import annotations

import re
import struct
import unicodedata
from itertools import pairwise
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_CHARACTERS = 16  # the longest piece of the vocabulary
CACHED_WORDS = 50_000
CACHED_WORD_CHARACTERS = 64
NORMALISED_AT_A_TIME = 1000  # unicodedata.normalize is quadratic in the length of a run of combining marks


class Cursor:
    """Reads little-endian values and arrays from a mapped file, one after the other; never past its end."""

    def __init__(self, data: mmap) -> None:
        self.data = data
        self.at = 0

    def values(self, layout: str) -> tuple[Any, ...]:
        """The values of a `struct` layout."""
        found = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return found

    def array(self, dtype: Any, count: int) -> NDArray[Any]:
        """A view of `count` items."""
        found = np.frombuffer(self.data, dtype, count, self.at)
        self.at += found.nbytes
        return found


class UnigramTokenizer:
    """SentencePiece unigram as XLM-RoBERTa uses it.

    No piece holds the space marker past its first character, so going word by word is exact. NUL and
    lone surrogates count as spaces; markers such as "</s>" in a text are text. Safe to share between threads.
    """

    def __init__(self, cursor: Cursor) -> None:
        count, self.start_id, self.end_id, _, self._unknown_id = cursor.values("5i")
        (size,) = cursor.values("Q")
        offsets: list[int] = cursor.array("<u4", count + 1).tolist()
        scores: list[float] = cursor.array("<f4", count).tolist()
        blob = cursor.array("u1", size).tobytes()
        pieces = [blob[a:b].decode("utf-8") for a, b in pairwise(offsets)]
        # the markers (<s>, <pad>, </s>, <unk>, <mask>) are the pieces with score 0: left out
        self._pieces = {p: (i, s) for i, (p, s) in enumerate(zip(pieces, scores, strict=True)) if s < 0}
        self._unknown_score = min(scores) - 10.0
        self._longest: dict[str, int] = {}  # first character -> length of the longest piece it starts
        for piece in self._pieces:
            self._longest[piece[0]] = max(self._longest.get(piece[0], 0), len(piece))
        self._table = dict.fromkeys([0, *range(0xD800, 0xE000)], " ")
        replaced, _ = cursor.values("iI")
        for _ in range(replaced):
            code_point, length = cursor.values("IB")
            self._table[code_point] = cursor.array("<u4", length).tobytes().decode("utf-32-le")
        self._cache: dict[str, list[int]] = {}

    def ids(self, text: str, limit: int) -> list[int]:
        """Token ids of `text` without the start and end marks; at most `limit`."""
        found: list[int] = []
        for word in filter(None, self._normalise(text).split(" ")):
            ids = self._cache.get(word) or self._split("\u2581" + word[: PIECE_CHARACTERS * limit])
            if len(self._cache) < CACHED_WORDS and len(word) < CACHED_WORD_CHARACTERS:
                self._cache[word] = ids
            found += ids
            if len(found) >= limit:
                break
        return found[:limit]

    def _normalise(self, text: str) -> str:
        if not text.isascii():
            if re.search("[\ud800-\udfff]", text):  # joins pairs; lone ones become U+FFFD
                text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            step = NORMALISED_AT_A_TIME
            text = "".join(unicodedata.normalize("NFC", text[i : i + step]) for i in range(0, len(text), step))
        return text.translate(self._table)

    def _split(self, word: str) -> list[int]:
        """Viterbi search for the best-scoring pieces of one word; runs of unknown characters count once."""
        size, pieces, longest = len(word), self._pieces, self._longest
        best = [0.0] + [-1e300] * size
        back: list[tuple[int, int]] = [(0, 0)] * (size + 1)
        for start in range(size):
            here = best[start]
            for end in range(start + 1, min(size, start + longest.get(word[start], 0)) + 1):
                hit = pieces.get(word[start:end])
                if hit is not None and here + hit[1] > best[end]:
                    best[end], back[end] = here + hit[1], (start, hit[0])
            if here + self._unknown_score > best[start + 1]:
                best[start + 1], back[start + 1] = here + self._unknown_score, (start, self._unknown_id)
        found: list[int] = []
        end = size
        while end:
            end, piece = back[end]
            if not (piece == self._unknown_id and found and found[-1] == piece):
                found.append(piece)
        return found[::-1]
