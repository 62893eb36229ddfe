"""The workspace that the tests of sql/ work on: emptied before each test, which is quicker than a new database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.sql.support import Workspace
from tests.support import postgres


@pytest.fixture(scope="session")
def shared_dsn(server: postgres.Postgresql, words_template: str) -> str:
    """A database of the tests of sql/."""
    postgres.create_database(server.url(), "sql_tests", template=words_template)
    return str(server.url(database="sql_tests"))


@pytest.fixture
def workspace(shared_dsn: str) -> Iterator[Workspace]:
    """An empty workspace, open until the end of the test."""
    with asyncio.Runner() as runner:
        opened = Workspace(shared_dsn, runner)
        opened.empty()
        yield opened
        opened.close()


@pytest.fixture
def own_workspace(words_dsn: str) -> Iterator[Workspace]:
    """An empty workspace in a database of its own, for a test that changes the code in it."""
    with asyncio.Runner() as runner:
        opened = Workspace(words_dsn, runner)
        yield opened
        opened.close()
