"""The answers of an evaluation handed to a judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgrag.errors import BudgetError, ModelAccessError, UsageError
from pgrag.evaluate.judge import judge
from pgrag.evaluate.results import EvaluationReport
from pgrag.llm.gateway import Gateway


def check_pair(pair: tuple[str, str], labels: Sequence[str]) -> None:
    """Raises UsageError unless the pair names two of the variants."""
    if pair[0] == pair[1] or not set(pair) <= set(labels):
        raise UsageError(f"a judge compares two variants, not {pair[0]!r} and {pair[1]!r}: use {', '.join(labels)}")


async def judged(
    report: EvaluationReport, pair: tuple[str, str], gateway: Gateway, model: str, state: str
) -> EvaluationReport:
    """The report with the verdicts on the answers that both variants of the pair gave. `state` as for `judge`.

    At the setting max_cost, or when the model refuses access, it stays without verdicts, says so in its warnings, and
    has the error as setting `stopped`.
    """
    answers = {(o.question, o.variant): o.answer for o in report.outcomes if o.answer is not None}
    pairs = [
        (question, answers[question.id, pair[0]], answers[question.id, pair[1]])
        for question in report.questions
        if all((question.id, label) in answers for label in pair)
    ]
    try:
        verdicts, warnings = await judge(gateway, model, pairs, *pair, state=state)
    except (BudgetError, ModelAccessError) as error:
        stopped = {**report.settings, "stopped": str(error)}
        return replace(report, settings=stopped, warnings=(*report.warnings, f"no verdicts: {error}"))
    settings = {**report.settings, "judge": model}
    return replace(report, settings=settings, verdicts=verdicts, warnings=(*report.warnings, *warnings))
