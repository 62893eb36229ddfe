"""What a judge may write, and what is read in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pgrag.evaluate.judge import CRITERIA, parse_verdicts

FORMS: list[tuple[Any, str | None]] = [
    ("1", "1"), ("2", "2"), ("tie", "tie"), (1, "1"), (2.0, None), ("Answer 1", "1"), ("answer 2.", "2"),
    ("**2**", "2"), ("First answer", "1"), ("Response B", "2"), ("回答1", "1"), ("回答 二", "2"), ("平局", "tie"),
    ("Neither", "tie"), ("draw", "tie"), ("3", None), ("12", None), ("Answer 1 or 2", None), ("answer", None),
    ("", None), (None, None), (True, None), ({"winner": "1"}, None), ([1], None),
]  # fmt: skip


@pytest.mark.parametrize(("winner", "read"), FORMS)
def test_winners_of_every_form(winner: Any, read: str | None) -> None:
    expected = {} if read is None else {"overall": read}
    assert parse_verdicts(json.dumps({"overall": {"reason": "2 is longer", "winner": winner}})) == expected
    if not isinstance(winner, dict):
        assert parse_verdicts(json.dumps({"overall": winner})) == expected


WHOLE = {name: {"reason": "r", "winner": "2"} for name in CRITERIA}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(WHOLE),
        f"<think>1 wins?</think>```json\n{json.dumps(WHOLE)}\n```",
        json.dumps({"verdicts": WHOLE}),
        json.dumps([{"criterion": name, "winner": "2"} for name in CRITERIA]),
        json.dumps({"Comprehensiveness": {"Winner": "Answer 2"}, "Diversity": {"Winner": "Answer 2"},
                    "Empowerment": {"Winner": "Answer 2"}, "Overall Winner": {"Winner": "Answer 2"}}),
        json.dumps({"全面性": "2", "多样性": "2", "启发性": "2", "总体": "2"}, ensure_ascii=False),
        json.dumps(WHOLE)[:-1],
    ],
)  # fmt: skip
def test_answers_of_every_form(text: str) -> None:
    assert parse_verdicts(text) == dict.fromkeys(CRITERIA, "2")


@pytest.mark.parametrize("text", ["", "Answer 1 wins.", "[]", "{}", '{"style": {"winner": "1"}}', "[[[[[[1]]]]]]"])
def test_without_verdicts_nothing_is_read(text: str) -> None:
    assert parse_verdicts(text) == {}


def test_what_was_cut_off_is_left_out() -> None:
    text = json.dumps(WHOLE)
    assert parse_verdicts(text[: text.index('"empowerment"') + 20], truncated=True) == dict.fromkeys(CRITERIA[:2], "2")
