"""The embedded server: made, started, shared and stopped on demand. POSIX only; it listens on a socket, never on TCP.

Who gets in: the kernel tells PostgreSQL the uid behind a socket (`peer`), and pg_ident.conf admits one account, the
caller's, as `pgrag` (owner of the database) and `postgres` (administrator). Under root that is root and not the account
the processes run as, which needs no login to be administered (pg_ctl works by signals). The socket and its directory
are closed to other accounts as well (0700), a second wall: root passes it because root passes every permission.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgrag.errors import ServerError
from pgrag.server.account import run
from pgrag.server.binaries import find_binaries
from pgrag.server.database import answers, dsn_of, is_prepared, prepare, server_version
from pgrag.server.directories import check_home, find_site, make_site, start_lock, tree_bytes, try_lock
from pgrag.server.process import initialise_cluster, is_alive, launch, pid_of, whole


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known of the server. `bytes` is the size of the data directory; `pid` is set while a server lives.

    `running` means that it accepts connections; `version` is as in `18.6`, or the major one (`18`) while it does not,
    or empty before the first start.
    """

    running: bool
    pid: int | None
    version: str
    data_directory: Path
    socket_directory: Path
    dsn: str
    log_file: Path
    bytes: int


class EmbeddedServer:
    """The server whose files are in `home`. Objects and processes with the same home share one server.

    Raises ServerError on Windows, where there is no embedded server.
    """

    def __init__(self, home: Path) -> None:
        if sys.platform == "win32":
            raise ServerError("the embedded server does not run on Windows: give a DSN (--dsn, PGRAG_DSN)")
        self.home = home

    def start(self, timeout: float = 600.0) -> str:
        """Start the server unless it runs, and return the DSN of role `pgrag` on database `pgrag`, which it owns.

        The first start makes the data directory, the role, the database and its extensions; a later one completes what
        an interrupted one left out, and recovers from a crash. `timeout` in seconds: recovery may be long.
        Raises ServerError, MissingExtraError (wheel not installed), MissingExtensionError (no pgvector), ConfigError.
        """
        deadline = time.monotonic() + timeout
        with self._file_errors():
            site = find_site(self.home)
            make_site(site)
            if is_prepared(site):
                return dsn_of(site)
            with start_lock(site, timeout):
                if is_prepared(site):
                    return dsn_of(site)
                if not answers(site):
                    binaries = find_binaries(site.account)
                    initialise_cluster(site, binaries)
                    launch(site, binaries, deadline)
                prepare(site)
            return dsn_of(site)

    def stop(self, timeout: float = 60.0) -> bool:
        """Stop the server if it runs; open connections are ended, their transactions rolled back. `timeout` in seconds.

        Returns whether there was one, even one that let nobody in. Raises ServerError if it is still there after that.
        """
        deadline = time.monotonic() + timeout
        with self._file_errors():
            site = find_site(self.home)
            if not site.data.exists():
                return False
            check_home(site)
            with start_lock(site, timeout), site.lock_file.open("ab") as handle:
                if try_lock(handle) and not answers(site):
                    return False
                pg_ctl = find_binaries(site.account).program("pg_ctl")
                command = [pg_ctl, "-D", "data", "-m", "fast", "-w", "-t", str(whole(timeout)), "stop"]
                result = run(command, site.account, cwd=site.home, timeout=timeout + 30)
                while not try_lock(handle):
                    if time.monotonic() > deadline:
                        detail = " ".join(result.stderr.split())
                        raise ServerError(f"the server in {site.home} did not stop in {timeout:.0f} s: {detail}")
                    time.sleep(0.05)
        return True

    def status(self) -> ServerStatus:
        """The state of the server, without changing anything. Raises ServerError if the home is not the caller's."""
        with self._file_errors():
            site = find_site(self.home)
            major = ""
            with contextlib.suppress(FileNotFoundError):
                check_home(site)
                major = (site.data / "PG_VERSION").read_text("utf-8").strip()
            version = server_version(site)
            alive = version is not None or is_alive(site)
            return ServerStatus(
                running=version is not None,
                pid=pid_of(site.pid_file) if alive else None,
                version=version or major,
                data_directory=site.data,
                socket_directory=site.sockets,
                dsn=dsn_of(site),
                log_file=site.log,
                bytes=tree_bytes(site.data),
            )

    @contextlib.contextmanager
    def _file_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ServerError(f"the embedded server in {self.home}: {error}") from None
