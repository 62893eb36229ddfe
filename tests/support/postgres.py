"""A throw-away PostgreSQL for the tests: testing.postgresql on the binaries of the embedded server, as root or not.

One server a run (`start_test_server`), one database a test (`create_database` from a template, 0.05 s).
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import psycopg
import testing.postgresql
from psycopg import sql

from pgrag.server.account import run, server_account
from pgrag.server.binaries import BIN_VARIABLE, Binaries, find_binaries

# testing.postgresql starts the server as its child. This little parent in between runs it as the right account, away
# from the terminal's Ctrl-C, and takes it down when the test process dies in whatever way.
_LAUNCHER = """\
import os, signal, sys, time
parent, uid, gid = map(int, sys.argv[1:4])
asked = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: asked.append(time.monotonic()))
os.setsid()
os.chdir("/")
if uid != os.geteuid():
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
server = os.spawnv(os.P_NOWAIT, sys.argv[4], sys.argv[4:])
told = None
while True:
    pid, status = os.waitpid(server, os.WNOHANG)
    if pid:
        sys.exit(abs(os.waitstatus_to_exitcode(status)))
    if os.getppid() != parent:
        asked.append(time.monotonic())
    if asked and told is None:
        os.kill(server, signal.SIGINT)
        told = signal.SIGINT
    if told == signal.SIGINT and time.monotonic() - asked[0] > 5:
        os.kill(server, signal.SIGQUIT)
        told = signal.SIGQUIT
    time.sleep(0.05)
"""


class Postgresql(testing.postgresql.Postgresql):  # type: ignore[misc]
    """A server in a temporary directory, on a free port of 127.0.0.1: superuser `postgres`, no password, no fsync."""

    DEFAULT_SETTINGS: ClassVar[dict[str, Any]] = dict(
        testing.postgresql.Postgresql.DEFAULT_SETTINGS,
        initdb_args="-U postgres -A trust -E UTF8 --no-sync --no-instructions --locale=C --lc-ctype=C.UTF-8",
        postgres_args="-h 127.0.0.1 -F -c synchronous_commit=off -c full_page_writes=off -c logging_collector=off "
        "-c max_connections=200 -c shared_buffers=128MB -c jit=off -c random_page_cost=1.1 "
        "-c max_wal_size=2GB -c autovacuum=off -c shared_preload_libraries=pg_stat_statements",
        boot_timeout=60,
    )

    def initialize(self) -> None:
        """Find the programs and the account to run them as."""
        self.account = server_account()
        binaries: Binaries = self.settings.pop("binaries", None) or find_binaries(self.account)
        self.initdb = self.settings.pop("initdb") or binaries.program("initdb")
        self.postgres = self.settings.pop("postgres") or binaries.program("postgres")
        if binaries.major >= 17:  # before, the same order and the same letters come from the C library
            self.settings["initdb_args"] += " --locale-provider=builtin --builtin-locale=C.UTF-8"

    def initialize_database(self) -> None:
        """initdb, unless a data directory was copied in."""
        if self.account.dropped:
            self._give_away()
        data = Path(self.get_data_directory())
        if not (data / "PG_VERSION").exists():
            argv = [self.initdb, "-D", str(data), "--lc-messages=C", *self.settings["initdb_args"].split()]
            result = run(argv, self.account)
            if result.returncode != 0:
                raise RuntimeError(f"initdb failed: {result.stderr}")

    def get_server_commandline(self) -> list[str]:
        """The server below its launcher."""
        identity = [str(os.getpid()), str(self.account.uid), str(self.account.gid)]
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, *identity, *super().get_server_commandline()]

    def _give_away(self) -> None:
        base = Path(self.base_dir)
        base.chmod(0o711)
        for name in self.subdirectories:
            for directory, _, files in os.walk(base / name):
                for path in (Path(directory), *(Path(directory, file) for file in files)):
                    shutil.chown(path, self.account.uid, self.account.gid)


class PostgresqlFactory(testing.postgresql.PostgresqlFactory):  # type: ignore[misc]
    """Makes servers like `Postgresql`; `cache_initialized_db=True` copies one prepared data directory."""

    target_class = Postgresql


def start_test_server(**settings: Any) -> Postgresql:
    """A running server, stopped and removed by `.stop()` or when the process ends. Its DSN: `.url(database=...)`.

    `binaries`: the PostgreSQL to run, otherwise what `find_binaries` finds.
    """
    server = Postgresql(**settings)
    atexit.register(server.stop)
    return server


def embedded_binaries() -> Binaries:
    """The newest PostgreSQL that is supported: the wheel's, whatever `$PGRAG_PG_BIN` says."""
    with mock.patch.dict(os.environ):
        os.environ.pop(BIN_VARIABLE, None)
        return find_binaries(server_account())


def create_database(admin_dsn: str, name: str, template: str | None = None) -> None:
    """Create a database, as a copy of `template` if one is given (nobody may be connected to that)."""
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" template {}").format(sql.Identifier(template))
    _execute(admin_dsn, statement)


def drop_database(admin_dsn: str, name: str) -> None:
    """Drop a database if it exists, connections to it included."""
    _execute(admin_dsn, sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _execute(dsn: str, statement: sql.Composed) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)
