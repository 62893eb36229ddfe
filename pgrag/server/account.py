"""Who runs the server. PostgreSQL refuses to run as root, so root hands its processes to an ordinary account."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgrag.errors import ConfigError, ServerError

if sys.platform != "win32":
    import pwd

USER_VARIABLE = "PGRAG_PG_USER"
_CANDIDATES = ("postgres", "nobody")
# The server outlives the caller and must not carry the caller's secrets (API keys) in its environment.
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system account that owns the server's processes and files."""

    name: str
    uid: int
    gid: int

    @property
    def dropped(self) -> bool:
        """Whether this is another account than the caller's (the caller is root)."""
        return self.uid != os.geteuid()


def caller_name() -> str:
    """Name of the account this process runs as. Raises ServerError if the uid has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ServerError(
            f"the embedded server needs an account name, and uid {os.geteuid()} has none: "
            "add the uid to /etc/passwd, or give a DSN"
        ) from None


def server_account(data: Path | None = None) -> Account:
    """The account to run the server as: the caller's own; for root `$PGRAG_PG_USER`, else the owner of an existing
    `data` directory, else `postgres` or `nobody`, whichever exists first.

    Raises ConfigError for a wrong `$PGRAG_PG_USER`, ServerError if there is no account to use.
    """
    if os.geteuid() != 0:
        return Account(caller_name(), os.geteuid(), os.getegid())
    wanted = os.environ.get(USER_VARIABLE)
    if wanted:
        account = _lookup(wanted)
        if account is None:
            raise ConfigError(f"{USER_VARIABLE} names {wanted!r}: it must be an existing account other than root")
        return account
    owner = _owner_name(data) if data is not None else None
    for name in (owner, *_CANDIDATES):
        account = _lookup(name) if name else None
        if account is not None:
            return account
    raise ServerError(
        f"PostgreSQL does not run as root and there is no account {' or '.join(_CANDIDATES)} to use instead: "
        f"name one in {USER_VARIABLE}, run pgrag as an ordinary user, or give a DSN"
    )


def run(
    argv: Sequence[str],
    account: Account,
    *,
    cwd: Path | str = "/",
    timeout: float = 120.0,
    pass_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program of the server as `account`, in a session of its own, without input; output is returned as text.

    Raises PermissionError or FileNotFoundError if the account cannot execute it, ServerError if the account cannot be
    taken or `timeout` (seconds) passes.
    """
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    environment.update({name: os.environ[name] for name in _PASSED_ON if name in os.environ})
    drop = account.dropped
    try:
        return subprocess.run(  # noqa: S603 - an argument list, no shell
            argv,
            user=account.uid if drop else None,
            group=account.gid if drop else None,
            extra_groups=[] if drop else None,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            pass_fds=pass_fds,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServerError(f"{argv[0]} did not finish within {timeout:.0f} s") from None
    except subprocess.SubprocessError as error:
        raise ServerError(f"cannot run {argv[0]} as account {account.name}: {error}") from None
    except OSError as error:
        # A refused setuid and a refused exec are both PermissionError; only the second names the program.
        if error.filename == argv[0]:
            raise
        raise ServerError(
            f"cannot switch to account {account.name} ({error.strerror}): run pgrag as an ordinary user, or give a DSN"
        ) from None


def can_enter(directory: Path, account: Account) -> bool:
    """Whether the account reaches `directory`: asked of the system, which knows groups and access lists."""
    check = run(["/bin/sh", "-c", 'cd -- "$1"', "sh", str(directory)], account)
    return check.returncode == 0


def _lookup(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid) if entry.pw_uid != 0 else None


def _owner_name(path: Path) -> str | None:
    try:
        return pwd.getpwuid(path.stat().st_uid).pw_name
    except (OSError, KeyError):
        return None
