"""The options of one search: over the settings, checked, and as parameters of `retrieve()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError

from pgrag.config import SearchOptions, Settings, problems
from pgrag.errors import UsageError
from pgrag.search.filters import Filter
from pgrag.types import Mode

NAMES = tuple(SearchOptions.model_fields)


class QueryOptions(SearchOptions):
    """How to search, where, and which documents."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    mode: Mode
    filter: Filter | None = None


def query_options(
    settings: Settings, mode: Mode | str, given: Mapping[str, Any], filter: Filter | None = None
) -> QueryOptions:
    """The options of a call over the settings; `None` means the setting of the same name.

    Raises UsageError naming what is wrong and what is allowed.
    """
    try:
        chosen = Mode(mode)
    except ValueError:
        raise UsageError(f"unknown mode {str(mode)!r}: use {', '.join(Mode)}") from None
    if filter is not None and not isinstance(filter, Filter):
        raise UsageError("filter: give a pgrag.Filter, such as Filter(labels=['handbook'])")
    if filter is not None and chosen is Mode.BYPASS:
        raise UsageError("mode bypass searches nothing: it takes no filter")
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise UsageError(f"unknown query option {', '.join(unknown)}: use {', '.join(sorted(NAMES))}")
    values = {name: getattr(settings, name) for name in NAMES} | {k: v for k, v in given.items() if v is not None}
    try:
        return QueryOptions(mode=chosen, filter=filter, **values)
    except ValidationError as error:
        raise UsageError("; ".join(f"query option {name}: {problem}" for name, problem in problems(error))) from None


def details(name: str) -> Mapping[str, Any]:
    """What `pgrag.config.search_option` was told of an option, besides its limits."""
    extra = SearchOptions.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)  # noqa: S101 - for the type checker: search_option makes all fields
    return extra


def retrieve_parameters(options: SearchOptions) -> dict[str, Any]:
    """The options as parameters of `retrieve()`, by name without `p_`."""
    named = {name: details(name)["parameter"] for name in NAMES}
    return {parameter or name: getattr(options, name) for name, parameter in named.items() if parameter is not None}
