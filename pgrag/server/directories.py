"""The server's directories: where they may be, who owns them, and the locks that live in them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs

from pgrag.errors import ServerError
from pgrag.server.account import Account, can_enter, server_account
from pgrag.server.configuration import PORT

if sys.platform != "win32":
    import fcntl

ROOT_HOME = Path("/var/lib/pgrag")
_SHORT = Path("/tmp")  # noqa: S108 - the directory made there is checked: ours, no link, closed to others
_SOCKET_LIMIT = 103 if sys.platform == "darwin" else 107  # bytes of sockaddr_un.sun_path


@dataclass(frozen=True, slots=True)
class Site:
    """The places of one server. `home` is the caller's; `data`, `log` and `sockets` belong to the server's account."""

    home: Path
    account: Account
    sockets: Path

    @property
    def data(self) -> Path:
        """PostgreSQL's data directory."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.home / "log" / "server.log"

    @property
    def socket_file(self) -> Path:
        """The socket the server listens on."""
        return self.sockets / f".s.PGSQL.{PORT}"

    @property
    def lock_file(self) -> Path:
        """Locked for as long as a process of the server lives."""
        return self.home / "server.lock"

    @property
    def socket_lock(self) -> Path:
        """Written by a running server beside its socket."""
        return self.sockets / f"{self.socket_file.name}.lock"

    @property
    def pid_file(self) -> Path:
        """Written by a running server."""
        return self.data / "postmaster.pid"


def find_site(home: Path) -> Site:
    """Where the server of `home` lives; nothing is created.

    Root's default home is usually below /root, out of reach of the account PostgreSQL runs as: its server then lives in
    /var/lib/pgrag/<digest of home>. Any other home out of reach is a ServerError that says so.
    """
    home = _resolve(home)
    account = server_account(home / "data")
    if account.dropped and not can_enter(_existing(home), account):
        if home != default_home():
            raise ServerError(
                f"PostgreSQL runs as account {account.name}, which cannot reach {home}: choose another directory "
                f"(PGRAG_HOME), or allow it to pass (chmod o+x on each directory above it)"
            )
        home = ROOT_HOME / _digest(home)
        account = server_account(home / "data")
    return Site(home, account, _socket_directory(home, account))


def default_home() -> Path:
    """The directory `pgrag` uses when none is set."""
    return _resolve(Path(platformdirs.user_data_dir("pgrag", appauthor=False)))


def make_site(site: Site) -> None:
    """Create the directories that are missing. Raises ServerError if one is not ours or is open to others' writing."""
    enter = 0o711 if site.account.dropped else 0o700
    try:
        missing = [path for path in site.home.parents if not path.exists()]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
                path.chmod(enter)
        with contextlib.suppress(FileExistsError):
            site.home.mkdir(0o700)
            site.home.chmod(enter)
        check_home(site)
        for path in (site.home / "log", site.sockets):
            _make_owned(path, site.account)
    except OSError as error:
        raise ServerError(f"cannot create {error.filename}: {error.strerror}; choose another PGRAG_HOME") from None
    if site.account.dropped and not can_enter(site.home, site.account):
        raise ServerError(f"account {site.account.name} cannot reach {site.home}: chmod o+x {site.home}")


def check_home(site: Site) -> None:
    """Refuse a home that is not a directory of the caller's alone. Raises ServerError, FileNotFoundError."""
    status = site.home.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise ServerError(f"{site.home} is not a directory: choose another PGRAG_HOME")
    if status.st_uid != os.geteuid():
        raise ServerError(
            f"{site.home} belongs to uid {status.st_uid}, not to you (uid {os.geteuid()}): choose another PGRAG_HOME"
        )
    if status.st_mode & 0o022:
        raise ServerError(
            f"{site.home} is writable by others: choose a directory below it (PGRAG_HOME), or chmod go-w {site.home}"
        )
    if site.data.exists() and (owner := site.data.stat().st_uid) != site.account.uid:
        raise ServerError(
            f"{site.data} belongs to uid {owner}, not to {site.account.name}: run as its owner, set PGRAG_PG_USER, or "
            "choose another PGRAG_HOME"
        )


def check_sockets(site: Site) -> None:
    """Refuse a socket directory somebody else made, or a link. Raises ServerError, FileNotFoundError."""
    status = site.sockets.lstat()
    owners = {site.account.uid, os.geteuid()}
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
        raise ServerError(f"{site.sockets} was made by uid {status.st_uid}, not by pgrag: remove it")


@contextlib.contextmanager
def start_lock(site: Site, timeout: float) -> Iterator[None]:
    """Hold `<home>/lock`, by which processes that start or stop the server take turns. `timeout` in seconds."""
    deadline = time.monotonic() + timeout
    with (site.home / "lock").open("ab") as handle:
        while not try_lock(handle):
            if time.monotonic() > deadline:
                raise ServerError(f"another process has been starting or stopping the server in {site.home}: try again")
            time.sleep(0.05)
        yield


def try_lock(handle: IO[bytes]) -> bool:
    """Lock the file unless somebody holds it; the lock lives as long as any process keeps the file open."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def tree_bytes(root: Path) -> int:
    """Size of the files below `root`; files that vanish meanwhile count nothing."""
    total = 0
    for directory, _, files in os.walk(root):
        for name in files:
            with contextlib.suppress(OSError):
                total += Path(directory, name).lstat().st_size
    return total


def _make_owned(path: Path, account: Account) -> None:
    """`path` as a directory only `account` can enter. Opened without following links: /tmp is everybody's."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError:
        raise ServerError(f"{path} is not a directory: remove it") from None
    except PermissionError:
        raise ServerError(f"{path} was made by another account: remove it, or choose another PGRAG_HOME") from None
    try:
        owner = os.fstat(descriptor).st_uid
        if owner not in {account.uid, os.geteuid()}:
            raise ServerError(f"{path} was made by uid {owner}, not by pgrag: remove it")
        if owner != account.uid:
            os.fchown(descriptor, account.uid, account.gid)
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _socket_directory(home: Path, account: Account) -> Path:
    """`<home>/run`, or a short name in /tmp where a socket's path would be too long or PostgreSQL would misread it.

    Not XDG_RUNTIME_DIR: it differs between a login and a cron job, and is removed at logout under a running server.
    """
    path = home / "run"
    name = os.fsencode(path / f".s.PGSQL.{PORT}")
    if len(name) <= _SOCKET_LIMIT and re.fullmatch(rb"[A-Za-z0-9_./+-]+", name):
        return path
    return _SHORT / f"pgrag-{account.uid}-{_digest(home)}"


def _resolve(home: Path) -> Path:
    """One spelling for one directory: processes find each other's server by it."""
    try:
        return home.expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ServerError(f"{str(home)!r} cannot be the server's home: {error}") from None


def _digest(home: Path) -> str:
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:16]


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.is_dir())
