"""Settings: precedence, messages that say what is wrong and where, and no value of a secret anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgrag import errors
from pgrag.config import Settings, load_settings
from pgrag.errors import ConfigError, ExitCode, PgragError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "{odd} name.toml"
    path.write_text('workspace = "from_file"\ntop_k = 11\nchunk_top_k = 12\nhops = 2\n', "utf-8")
    return path


def test_argument_over_environment_over_file_over_default(file: Path) -> None:
    environ = {"PGRAG_TOP_K": "21", "PGRAG_CHUNK_TOP_K": "22", "PGRAG_DEGREE_CAP": "", "OTHER": "x"}
    settings = load_settings({"top_k": 31, "workspace": None}, environ=environ, file=file)
    assert (settings.top_k, settings.chunk_top_k, settings.hops, settings.degree_cap) == (31, 22, 2, 32)
    assert settings.workspace == "from_file"


def test_the_file_is_found_by_variable_and_in_the_current_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings(environ={"PGRAG_CONFIG": str(file)}).top_k == 11
    monkeypatch.chdir(tmp_path)
    assert load_settings(environ={}).top_k == 40
    (tmp_path / "pgrag.toml").write_text("top_k = 13", "utf-8")
    assert load_settings(environ={}).top_k == 13


@pytest.mark.parametrize(
    ("overrides", "environ", "content", "words"),
    [
        ({"top_k": 0}, {}, "", ["setting top_k given as top_k", "greater than or equal to 1"]),
        ({}, {"PGRAG_TOP_K": "s3cret"}, "", ["setting top_k in the environment (PGRAG_TOP_K)", "integer"]),
        ({}, {}, "top_k = -4", ["setting top_k in ", "{odd} name.toml (top_k)", "greater"]),
        ({"topk": 1}, {}, "", ["setting topk given as topk", "; known settings: "]),
        ({}, {}, "[top_k]\nx = 1", ["setting top_k in", "integer"]),
        ({"workspace": "Acme"}, {}, "", ["setting workspace", "pattern"]),
        ({"workspace": "a; drop schema pgrag"}, {}, "", ["setting workspace", "pattern"]),
        ({"workspace": "a" * 42}, {}, "", ["setting workspace"]),
        ({"chunk_ranking": "fate"}, {}, "", ["setting chunk_ranking", "vector|weight|pagerank"]),
        ({"chunk_tokens": 100, "chunk_overlap": 51}, {}, "", ["setting chunk_overlap", "at most half of chunk_tokens"]),
        ({"top_k": 0, "hops": 9}, {}, "", ["setting top_k", "; setting hops"]),
        ({}, {}, "top_k = ", ["{odd} name.toml is not valid TOML"]),
    ],
)
def test_a_wrong_setting_is_one_line_that_says_where_it_was_set(
    file: Path, overrides: dict[str, Any], environ: dict[str, str], content: str, words: list[str]
) -> None:
    file.write_text(content, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(overrides, environ=environ, file=file)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "s3cret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    for word in words:
        assert word in str(caught.value)


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        load_settings(environ={}, file=tmp_path / "none.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.toml is not valid TOML"):
        load_settings(environ={}, file=binary)


def test_the_overlap_of_small_chunks_is_half_of_them_unless_said() -> None:
    assert Settings().chunk_overlap == 100
    assert Settings(chunk_tokens=100).chunk_overlap == 50
    assert Settings(chunk_tokens=17).chunk_overlap == 8
    assert Settings(chunk_tokens=100, chunk_overlap=0).chunk_overlap == 0


def test_the_dsn_is_not_shown() -> None:
    settings = load_settings({"dsn": "postgresql://ann:s3cret@h/x"}, environ={})
    assert "s3cret" not in repr(settings) + str(settings) + str(settings.model_dump())
    assert settings.dsn is not None
    assert settings.dsn.get_secret_value() == "postgresql://ann:s3cret@h/x"


def test_description_limits_depend_on_the_llm() -> None:
    assert Settings().description_limits == (50, 300)
    assert Settings(llm_model="m").description_limits == (50, 1200)
    assert Settings(llm_model="m", description_tokens=7, description_fragments=3).description_limits == (3, 7)


@pytest.mark.parametrize(("name", "schema"), [("default", "pgrag"), ("acme", "pgrag_acme"), ("a_1", "pgrag_a_1")])
def test_a_workspace_is_a_schema(name: str, schema: str) -> None:
    assert load_settings({"workspace": name}, environ={}).schema_name == schema


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a b", "a\n", "ä", "a" * 42, '"; drop'])
def test_other_names_are_no_workspaces(name: str) -> None:
    with pytest.raises(ConfigError, match=r"setting workspace given as workspace: .*\[a-z\]\[a-z0-9_\]\{0,40\}"):
        load_settings({"workspace": name}, environ={})


def test_every_error_has_an_exit_code_and_a_message() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PgragError)]
    codes = {kind.__name__: int(kind.exit_code) for kind in kinds}
    assert codes == {
        "PgragError": 1,
        "RefusedValueError": 1, "DocumentError": 1, "ExtractionError": 1, "UnreadableAnswerError": 1, "ModelError": 1,
        "ModelAccessError": 1, "BudgetError": 4,
        "UsageError": 2, "ConfigError": 2, "MissingExtraError": 2, "DimensionError": 2,
        "DatabaseError": 3, "MissingExtensionError": 3, "MissingRightError": 3, "WorkspaceError": 3, "CodeTreeError": 3,
        "DependentObjectsError": 3, "ServerError": 3, "StatementCancelledError": 3,
    }  # fmt: skip
    assert all(kind.__doc__ for kind in kinds)
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 130]
