"""What exact search finds over the passages and vectors of a workspace: BM25, dense, and the sum of both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pgrag.text.folding import words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating]

K1 = 1.2
B = 0.75
TOO_COMMON = 0.6  # of the passages: a word in more of them says nothing
LEXICAL_SHARE = 0.1  # of the best passage's BM25, in `hybrid`
LENGTH = 20  # of a ranking


class BM25:
    """BM25 (Robertson and Zaragoza 2009) over folded words, with an idf that is never negative."""

    def __init__(self, texts: Sequence[str], tokenizer: Callable[[str], list[str]] = words) -> None:
        self._tokenizer = tokenizer
        self._count = len(texts)
        found = [tokenizer(text) for text in texts]
        lengths = np.array([len(f) for f in found], np.float64)
        norms = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9)) if len(found) else lengths
        postings: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
        for i, counted in enumerate(map(Counter, found)):
            for word, frequency in counted.items():
                ids, weights = postings[word]
                ids.append(i)
                weights.append(frequency * (K1 + 1) / (frequency + norms[i]))
        self._postings = {word: (np.array(ids), np.array(weights)) for word, (ids, weights) in postings.items()}

    def scores(self, question: str) -> Floats:
        """(n,) the score of each text; a word counts once however often the question has it."""
        scores = np.zeros(self._count)
        for word in dict.fromkeys(self._tokenizer(question)):
            ids, weights = self._postings.get(word, ((), ()))
            if 0 < len(ids) <= max(TOO_COMMON * self._count, 1):
                scores[ids] += weights * np.log(1 + (self._count - len(ids) + 0.5) / (len(ids) + 0.5))
        return scores


def best(scores: Floats, uris: Sequence[str], length: int = LENGTH, above: float = -np.inf) -> list[str]:
    """The distinct uris of the highest scores over `above`, best first, equal scores in the given order."""
    order = np.argsort(-scores, kind="stable")
    ranked = dict.fromkeys(uris[i] for i in order if scores[i] > above)
    return list(ranked)[:length]


def exact_rankings(
    texts: Sequence[str], uris: Sequence[str], vectors: Floats, questions: Sequence[str], question_vectors: Floats
) -> dict[str, list[list[str]]]:
    """Of each question the uris found by `bm25`, `dense` and `hybrid` (dense + 0.1 BM25 / its maximum), best first.

    Vectors are unit vectors, (n, d) and (questions, d).
    """
    index = BM25(texts)
    found: dict[str, list[list[str]]] = {"bm25": [], "dense": [], "hybrid": []}
    for question, vector in zip(questions, question_vectors, strict=True):
        lexical, dense = index.scores(question), vectors @ vector
        hybrid = dense + LEXICAL_SHARE * lexical / max(lexical.max(initial=0), 1e-9)
        found["bm25"].append(best(lexical, uris, above=0))
        found["dense"].append(best(dense, uris))
        found["hybrid"].append(best(hybrid, uris))
    return found


def recalls(
    rankings: Sequence[Sequence[str]], gold: Sequence[Collection[str]], ks: Sequence[int] = (2, 5, 10)
) -> Floats:
    """(questions, ks): the share of the gold uris among the first k distinct uris of a ranking."""
    table = np.zeros((len(rankings), len(ks)))
    for i, (ranked, wanted) in enumerate(zip(rankings, gold, strict=True)):
        places: Mapping[str, int] = {uri: place for place, uri in enumerate(dict.fromkeys(ranked))}
        found = np.array([places.get(uri, len(ranked)) for uri in wanted])
        table[i] = [float(np.mean((found < k) & (found < len(ranked)))) for k in ks]
    return table
