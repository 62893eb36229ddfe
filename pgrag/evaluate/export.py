"""The report as JSON."""

from __future__ import annotations

from typing import Any

from pgrag.evaluate.conclusions import Conclusion, conclusions, sentence
from pgrag.evaluate.presentation import variants
from pgrag.evaluate.results import EvaluationReport, Row
from pgrag.text.jsonable import jsonable

FORMAT = 1
"""Version of the JSON form; it grows when a field changes its meaning or goes, not when one is added."""


def to_json(report: EvaluationReport, *, details: bool = True) -> dict[str, Any]:
    """The report as JSON values, the same ones for the same report. Without `details` the questions and outcomes are
    left out. Decimals become numbers, what is no finite number null."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "name": report.name,
        "created_at": report.created_at,
        "settings": jsonable(report.settings),
        "baseline": report.baseline,
        "ks": list(report.ks),
        "variants": variants(report),
        "rows": [_row(row) for row in report.rows],
        "conclusions": [_conclusion(found) for found in conclusions(report)],
        "verdicts": jsonable(report.verdicts),
        "warnings": list(report.warnings),
    }
    if details:
        document["questions"] = jsonable(report.questions)
        document["outcomes"] = jsonable(report.outcomes)
    return document


def _row(row: Row) -> dict[str, Any]:
    gains = {name: {**jsonable(gain), "significant": gain.significant} for name, gain in row.gains.items()}
    return {**jsonable(row), "gains": gains}


def _conclusion(found: Conclusion) -> dict[str, Any]:
    others = [{**jsonable(other), "told": other.told, "needed": other.needed} for other in found.others]
    return {**jsonable(found), "others": others, "text": sentence(found)}
