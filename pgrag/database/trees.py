"""Where the two trees of SQL are (`sql/`: code, `alembic/`: data), and the files of the code tree with their digest."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pgrag.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
_MADE = re.compile(r"^create (?:or replace )?(function|view|type) (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of the code tree; `text` has Unix line ends."""

    name: str
    text: str


def alembic_directory() -> Path:
    """The directory of `env.py` and `versions/`. Raises ConfigError if the installation lacks it."""
    return _tree("alembic", "env.py")


def catalog_query(name: str) -> str:
    """The text of `pgrag/database/catalog/<name>.sql`: it reads the system catalogs, no code of ours."""
    return _read(PACKAGE / "database" / "catalog" / f"{name}.sql")


@cache
def code_files() -> tuple[CodeFile, ...]:
    """The files of the code tree in the order they run: by name. Raises ConfigError if the installation lacks them."""
    directory = _tree("sql", "10_text.sql")
    return tuple(CodeFile(path.name, _read(path)) for path in sorted(directory.glob("*.sql"), key=lambda p: p.name))


@cache
def code_digest() -> str:
    """Hex sha256 over names and texts of the code tree: what the database must say for this process to work on it."""
    digest = hashlib.sha256()
    for file in code_files():
        for part in (file.name, file.text):
            content = part.encode("utf-8")
            digest.update(len(content).to_bytes(8, "big"))
            digest.update(content)
    return digest.hexdigest()


@cache
def code_names() -> frozenset[tuple[str, str]]:
    """(kind, name) of the functions ("routine"), views and types that the code tree makes."""
    made = (found for file in code_files() for found in _MADE.findall(file.text))
    return frozenset(("routine" if kind == "function" else kind, name) for kind, name in made)


def _tree(name: str, landmark: str) -> Path:
    """`pgrag/_<name>` of a wheel, else `<name>` beside the package of a checkout; `landmark` must be in it."""
    for directory in (PACKAGE / f"_{name}", PACKAGE.parent / name):
        if (directory / landmark).is_file():
            return directory
    raise ConfigError(f"the installation of pgrag in {PACKAGE} is incomplete ({name}/{landmark}): install it again")


def _read(path: Path) -> str:
    return path.read_text("utf-8").replace("\r\n", "\n").replace("\r", "\n")
