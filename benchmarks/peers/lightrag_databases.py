"""What the comparison with LightRAG runs on: a PostgreSQL that counts statements, with a database for each side."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from server import own_server

from pgrag.server.configuration import ADMINISTRATOR, DATABASE

RESETS = "^(select pg_advisory_unlock_all|close all|unlisten|reset all)"  # what asyncpg sends when a connection rests
STATEMENTS = """
select coalesce(sum(s.calls) filter (where s.query !~* %(resets)s), 0),
       coalesce(sum(s.calls) filter (where s.query ~* %(resets)s), 0)
from pg_stat_statements s join pg_database d on d.oid = s.dbid where d.datname = %(database)s"""
PARENT, ENDED = 1, (13, 14)  # places in /proc/PID/stat, after the name
HNSW = "select indexname, indexdef from pg_indexes where schemaname = 'pgrag' and indexdef like '%USING hnsw%'"


@dataclass(frozen=True, slots=True)
class Sent:
    """Statements, those that put a connection back to its first state, and the processor seconds of the server.

    The seconds are those of all its processes, whatever they do it for; none where they cannot be read.
    """

    statements: int = 0
    resets: int = 0
    processor: float = 0.0

    def since(self, before: Sent) -> Sent:
        """The difference."""
        return Sent(self.statements - before.statements, self.resets - before.resets, self.processor - before.processor)


class Databases:
    """Databases of one server, each made empty for one side."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._empty: dict[str, int] = {}
        self._administrator = psycopg.connect(make_conninfo(dsn, user=ADMINISTRATOR), autocommit=True)
        self._administrator.execute("create extension pg_stat_statements")

    def make(self, name: str) -> str:
        """The DSN of a new database with pgrag's extensions and nothing else in it."""
        owner = conninfo_to_dict(self._dsn)["user"]
        command = sql.SQL("create database {} template {} owner {}")
        with psycopg.connect(make_conninfo(self._dsn, user=ADMINISTRATOR, dbname="postgres"), autocommit=True) as other:
            self._administrator.close()  # a template must be at rest
            other.execute(command.format(*map(sql.Identifier, (name, DATABASE, str(owner)))))
        self._administrator = psycopg.connect(make_conninfo(self._dsn, user=ADMINISTRATOR), autocommit=True)
        self._empty[name] = self._size(name)
        return make_conninfo(self._dsn, dbname=name)

    def sent(self, name: str) -> Sent:
        """What was sent to the database so far."""
        row = self._administrator.execute(STATEMENTS, {"database": name, "resets": RESETS}).fetchone()
        assert row is not None
        return Sent(int(row[0]), int(row[1]), self._processor_seconds())

    def megabytes(self, name: str) -> float:
        """What it holds, without what it was made with."""
        return (self._size(name) - self._empty[name]) / 2**20

    def tidy(self, name: str) -> None:
        """What autovacuum would do in its time."""
        with psycopg.connect(make_conninfo(self._dsn, dbname=name, user=ADMINISTRATOR), autocommit=True) as connection:
            connection.execute("vacuum analyze")

    def without_hnsw(self, name: str) -> list[str]:
        """Drops the HNSW indexes of pgrag's workspace; the commands that make them again."""
        with psycopg.connect(make_conninfo(self._dsn, dbname=name), autocommit=True) as connection:
            found = connection.execute(HNSW).fetchall()
            for index, _ in found:
                connection.execute(sql.SQL("drop index pgrag.{}").format(sql.Identifier(index)))
        return [definition for _, definition in found]

    def index(self, name: str, commands: Sequence[str]) -> tuple[float, Sent]:
        """Makes indexes, two at a time as pg_restore does; the seconds it took, and what was sent meanwhile."""

        def make(command: str) -> Path:
            with psycopg.connect(make_conninfo(self._dsn, dbname=name), autocommit=True) as connection:
                connection.execute(command.encode())
                return Path(f"/proc/{connection.info.backend_pid}")

        before, started = self.sent(name), time.perf_counter()
        with ThreadPoolExecutor(2) as sessions:
            places = list(sessions.map(make, commands))
        seconds = time.perf_counter() - started
        for _ in range(100):  # the time of a process that is ending is in no account
            if not any(place.exists() for place in places):
                break
            time.sleep(0.05)
        return seconds, self.sent(name).since(before)

    def _processor_seconds(self) -> float:
        """Of the server and all it has started: those that ended, by its own account, and those that live."""
        try:
            server = _stat(self._administrator.info.backend_pid)[PARENT]
            ended = sum(int(_stat(int(server))[place]) for place in ENDED) / os.sysconf("SC_CLK_TCK")
        except OSError:
            return 0.0
        living = 0
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                if place.name == server or _stat(int(place.name))[PARENT] == server:
                    living += int((place / "schedstat").read_text().split()[0])
        return ended + living / 1e9

    def close(self) -> None:
        """Ends the administrator's connection."""
        self._administrator.close()

    def _size(self, name: str) -> int:
        row = self._administrator.execute("select pg_database_size(%s)", [name]).fetchone()
        assert row is not None
        return int(row[0])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()


@contextmanager
def counting_server() -> Iterator[Databases]:
    """An embedded server that counts the statements of each database, removed at the end."""
    home = Path(tempfile.mkdtemp(prefix="pgrag-peers-", dir="/var/tmp"))
    home.chmod(0o711)  # under root the server runs as another account
    try:
        with own_server(home) as dsn, psycopg.connect(make_conninfo(dsn, user=ADMINISTRATOR), autocommit=True) as first:
            first.execute("alter system set shared_preload_libraries = 'pg_stat_statements'")
            first.execute("alter system set pg_stat_statements.max = 20000")
        with own_server(home) as dsn:
            databases = Databases(dsn)
            try:
                yield databases
            finally:
                databases.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)
