"""The environments that peers run in: a venv for each pinned release, made once and used again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

LIGHTRAG = "1.5.7"
# the stores of its two backends: files, and PostgreSQL
REQUIREMENTS = (
    f"lightrag-hku=={LIGHTRAG}",
    "nano-vectordb==0.0.4.3",
    "networkx>=3.2,<4",
    "asyncpg>=0.30,<1",
    "pgvector>=0.4,<1",
)
# releases of litellm that must not be installed, whoever asks for one
CONSTRAINTS = ("litellm!=1.82.7,!=1.82.8,!=1.107.*",)
READY = "requirements.txt"  # written last: what was installed, in full
CHECK = "import lightrag, nano_vectordb, networkx, tiktoken, asyncpg, pgvector"
SPARED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")


class PeerError(Exception):
    """A peer cannot be installed or failed."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A release of a peer: what people call it, what pip installs, and the imports that show that it is there."""

    name: str
    release: str
    requirements: tuple[str, ...]
    check: str


def default_directory() -> Path:
    """Where environments of peers are kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pgrag-benchmarks"


def lightrag_python(directory: Path | None = None) -> Path:
    """The interpreter of the environment of LightRAG; as `peer_python`."""
    return peer_python(Peer("LightRAG", LIGHTRAG, REQUIREMENTS, CHECK), directory)


def peer_python(peer: Peer, directory: Path | None = None) -> Path:
    """The interpreter of an environment with a peer under `directory`, which is made if it is not there.

    Raises PeerError when it cannot be made.
    """
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    place = (directory or default_directory()).absolute() / f"{peer.name.lower()}-{peer.release}-{version}"
    python = place / "bin" / "python"
    ready, wanted = place / READY, "\n".join((*peer.requirements, *CONSTRAINTS))
    if ready.is_file() and ready.read_text("utf-8").startswith(wanted) and _runs(python, peer):
        return python
    shutil.rmtree(place, ignore_errors=True)  # of an earlier release, or left by an interrupted run
    try:
        place.mkdir(parents=True)
        constraints = place / "constraints.txt"
        constraints.write_text("\n".join(CONSTRAINTS) + "\n", "utf-8")
    except OSError as error:
        raise PeerError(f"cannot make {place}: {error.strerror}") from None
    print(f"installing {peer.name} {peer.release} into {place} (once)", file=sys.stderr, flush=True)
    _do([sys.executable, "-m", "venv", str(place)], f"cannot make an environment in {place}")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _do(
        [
            *pip,
            "install",
            "--quiet",
            "--retries=1",
            "--only-binary=:all:",
            f"--constraint={constraints}",
            *peer.requirements,
        ],
        f"pip cannot install {peer.name} {peer.release} (can it reach a package registry?)",
    )
    installed = _do([*pip, "freeze"], f"pip does not run in {place}")
    if not _runs(python, peer):
        raise PeerError(f"{peer.name} {peer.release} was installed into {place} but cannot be imported")
    ready.write_text(f"{wanted}\n\n{installed}", "utf-8")
    return python


def peer_variables() -> dict[str, str]:
    """The environment variables that a peer sees: none that sets an option of it, and tiktoken's files at hand.

    One thread for numpy, as in pgrag's process; what the peer would install by itself at run time is refused.
    """
    kept = {name: os.environ[name] for name in SPARED if name in os.environ}
    tokenizers = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    if not tokenizers and (litellm := find_spec("litellm")):  # located, not imported: its wheel carries the files
        for location in litellm.submodule_search_locations or ():
            tokenizers = str(Path(location) / "litellm_core_utils" / "tokenizers")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return kept | threads | {"TIKTOKEN_CACHE_DIR": tokenizers, "PIP_NO_INDEX": "1", "PYTHONUTF8": "1"}


def run_peer(python: Path, script: Path, arguments: list[str], directory: Path) -> str:
    """Runs a script in the peer's environment and returns what it printed. Raises PeerError if it fails."""
    # isolated: a module beside the script must not take the place of the package that it is named after
    command = [str(python), "-I", str(script), *arguments]
    return _do(command, f"{script.name} failed", directory, peer_variables())


class Process:
    """A process that serves commands (worker.py)."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._name, self._process, self._errors = name, process, errors

    def do(self, command: str, **details: Any) -> dict[str, Any]:
        """The answer to a command. Raises PeerError if the process fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **details}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()  # then it has said why
            self._errors.seek(0)
            said = _last_words(self._errors.read()) or "ended without a word"
            raise PeerError(f"{self._name}, {command}: {said}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def process(
    name: str, command: Sequence[str], variables: dict[str, str], directory: Path | None = None
) -> Iterator[Process]:
    """A process with these environment variables, in a directory that is made for it or in this one's; then ended."""
    if directory:
        directory.mkdir()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        started = subprocess.Popen(
            command, cwd=directory, env=variables, stderr=errors, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield Process(name, started, errors)
        finally:
            started.kill()
            started.communicate()


def _runs(python: Path, peer: Peer) -> bool:
    try:
        command = [str(python), "-I", "-c", peer.check]
        return subprocess.run(command, capture_output=True, env=peer_variables()).returncode == 0
    except OSError:
        return False


def _do(command: list[str], failure: str, directory: Path | None = None, env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=directory, env=env)
    except OSError as error:
        raise PeerError(f"{failure}: {error.strerror}") from None
    if done.returncode:
        said = _last_words(f"{done.stdout}\n{done.stderr}") or f"exit {done.returncode}"
        raise PeerError(f"{failure}: {said}")
    return done.stdout


def _last_words(said: str) -> str:
    return " | ".join([line.strip() for line in said.splitlines() if line.strip()][-3:])[-1000:]
