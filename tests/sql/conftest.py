"""The workspace that most tests of sql/ work on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.sql.support import Workspace


@pytest.fixture
def workspace(words_dsn: str) -> Iterator[Workspace]:
    """A fresh empty workspace, open until the end of the test."""
    with asyncio.Runner() as runner:
        opened = Workspace(words_dsn, runner)
        yield opened
        opened.close()
