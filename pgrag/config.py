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
    return Field(default, description=description, json_schema_extra=extra, **limits)


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

    dsn: SecretStr | None = Field(default=None, description="PostgreSQL to use; none: the embedded server")
    workspace: str = Field(
        default="default", pattern=WORKSPACE_PATTERN, description="name of the workspace (one schema each)"
    )
    home: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("pgrag", appauthor=False)),
        description="directory of the embedded server",
    )
    prepared_statements: bool = Field(default=True, description="false behind a pooler that cannot keep them")
    pool_size: int = Field(default=8, ge=1, le=1000, description="database connections at most")
    statement_timeout: float = Field(default=60.0, gt=0, description="seconds a search statement may take")

    llm_model: str | None = Field(default=None, description="LiteLLM model for extraction, keywords and answers")
    extraction_model: str | None = Field(
        default=None, description="model for extraction and summaries; none: llm_model"
    )
    keyword_model: str | None = Field(default=None, description="model for a question's keywords; none: llm_model")
    answer_model: str | None = Field(default=None, description="model for answers; none: llm_model")
    evaluate_model: str | None = Field(
        default=None, description="model that judges answers and drafts questions; none: llm_model"
    )
    llm_api_base: str | None = Field(
        default=None, description="URL of the server of these models; none: the provider's own"
    )
    llm_api_key: SecretStr | None = Field(default=None, description="their key; none: the provider's own variable")
    llm_concurrency: int = Field(default=4, ge=1, le=1000, description="requests to these models at a time")
    llm_timeout: float = Field(default=180.0, gt=0, description="seconds an answer, or a stream's next piece, may take")
    llm_retries: int = Field(default=5, ge=0, le=100, description="repetitions of a request that may yet succeed")
    gleaning: int = Field(default=1, ge=0, le=5, description="times a model is asked what it left out of a chunk")
    entity_types: tuple[str, ...] = Field(
        default=ENTITY_TYPES, min_length=1, description="types of entities to look for"
    )
    output_language: str | None = Field(default=None, description="language of descriptions; none: that of the text")
    summary_fragments: int = Field(
        default=8, ge=2, description="fragments from which on an LLM summarises a description"
    )
    summary_above_tokens: int = Field(
        default=1200, ge=1, description="tokens from which on an LLM summarises a description"
    )
    summary_tokens: int = Field(default=600, ge=16, description="tokens of a summary at most")
    summary_context_tokens: int = Field(default=12_000, ge=256, description="tokens summarised in one call at most")
    max_output_tokens: int | None = Field(
        default=None, ge=1, description="tokens of an answer at most; none: the model's own"
    )
    temperature: float = Field(
        default=0.0, ge=0, le=2, description="sampling temperature; left out where a model refuses it"
    )
    max_cost: float | None = Field(
        default=None, ge=0, description="US dollars a run may spend on models; none: no limit"
    )
    embedding_model: str | None = Field(default=None, description="LiteLLM embedding model; none: the keyless one")
    embedding_dimension: int | None = Field(
        default=None,
        ge=1,
        le=4000,
        description="length of its vectors, asked of models that can shorten them; none: its own",
    )
    embedding_query_prefix: str = Field(
        default="", description="text before each question, e.g. 'query: ' for E5 models"
    )
    embedding_passage_prefix: str = Field(
        default="", description="text before each passage, e.g. 'passage: ' for E5 models"
    )
    embedding_api_base: str | None = Field(
        default=None, description="URL of the embedding server; none: the provider's own"
    )
    embedding_api_key: SecretStr | None = Field(default=None, description="its key; none: the provider's own variable")
    embedding_concurrency: int = Field(default=16, ge=1, le=1000, description="embedding requests at a time")
    embedding_timeout: float = Field(default=60.0, gt=0, description="seconds an embedding request may take")
    tokenizer: str = Field(default="o200k_base", description="tiktoken encoding that counts tokens")

    chunk_tokens: int = Field(default=1200, ge=16, le=100_000, description="tokens of a chunk at most")
    chunk_overlap: int = Field(
        default=None,
        ge=0,
        validate_default=True,
        description="tokens a chunk repeats from the one before at most; none: 100, or half of small chunks",
    )
    split_by_character: str | None = Field(
        default=None, min_length=1, description="text after which a chunk ends; none: no such"
    )
    split_by_character_only: bool = Field(
        default=False, description="end chunks nowhere else: a longer part is an error"
    )
    embedding_batch: int = Field(default=32, ge=1, le=2048, description="texts an embedding request")
    claim_batch: int = Field(default=16, ge=1, le=1000, description="chunks a worker takes at a time")
    workers: int = Field(default=2, ge=1, le=64, description="chunk batches worked on at a time")
    lease_seconds: float = Field(
        default=300.0, gt=0, description="seconds after which a silent worker's chunks are free again"
    )
    max_attempts: int = Field(default=5, ge=1, description="tries before a chunk counts as failed")
    description_fragments: int = Field(
        default=50, ge=1, le=1000, description="fragments a description is composed of at most"
    )
    description_tokens: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="tokens a description is composed of at most; none: 1200 with an LLM, else 300",
    )
    refresh_chunks: int = Field(default=200, ge=1, description="chunks ingested before profiles are refreshed")
    refresh_seconds: float = Field(default=60.0, gt=0, description="seconds of ingest before profiles are refreshed")

    cosine_threshold: float | None = Field(default=None, ge=-1, le=1, description="least cosine; none: the model's own")

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
