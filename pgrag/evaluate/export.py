"""The report as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from pgrag.evaluate.conclusions import Conclusion, conclusions, sentence
from pgrag.evaluate.presentation import variants
from pgrag.evaluate.results import EvaluationReport, Row

FORMAT = 1
"""Version of the JSON form; it grows when a field changes its meaning or goes, not when one is added."""


def to_json(report: EvaluationReport, *, details: bool = True) -> dict[str, Any]:
    """The report as JSON values, the same ones for the same report. Without `details` the questions and outcomes are
    left out. Decimals become numbers, what is no finite number null."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "name": report.name,
        "created_at": report.created_at,
        "settings": _plain(report.settings),
        "baseline": report.baseline,
        "ks": list(report.ks),
        "variants": variants(report),
        "rows": [_row(row) for row in report.rows],
        "conclusions": [_conclusion(found) for found in conclusions(report)],
        "verdicts": _plain(report.verdicts),
        "warnings": list(report.warnings),
    }
    if details:
        document["questions"] = _plain(report.questions)
        document["outcomes"] = _plain(report.outcomes)
    return document


def _row(row: Row) -> dict[str, Any]:
    gains = {name: {**_plain(gain), "significant": gain.significant} for name, gain in row.gains.items()}
    return {**_plain(row), "gains": gains}


def _conclusion(found: Conclusion) -> dict[str, Any]:
    others = [{**_plain(other), "told": other.told, "needed": other.needed} for other in found.others]
    return {**_plain(found), "others": others, "text": sentence(found)}


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float() | Decimal():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)  # a setting of another type, such as a path
