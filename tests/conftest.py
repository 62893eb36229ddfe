"""One server a run, one template database with an initialised workspace, a clone of it for each test that asks."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from pgrag.embedding.keyless import KeylessEmbedder, limit_blas_threads

limit_blas_threads()

from pgrag.config import Settings  # noqa: E402
from pgrag.database import migrate  # noqa: E402 - what follows imports numpy
from tests.support import postgres  # noqa: E402
from tests.support.models import WordEmbedder  # noqa: E402

TEMPLATE = "pgrag_template"
WORDS_TEMPLATE = "pgrag_words_template"
_numbers = itertools.count(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background; programs under test inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Postgresql]:
    """The PostgreSQL server of the run; stopped at its end."""
    with postgres.start_test_server() as running:
        yield running


@pytest.fixture(scope="session")
def template(server: postgres.Postgresql) -> str:
    """A database with an initialised default workspace, to be cloned: nobody connects to it."""
    postgres.create_database(server.url(), TEMPLATE)
    migrate.initialise(Settings(dsn=SecretStr(server.url(database=TEMPLATE))), KeylessEmbedder())
    return TEMPLATE


@pytest.fixture
def empty_dsn(server: postgres.Postgresql) -> Iterator[str]:
    """A fresh empty database; the role is superuser."""
    name = f"empty_{next(_numbers)}"
    postgres.create_database(server.url(), name)
    yield server.url(database=name)
    postgres.drop_database(server.url(), name)


@pytest.fixture
def dsn(server: postgres.Postgresql, template: str) -> Iterator[str]:
    """A fresh database with an empty default workspace."""
    name = f"test_{next(_numbers)}"
    postgres.create_database(server.url(), name, template=template)
    yield server.url(database=name)
    postgres.drop_database(server.url(), name)


@pytest.fixture(scope="session")
def words_template(server: postgres.Postgresql) -> str:
    """Like `template`, for the small models of tests.support.models."""
    postgres.create_database(server.url(), WORDS_TEMPLATE)
    migrate.initialise(Settings(dsn=SecretStr(server.url(database=WORDS_TEMPLATE))), WordEmbedder())
    return WORDS_TEMPLATE


@pytest.fixture
def words_dsn(server: postgres.Postgresql, words_template: str) -> Iterator[str]:
    """A fresh database with an empty default workspace for `WordEmbedder`."""
    name = f"test_{next(_numbers)}"
    postgres.create_database(server.url(), name, template=words_template)
    yield server.url(database=name)
    postgres.drop_database(server.url(), name)
