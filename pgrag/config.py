"""Settings: argument over `PGRAG_*` environment variable over `pgrag.toml` over default. Read once, at the edge."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from pgrag.errors import ConfigError

ENV_PREFIX = "PGRAG_"
FILE_NAME = "pgrag.toml"
ENTITY_TYPES = (
    "person", "creature", "organization", "location", "event", "concept",
    "method", "content", "data", "artifact", "naturalobject", "other",
)  # fmt: skip
SEARCH, BUDGET = "Search", "Context"  # panels of options on the command line
WORKSPACE_PATTERN = r"^[a-z][a-z0-9_]{0,40}$"


def setting(default: Any, description: str, **limits: Any) -> Any:
    """A field of Settings."""
    return Field(default=default, description=description, **limits)


def search_option(
    default: Any,
    description: str,
    *,
    metavar: str = "N",
    panel: str = SEARCH,
    parameter: str | None = "",
    choices: Sequence[str] = (),
    **limits: Any,
) -> Any:
    """A field of SearchOptions. `metavar` and `panel` are for the command line.

    `parameter` is what `retrieve()` calls it, without its `p_`: empty if as the field, none if it does not take it.
    """
    if choices:
        limits["pattern"] = f"^({'|'.join(choices)})$"
    extra: Any = {"metavar": metavar, "panel": panel, "parameter": parameter, "choices": list(choices)}
    return setting(default, description, json_schema_extra=extra, **limits)


class SearchOptions(BaseModel):
    """How to search: all that is to be said of an option stands here, and in `retrieve()` what it does.

    Each is a setting, an argument of `query`, `stream` and `retrieve`, an option of `pgrag query`, a name for
    `pgrag eval --set` and a parameter of `retrieve()`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    top_k: int = search_option(40, "entities and relations a channel", ge=1, le=500)
    chunk_top_k: int = search_option(20, "passages in the context at most", ge=1, le=200)
    chunk_ranking: str = search_option(
        "pagerank", "order of the passages", parameter="ranking", choices=("vector", "weight", "pagerank")
    )
    lexical: float = search_option(
        0.2, "share of words (BM25) in a passage's nearness; 0: off", metavar="SHARE", ge=0, le=1
    )
    nearness: float | None = search_option(
        None,
        "share of nearness, against the walk over the graph, in pagerank; none: by the question",
        metavar="SHARE",
        ge=0,
        le=1,
    )
    rounds: int = search_option(
        1, "2: search again with the best facts found, one embedding more", parameter=None, ge=1, le=2
    )
    degree_cap: int = search_option(32, "edges followed from one entity at most", ge=1, le=1000)
    hops: int = search_option(1, "steps to walk from the entities found", ge=1, le=3)
    max_entity_tokens: int = search_option(6000, "tokens for entities", panel=BUDGET, parameter="entity_tokens", ge=0)
    max_relation_tokens: int = search_option(
        8000, "tokens for relations", panel=BUDGET, parameter="relation_tokens", ge=0
    )
    max_total_tokens: int = search_option(
        30_000, "tokens of the whole prompt", panel=BUDGET, parameter="total_tokens", ge=100
    )


