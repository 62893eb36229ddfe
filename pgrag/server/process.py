"""The data directory and the processes of the server: made, started, waited for, told from dead ones.

Who is alive: every server process inherits a lock on `<home>/server.lock` and so holds it until the last one is gone.
Unlike a process id the lock cannot be taken over by an unrelated process, and a zombie does not hold it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from pgrag.errors import ServerError
from pgrag.server.account import caller_name, run
from pgrag.server.binaries import Binaries
from pgrag.server.configuration import ADMINISTRATOR, OPTIONS, write_configuration
from pgrag.server.database import refusal
from pgrag.server.directories import Site, try_lock

logger = logging.getLogger(__name__)

_LOG_LIMIT = 16 * 1024**2  # bytes; a longer log is set aside at the next start
_TAIL_LINES = 12
# what pg_trgm, which finds similar names, calls a letter
_CTYPE = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
_FOR_GOOD = re.compile(r"authentication failed|pg_hba\.conf|does not exist|not permitted to log in")
_SILENCE = 5.0  # seconds
_DYING = 'lock file "postmaster.pid" already exists'  # in the log of a server that did not start


def initialise_cluster(site: Site, binaries: Binaries) -> None:
    """Make the data directory if there is none: beside its place, then renamed, so a half-made one is never used.

    Raises ServerError for a directory of another major version, and if initdb fails.
    """
    if site.data.exists():
        if not (site.data / "PG_VERSION").exists():
            raise ServerError(f"{site.data} is no PostgreSQL data directory: remove it, or choose another PGRAG_HOME")
        found = (site.data / "PG_VERSION").read_text("utf-8").strip()
        if found != str(binaries.major):
            raise ServerError(
                f"{site.data} was made by PostgreSQL {found} and this is PostgreSQL {binaries.version}: point "
                f"PGRAG_PG_BIN to the bin directory of PostgreSQL {found} and move the data with pg_dump, "
                "or choose another PGRAG_HOME"
            )
        return
    for leftover in site.home.glob("data.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="data.new-", dir=site.home))
    os.chown(fresh, site.account.uid, site.account.gid)
    # Text folding is done in Python: no order and no comparison may depend on the machine's locales.
    locale = ["--locale=C", f"--lc-ctype={_CTYPE}"]
    if binaries.major >= 17:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    access = ["--auth-local=peer", "--auth-host=reject", f"--username={ADMINISTRATOR}"]
    command = [binaries.program("initdb"), "-D", fresh.name, "-E", "UTF8", *locale, *access]
    result = run(command, site.account, cwd=site.home, timeout=600)
    if result.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ServerError(f"initdb failed in {site.home}: {' '.join(result.stderr.split())}")
    fresh.rename(site.data)
    descriptor = os.open(site.home, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the new name, too, must survive a power cut
    finally:
        os.close(descriptor)


def launch(site: Site, binaries: Binaries, deadline: float) -> None:
    """Start the server, or wait for one that is just starting, recovering or dying. Raises ServerError."""
    with site.lock_file.open("ab") as handle:
        told = time.monotonic()
        while not try_lock(handle):
            reason = refusal(site)
            if reason is None:
                return
            _check_socket_is_there(site)
            if _FOR_GOOD.search(reason):
                raise ServerError(f"the server in {site.home} lets its own administrator not in: {reason}")
            if time.monotonic() > deadline:
                raise ServerError(f"a server lives in {site.home} and does not answer yet: {reason}: see {site.log}")
            if time.monotonic() > told + _SILENCE:
                logger.warning("waiting for the server in %s: %s", site.home, reason)
                told = time.monotonic()
            time.sleep(0.1)
        for left_over in (site.pid_file, site.socket_lock):
            if _is_stale(left_over, site):
                left_over.unlink()
        mode = 0o644 if site.account.dropped else 0o600
        write_configuration(site.home, site.sockets, caller_name(), mode)
        logged = _set_aside_long_log(site)
        seconds = whole(deadline - time.monotonic())
        command = [binaries.program("pg_ctl"), "-D", "data", "-l", "log/server.log", "-o", OPTIONS]
        command += ["-w", "-t", str(seconds), "start"]
        inherited = [handle.fileno()]
        result = run(command, site.account, cwd=site.home, timeout=seconds + 30, pass_fds=inherited)
        if result.returncode != 0 and _DYING in _tail(site, logged) and time.monotonic() < deadline:
            time.sleep(1)  # one that was just killed was not quite gone when its lock file was looked at
            if _is_stale(site.pid_file, site):
                site.pid_file.unlink()
            result = run(command, site.account, cwd=site.home, timeout=seconds + 30, pass_fds=inherited)
    if result.returncode != 0:
        reason = " ".join(result.stderr.split())
        raise ServerError(
            f"PostgreSQL did not start in {site.data}: {reason}; its log {site.log} ends:{_tail(site, logged)}"
        )


def _check_socket_is_there(site: Site) -> None:
    lines = _lines(site.pid_file)
    if len(lines) > 7 and lines[7].strip() == "ready" and not site.socket_file.exists():
        raise ServerError(
            f"the server in {site.home} runs but its socket {site.socket_file} is gone: "
            f"stop it (kill -INT {lines[0]}) and start again"
        )


def is_alive(site: Site) -> bool:
    """Whether any process of the server lives, ready or not."""
    try:
        with site.lock_file.open("rb") as handle:
            return not try_lock(handle)
    except FileNotFoundError:
        return False


def pid_of(pid_file: Path) -> int | None:
    """The process id on the first line of a file PostgreSQL wrote; None if there is none."""
    lines = _lines(pid_file)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []


def _is_stale(pid_file: Path, site: Site) -> bool:
    """Whether the process named by a left-over file is certainly no server of this data directory.

    PostgreSQL checks it by a signal, and refuses to start when a zombie or a newcomer with the same id receives it.
    Where we cannot tell (no /proc, no permission) it is left to PostgreSQL.
    """
    pid = pid_of(pid_file)
    if pid is None:
        return False
    process = Path("/proc", str(pid))
    try:
        state = (process / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
        return state in "ZX" or not (process / "cwd").samefile(site.data)
    except OSError:
        return False


def _set_aside_long_log(site: Site) -> int:
    """Bytes in the log before this start; a long log is renamed first."""
    try:
        size = site.log.stat().st_size
    except FileNotFoundError:
        return 0
    if size < _LOG_LIMIT:
        return size
    site.log.replace(site.log.with_name("server.log.1"))
    return 0


def _tail(site: Site, start: int) -> str:
    try:
        with site.log.open("rb") as handle:
            handle.seek(start)
            lines = handle.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return " (no log)"
    return "".join(f"\n  {line}" for line in lines[-_TAIL_LINES:]) or " (nothing)"


def whole(seconds: float) -> int:
    """Seconds as pg_ctl takes them."""
    return max(1, round(seconds))
