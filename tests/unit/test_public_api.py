"""The public API: what `pgrag` exports, and that README and examples need nothing else."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgrag
import pgrag.rag

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_MODULES = {"pgrag", "pgrag.sync"}
PUBLIC = [
    "AnswerStream",
    "BudgetError",
    "Chunk",
    "ChunkRanking",
    "ChunkerFunction",
    "CodeTreeError",
    "ConfigError",
    "DatabaseError",
    "DeleteReport",
    "DependentObjectsError",
    "DimensionError",
    "Document",
    "DocumentError",
    "DocumentFailure",
    "DocumentInfo",
    "DraftedQuestions",
    "Embedder",
    "EvaluationReport",
    "EvaluationSet",
    "ExtractedFact",
    "ExtractedMention",
    "Extraction",
    "ExtractionError",
    "Extractor",
    "FactEntity",
    "Filter",
    "Gold",
    "IngestEstimate",
    "IngestProgress",
    "IngestReport",
    "KeywordExtractor",
    "Keywords",
    "MissingExtensionError",
    "MissingExtraError",
    "MissingRightError",
    "Mode",
    "ModelAccessError",
    "ModelError",
    "PgRAG",
    "PgragError",
    "QueryResult",
    "Question",
    "ReembedReport",
    "Reference",
    "RefreshReport",
    "RefusedValueError",
    "Retrieval",
    "RetrievedChunk",
    "RetrievedEntity",
    "RetrievedRelation",
    "Role",
    "ServerError",
    "SearchOptions",
    "Settings",
    "StatementCancelledError",
    "Stats",
    "UnreadableAnswerError",
    "UsageError",
    "UsageRow",
    "WorkspaceError",
    "__version__",
    "initialise_workspace",
    "limit_blas_threads",
    "load_layout",
    "load_questions",
    "load_settings",
    "prepare_connection",
    "tables",
]


def test_the_public_names_are_these() -> None:
    assert sorted(pgrag.__all__) == sorted(PUBLIC)
    assert dir(pgrag) == sorted(PUBLIC)


def test_each_is_what_type_checkers_see() -> None:
    assert pgrag.__file__ is not None
    tree = ast.parse(Path(pgrag.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {
        (alias.name, node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name for name, _ in told} | {"__version__"} == set(PUBLIC)
    for name, module in told - {("tables", "pgrag.database")}:
        assert module is not None
        assert getattr(pgrag, name) is getattr(importlib.import_module(module), name), name
    assert pgrag.tables.Base.metadata.tables


def test_every_error_is_public() -> None:
    errors = importlib.import_module("pgrag.errors")
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert raised <= set(PUBLIC)


def test_what_the_methods_return_is_public() -> None:
    def classes(annotation: object) -> Iterator[type]:
        if isinstance(annotation, type) and annotation.__module__.startswith("pgrag"):
            yield annotation
        for part in typing.get_args(annotation):
            yield from classes(part)

    for name, method in inspect.getmembers(pgrag.rag.PgRAG, inspect.isfunction):
        if not name.startswith("_"):
            for found in classes(typing.get_type_hints(method)["return"]):
                assert found.__name__ in PUBLIC, f"{name} returns {found.__name__}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        pgrag.Nothing  # noqa: B018


def programs() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield path.name, path.read_text("utf-8")
    for name in ("README.md", "examples/README.md"):
        text = (ROOT / name).read_text("utf-8")
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL), 1):
            yield f"{name}, block {number}", block


@pytest.mark.parametrize(("name", "code"), list(programs()), ids=lambda value: value if len(value) < 40 else "")
def test_examples_import_the_public_api_alone(name: str, code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pgrag":
            assert node.module in PUBLIC_MODULES, f"{name} imports from {node.module}"
            assert node.module != "pgrag" or {alias.name for alias in node.names} <= set(PUBLIC)
        elif isinstance(node, ast.Import):
            ours = {alias.name for alias in node.names if alias.name.split(".")[0] == "pgrag"}
            assert ours <= PUBLIC_MODULES, f"{name} imports {ours}"


def test_the_readme_names_no_inner_module() -> None:
    rooms = {path.name.removesuffix(".py") for path in (ROOT / "pgrag").iterdir()} - {"sync", "__init__"}
    named = re.findall(r"\bpgrag\.([a-z]+)\b(?!\.toml)", (ROOT / "README.md").read_text("utf-8"))
    assert not (set(named) & rooms)
