"""The ways to search that an evaluation compares: modes by options, and the one that others are measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from pgrag.config import Settings
from pgrag.errors import UsageError
from pgrag.evaluate.results import Variant
from pgrag.search.options import query_options
from pgrag.types import Mode

CHUNK_OPTIONS = ("chunk_top_k", "max_total_tokens")  # all that makes a difference where no graph is searched


def grid(settings: Settings, modes: Sequence[Mode | str], options: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """Each mode with each combination of the options' values, in their order; equal ones once.

    naive has those of `chunk_top_k` and `max_total_tokens` only, bypass none: others make no difference to them.
    Raises UsageError for wrong modes, names and values.
    """
    found: dict[str, Variant] = {}
    lists = {name: (values,) if isinstance(values, str) else tuple(values) for name, values in options.items()}
    for name, values in lists.items():
        if not values:
            raise UsageError(f"query option {name} has no value to try")
    for mode in modes:
        for combination in product(*lists.values()):
            given = dict(zip(lists, combination, strict=True))
            checked = query_options(settings, mode, given)
            used = [name for name in given if _matters(checked.mode, name)]
            variant = Variant(checked.mode, {name: getattr(checked, name) for name in used})
            found.setdefault(variant.label, variant)
    return list(found.values())


def with_baseline(settings: Settings, variants: Sequence[Variant], baseline: str = "") -> tuple[list[Variant], str]:
    """The variants and the label of the one that others are compared to: `baseline`, or else the first naive one.

    Plain naive, or the plain mode that `baseline` names, is put before the variants if they lack it. Raises UsageError
    for another label that is none of theirs.
    """
    distinct = list({variant.label: variant for variant in variants}.values())
    labels = [variant.label for variant in distinct]
    naive = next((variant.label for variant in distinct if variant.mode is Mode.NAIVE), Mode.NAIVE.value)
    wanted = baseline or naive
    if wanted in labels:
        return distinct, wanted
    if wanted not in list(Mode):
        raise UsageError(f"no variant is called {wanted!r}, to compare with: {', '.join(labels)}")
    return [*grid(settings, [wanted], {}), *distinct], wanted


def _matters(mode: Mode, option: str) -> bool:
    return mode is not Mode.BYPASS and (mode is not Mode.NAIVE or option in CHUNK_OPTIONS)
