"""The options of a search as options of a command, made from `SearchOptions`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import typer

from pgrag.config import SearchOptions
from pgrag.search.options import NAMES, details

R = TypeVar("R")


def takes_search_options(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command an option for each field of SearchOptions, in place of its `**` parameter, after the mode."""
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    place = next(i for i, parameter in enumerate(own, 1) if parameter.name == "mode")

    parameters = [*own[:place], *map(_parameter, NAMES), *own[place:]]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def _parameter(name: str) -> inspect.Parameter:
    field, extra = SearchOptions.model_fields[name], details(name)
    text = field.description or name
    default = "" if field.default is None else f" (default {field.default})"
    choices = extra["choices"]
    option = typer.Option(
        metavar=None if choices else extra["metavar"],
        help=f"{text[0].upper()}{text[1:]}{default}.",
        rich_help_panel=extra["panel"],
    )
    kind: Any = Literal[tuple(choices)] if choices else field.annotation
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Annotated[kind | None, option]
    )