class Settings(SearchOptions):
    """Every setting of pgrag, with its unit and default. See `load_settings`."""

    dsn: SecretStr | None = setting(None, "PostgreSQL to use; none: the embedded server")
    workspace: str = setting("default", "name of the workspace (one schema each)", pattern=WORKSPACE_PATTERN)
    home: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("pgrag", appauthor=False)),
        description="directory of the embedded server",
    )
    prepared_statements: bool = setting(True, "false behind a pooler that cannot keep them")
    pool_size: int = setting(8, "database connections at most", ge=1, le=1000)
    statement_timeout: float = setting(60.0, "seconds a search statement may take", gt=0)

    llm_model: str | None = setting(None, "LiteLLM model for extraction, keywords and answers")
    extraction_model: str | None = setting(None, "model for extraction and summaries; none: llm_model")
    keyword_model: str | None = setting(None, "model for a question's keywords; none: llm_model")
    answer_model: str | None = setting(None, "model for answers; none: llm_model")
    evaluate_model: str | None = setting(None, "model that judges answers and drafts questions; none: llm_model")
    llm_api_base: str | None = setting(None, "URL of the server of these models; none: the provider's own")
    llm_api_key: SecretStr | None = setting(None, "their key; none: the provider's own variable")
    llm_concurrency: int = setting(4, "requests to these models at a time", ge=1, le=1000)
    llm_timeout: float = setting(180.0, "seconds an answer, or a stream's next piece, may take", gt=0)
    llm_retries: int = setting(5, "repetitions of a request that may yet succeed", ge=0, le=100)
    gleaning: int = setting(1, "times a model is asked what it left out of a chunk", ge=0, le=5)
    entity_types: tuple[str, ...] = setting(ENTITY_TYPES, "types of entities to look for", min_length=1)
    output_language: str | None = setting(None, "language of descriptions; none: that of the text")
    summary_fragments: int = setting(8, "fragments from which on an LLM summarises a description", ge=2)
    summary_above_tokens: int = setting(1200, "tokens from which on an LLM summarises a description", ge=1)
    summary_tokens: int = setting(600, "tokens of a summary at most", ge=16)
    summary_context_tokens: int = setting(12_000, "tokens summarised in one call at most", ge=256)
    max_output_tokens: int | None = setting(None, "tokens of an answer at most; none: the model's own", ge=1)
    temperature: float = setting(0.0, "sampling temperature; left out where a model refuses it", ge=0, le=2)
    max_cost: float | None = setting(None, "US dollars a run may spend on models; none: no limit", ge=0)
    embedding_model: str | None = setting(None, "LiteLLM embedding model; none: the keyless one")
    embedding_dimension: int | None = setting(
        None, "length of its vectors, asked of models that can shorten them; none: its own", ge=1, le=4000
    )
    embedding_query_prefix: str = setting("", "text before each question, e.g. 'query: ' for E5 models")
    embedding_passage_prefix: str = setting("", "text before each passage, e.g. 'passage: ' for E5 models")
    embedding_api_base: str | None = setting(None, "URL of the embedding server; none: the provider's own")
    embedding_api_key: SecretStr | None = setting(None, "its key; none: the provider's own variable")
    embedding_concurrency: int = setting(16, "embedding requests at a time", ge=1, le=1000)
    embedding_timeout: float = setting(60.0, "seconds an embedding request may take", gt=0)
    tokenizer: str = setting("o200k_base", "tiktoken encoding that counts tokens")

    chunk_tokens: int = setting(1200, "tokens of a chunk at most", ge=16, le=100_000)
    chunk_overlap: int = setting(
        None,
        "tokens a chunk repeats from the one before at most; none: 100, or half of small chunks",
        ge=0,
        validate_default=True,
    )
    split_by_character: str | None = setting(None, "text after which a chunk ends; none: no such", min_length=1)
    split_by_character_only: bool = setting(False, "end chunks nowhere else: a longer part is an error")
    embedding_batch: int = setting(32, "texts an embedding request", ge=1, le=2048)
    claim_batch: int = setting(16, "chunks a worker takes at a time", ge=1, le=1000)
    workers: int = setting(2, "chunk batches worked on at a time", ge=1, le=64)
    lease_seconds: float = setting(300.0, "seconds after which a silent worker's chunks are free again", gt=0)
    max_attempts: int = setting(5, "tries before a chunk counts as failed", ge=1)
    description_fragments: int = setting(50, "fragments a description is composed of at most", ge=1, le=1000)
    description_tokens: int | None = setting(
        None, "tokens a description is composed of at most; none: 1200 with an LLM, else 300", ge=1, le=100_000
    )
    refresh_chunks: int = setting(200, "chunks ingested before profiles are refreshed", ge=1)
    refresh_seconds: float = setting(60.0, "seconds of ingest before profiles are refreshed", gt=0)

    cosine_threshold: float | None = setting(None, "least cosine; none: the model's own", ge=-1, le=1)

    @field_validator("chunk_overlap", mode="before")
    @classmethod
    def _overlap_fits(cls, value: Any, info: Any) -> Any:
        return min(100, info.data.get("chunk_tokens", 1200) // 2) if value is None else value

    @field_validator("entity_types", mode="before")
    @classmethod
    def _split_at_commas(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("chunk_overlap")
    @classmethod
    def _overlap_is_smaller(cls, value: int, info: Any) -> int:
        if value * 2 > info.data.get("chunk_tokens", 1200):
            raise ValueError("must be at most half of chunk_tokens")
        return value

    @field_validator("split_by_character_only")
    @classmethod
    def _only_with_a_separator(cls, value: bool, info: Any) -> bool:
        if value and not info.data.get("split_by_character"):
            raise ValueError("needs split_by_character")
        return value

    @property
    def description_limits(self) -> tuple[int, int]:
        """Fragments and tokens a description is composed of at most; bare sentences make long ones poor."""
        return self.description_fragments, self.description_tokens or (
            1200 if self.extraction_model or self.llm_model else 300
        )

    @property
    def schema_name(self) -> str:
        """The PostgreSQL schema of the workspace."""
        return schema_of(self.workspace)


def schema_of(workspace: str) -> str:
    """`default` lives in schema `pgrag`, any other workspace in `pgrag_<name>`."""
    return "pgrag" if workspace == "default" else f"pgrag_{workspace}"


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Settings from `overrides` (None values are ignored), `PGRAG_*` variables and `pgrag.toml`.

    The file is `file`, else `$PGRAG_CONFIG`, else `pgrag.toml` in the current directory if there is one.
    Raises ConfigError naming each wrong setting and where it was set; values are not shown.
    """
    env = os.environ if environ is None else environ
    explicit = file or (Path(env["PGRAG_CONFIG"]) if env.get("PGRAG_CONFIG") else None)
    path = explicit or Path(FILE_NAME)
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    layers: list[tuple[Mapping[str, Any], str]] = []
    if explicit or path.is_file():
        layers.append((_read_file(path), f"in {str(path).replace('{', '{{').replace('}', '}}')} ({{name}})"))
    known = Settings.model_fields
    layers.append(
        (
            {n: env[ENV_PREFIX + n.upper()] for n in known if env.get(ENV_PREFIX + n.upper())},
            "in the environment ({env})",
        )
    )
    layers.append(({k: v for k, v in (overrides or {}).items() if v is not None}, "given as {name}"))
    for layer, place in layers:
        for name, value in layer.items():
            values[name] = value
            origin[name] = place.format(name=name, env=ENV_PREFIX + name.upper())
    try:
        return Settings(**values)
    except ValidationError as error:
        lines = []
        for name, problem in problems(error):
            known_hint = "" if name in known else f"; known settings: {', '.join(sorted(known))}"
            lines.append(f"setting {name} {origin.get(name, '')}: {problem}{known_hint}")
        raise ConfigError("; ".join(lines)) from None


def problems(error: ValidationError) -> Iterator[tuple[str, str]]:
    """(setting, what is wrong with it) of each problem; values are not shown."""
    for problem in error.errors(include_input=False, include_url=False):
        yield str(problem["loc"][0]) if problem["loc"] else "?", problem["msg"]


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {path} is not valid TOML: {error}") from None
