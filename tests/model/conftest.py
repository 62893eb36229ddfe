"""The local model, started once a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.local_model import LocalModel, missing_packages


@pytest.fixture(scope="session")
def model() -> Iterator[LocalModel]:
    """A server with room for pgrag's longest prompt and an answer."""
    yield from _serve(4096)


@pytest.fixture(scope="session")
def small_model() -> Iterator[LocalModel]:
    """A server that has no room for any prompt of pgrag's."""
    yield from _serve(256)


@pytest.fixture
def embedding_model() -> Iterator[LocalModel]:
    """A server that embeds texts of up to 256 tokens."""
    yield from _serve(256, embeddings=True)


def _serve(context: int, *, embeddings: bool = False) -> Iterator[LocalModel]:
    if missing := missing_packages():
        pytest.skip(f"{', '.join(missing)} not installed: run make test-model")
    with LocalModel(context, embeddings=embeddings) as running:
        yield running
