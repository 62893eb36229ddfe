"""Answers of two variants compared by a language model, by the four criteria of LightRAG (arXiv:2410.05779, 4.1).

A judge prefers by place as well as by content: each pair is asked in both orders, and what it says of one order is half
of its verdict; a preference that turns with the order is a tie.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pgrag.errors import ModelError
from pgrag.evaluate.calls import PURPOSE, each_answer
from pgrag.evaluate.results import Question, Verdict
from pgrag.llm import prompts
from pgrag.llm.gateway import Gateway
from pgrag.llm.repair import mend

Winner = Literal["1", "2", "tie"]
Pair = tuple[Question, str, str]

CRITERIA = ("comprehensiveness", "diversity", "empowerment", "overall")
_NAMES: Mapping[str, str] = {"全面性": "comprehensiveness", "多样性": "diversity", "启发性": "empowerment",
                             "总体": "overall", "overall winner": "overall"}  # fmt: skip
_WINNER_KEYS = ("winner", "better", "verdict", "胜者", "胜出")
_WINNER = re.compile(
    r"(?:answer|response|option|回答|答案)?\s*(?:(?P<first>1|one|a|first|一|甲)|(?P<second>2|two|b|second|二|乙))"
    r"(?:\s*(?:answer|response))?",
)
_TIE = re.compile(r"tie|tied|draw|equal|neither|both|none|平局|平|不分高下|相同")
_SHARES: Mapping[tuple[Winner, Winner], tuple[float, float]] = {  # of a winner in each order: for the first, the second
    ("1", "2"): (1, 0), ("2", "1"): (0, 1), ("1", "tie"): (0.5, 0), ("tie", "2"): (0.5, 0),
    ("2", "tie"): (0, 0.5), ("tie", "1"): (0, 0.5),
}  # fmt: skip


async def judge(
    gateway: Gateway,
    model: str,
    pairs: Sequence[Pair],
    first_label: str,
    second_label: str,
    *,
    state: str | None = None,
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Verdicts by criterion, of all questions (kind "") and of each kind; and warnings of what was left out, and why.

    `pairs` are questions with the answers of the first and the second variant; equal answers are ties unasked. With the
    `state` of all texts (`Store.corpus_state`) what the judge says is kept only while they stay so. A question whose
    verdict by a criterion cannot be had or read in both orders is left out there. Raises BudgetError, ModelAccessError.
    """
    differ = [number for number, (_, first, second) in enumerate(pairs) if first.split() != second.split()]
    orders = [(number, turned) for number in differ for turned in (False, True)]

    async def compare(order: tuple[int, bool]) -> Mapping[str, Winner]:
        number, turned = order
        question, *answers = pairs[number]
        one, two = reversed(answers) if turned else answers
        result = await gateway.chat(
            PURPOSE,
            prompts.judge_messages(question.text, one, two, language=prompts.language_of(question.text)),
            model=model,
            schema=prompts.schema("judge"),
            state=state,
            usable=lambda cached: bool(parse_verdicts(cached.text, truncated=cached.truncated)),
        )
        return parse_verdicts(result.text, truncated=result.truncated)

    found = await each_answer(orders, gateway.settings.llm_concurrency, compare)
    said = {number: found[2 * place : 2 * place + 2] for place, number in enumerate(differ)}
    tally = _Tally(first_label, second_label)
    for number, (question, _, _) in enumerate(pairs):
        tally.count(question.kind, said.get(number))
    return tally.verdicts(), tally.warnings(model)


def parse_verdicts(answer: str, *, truncated: bool = False) -> Mapping[str, Winner]:
    """The winner by each criterion that can be read in a judge's answer. Never raises."""
    winners: dict[str, Winner] = {}
    for found in mend(answer, truncated=truncated).values:
        for name, value in _pairs(found.value):
            criterion = name.replace("_", " ").strip().lower()
            criterion = _NAMES.get(criterion, criterion)
            if criterion in CRITERIA and (winner := _winner(value)) is not None:
                winners[criterion] = winner
    return winners


class _Tally:
    """Adds up what was said of each question."""

    def __init__(self, first: str, second: str) -> None:
        self._labels = first, second
        self._shares: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)  # by kind and criterion
        self._kinds: dict[str, None] = {"": None}
        self._unread: Counter[str] = Counter()
        self._errors: list[ModelError] = []

    def count(self, kind: str, said: Sequence[Mapping[str, Winner] | ModelError] | None) -> None:
        """One question: what was said in both orders, None for equal answers."""
        self._kinds[kind] = None
        if said is None:
            for criterion in CRITERIA:
                self._add(kind, criterion, (0, 0))
            return
        if errors := [order for order in said if isinstance(order, ModelError)]:
            self._errors += errors[:1]
            return
        orders = [order for order in said if not isinstance(order, ModelError)]
        for criterion in CRITERIA:
            one, other = (order.get(criterion) for order in orders)
            if one is None or other is None:
                self._unread[criterion] += 1
            else:
                self._add(kind, criterion, _SHARES.get((one, other), (0, 0)))

    def _add(self, kind: str, criterion: str, shares: tuple[float, float]) -> None:
        for of in {"", kind}:
            self._shares[of, criterion].append(shares)

    def verdicts(self) -> tuple[Verdict, ...]:
        """All kinds first, then each in the order of the questions."""
        made = []
        for kind in self._kinds:
            for criterion in CRITERIA:
                if shares := self._shares.get((kind, criterion)):
                    n = len(shares)
                    first, second = (sum(column) for column in zip(*shares, strict=True))  # halves: exact
                    ties = (n - first - second) / n
                    made.append(Verdict(*self._labels, criterion, kind, n, first / n, second / n, ties))
        return tuple(made)

    def warnings(self, model: str) -> tuple[str, ...]:
        """What was left out."""
        between = f"between {self._labels[0]} and {self._labels[1]}"
        told = []
        if self._unread:
            counts = ", ".join(f"{self._unread[name]} by {name}" for name in CRITERIA if self._unread[name])
            told.append(f"verdicts of {model} {between} that could not be read, left out: questions {counts}")
        if self._errors:
            told.append(f"{len(self._errors)} questions were not judged {between}: {self._errors[0]}")
        return tuple(told)


def _pairs(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names and values of an object, of those in a list, and of what an object such as {"verdicts": {...}} wraps."""
    if depth > 3:
        return
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict) and isinstance(name := item.get("criterion"), str):
                yield name, item
            else:
                yield from _pairs(item, depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name), item
            if str(name).lower() not in CRITERIA and isinstance(item, dict | list):
                yield from _pairs(item, depth + 1)


def _winner(value: Any) -> Winner | None:
    if isinstance(value, dict):
        named = {str(name).strip().lower(): item for name, item in value.items()}
        return next((_winner(named[key]) for key in _WINNER_KEYS if not isinstance(named.get(key), dict | None)), None)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip().strip("\"'*.。").lower()
    if (match := _WINNER.fullmatch(text)) is not None:
        return "1" if match["first"] else "2"
    return "tie" if _TIE.fullmatch(text) else None
