"""Databases and roles of the migration tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier

from pgrag.database.migrate import initialise
from tests.migration.support import WORD_COUNT, WORD_VIEW, Identity, Release, run, settings_for
from tests.support.postgres import create_database, drop_database


def unique(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def made_template(server: Any) -> Iterator[str]:
    """Name of a database with the default workspace, made for `Identity()`."""
    name = unique("made")
    create_database(server.url(), name)
    initialise(settings_for(server.url(database=name)), Identity())
    yield name
    drop_database(server.url(), name)


@pytest.fixture(scope="module")
def word_view_template(server: Any, made_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of a database with the code of another release, which has a view `word_view` and a type `word_count`."""
    name = unique("word_view")
    create_database(server.url(), name, made_template)
    release = Release(tmp_path_factory.mktemp("word_view"))
    release.write("sql/05_types.sql", WORD_COUNT)
    release.write("sql/99_more.sql", WORD_VIEW)
    release.upgrade(server.url(database=name))
    run(server.url(database=name), "create schema theirs")
    yield name
    drop_database(server.url(), name)


@pytest.fixture
def made(server: Any, made_template: str) -> Iterator[str]:
    """A database with the default workspace."""
    yield from _copy(server, made_template)


@pytest.fixture
def word_view(server: Any, word_view_template: str) -> Iterator[str]:
    """A database whose workspace has a view `word_view` and a type `word_count`, and with a schema `theirs`."""
    yield from _copy(server, word_view_template)


@pytest.fixture
def role(server: Any) -> str:
    """An ordinary role that may log in; it goes with the server."""
    name = unique("Role ")
    run(server.url(), SQL("create role {} login").format(Identifier(name)))
    return name


@pytest.fixture
def release(tmp_path: Path) -> Release:
    """Another release of pgrag, so far equal to this one."""
    return Release(tmp_path)


def _copy(server: Any, template: str) -> Iterator[str]:
    name = unique("copy")
    create_database(server.url(), name, template)
    yield server.url(database=name)
    drop_database(server.url(), name)
