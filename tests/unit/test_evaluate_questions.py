"""Questions from JSON lines: every form of gold, and every wrong line named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgrag.errors import UsageError
from pgrag.evaluate.questions import load_questions
from pgrag.evaluate.results import Gold, Kind, Question

EXAMPLES = Path(__file__).parents[2] / "examples" / "questions.jsonl"


def load(tmp_path: Path, *rows: Any) -> tuple[list[Question], list[str]]:
    file = tmp_path / "q.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    file.write_text("\n".join(lines), "utf-8")
    return load_questions(file)


def gold_of(tmp_path: Path, **fields: Any) -> tuple[Gold, ...]:
    [question], _ = load(tmp_path, {"question": "Who?", **fields})
    return question.gold


def test_the_examples_load_as_they_are() -> None:
    questions, warnings = load_questions(EXAMPLES)
    rows = [json.loads(line) for line in EXAMPLES.read_text("utf-8").splitlines()]
    assert [q.id for q in questions] == [row["id"] for row in rows]
    assert [q.answers for q in questions] == [(row["answer"],) for row in rows]
    assert [q.kind for q in questions] == [row["kind"] for row in rows]
    first = rows[0]["gold"][0]
    assert questions[0].gold == (Gold(first["document"], None, first["text"]),)
    assert warnings == []


def test_ids_are_those_given_or_the_number_of_the_line(tmp_path: Path) -> None:
    questions, _ = load(tmp_path, {"id": "a", "query": "One?"}, "", {"text": "Two?"}, {"id": 7, "question": "Three?"})
    assert [(q.id, q.text) for q in questions] == [("a", "One?"), ("3", "Two?"), ("7", "Three?")]


@pytest.mark.parametrize(
    ("fields", "gold"),
    [
        ({"gold": "a.md"}, (Gold("a.md"),)),
        ({"gold": ["a.md", "b.md", "a.md"]}, (Gold("a.md"), Gold("b.md"))),
        ({"gold": [{"document": "a.md"}, {"text": " It is so. "}]}, (Gold("a.md"), Gold(text="It is so."))),
        ({"gold": [{"document": "a.md", "ordinal": 2, "text": "So"}]}, (Gold("a.md", 2, "So"),)),
        ({"gold_ids": ["d1", 2]}, (Gold("d1"), Gold("2"))),
        ({"gold_documents": ["d1"]}, (Gold("d1"),)),
        ({"gold_chunks": [{"document": "d1", "ordinal": 0}]}, (Gold("d1", 0),)),
        ({"gold_ids": ["d1"], "gold_chunks": [{"document": "d1", "ordinal": 0}]}, (Gold("d1"), Gold("d1", 0))),
        ({"evidence": "It is so."}, (Gold(text="It is so."),)),
        ({"evidence": ["1.", {"fact": "2."}, {"text": "3."}, " "]}, tuple(Gold(text=t) for t in ["1.", "2.", "3."])),
        ({"evidence": "It is so.", "gold_ids": ["d1"]}, (Gold("d1"),)),
        ({"evidence": "It is so.", "gold_ids": []}, ()),
        ({"evidence": "It is so.", "gold_ids": None}, (Gold(text="It is so."),)),
    ],
)
def test_every_form_of_gold(tmp_path: Path, fields: dict[str, Any], gold: tuple[Gold, ...]) -> None:
    assert gold_of(tmp_path, **fields) == gold


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"answer": "Mosel"}, ("Mosel",)),
        ({"answers": ["Mosel", " Moselle ", "Mosel", ""]}, ("Mosel", "Moselle")),
        ({"answers": ["Mosel"], "answer": "Moselle"}, ("Mosel", "Moselle")),
        ({"answers": [12, True, 1.5]}, ("12", "yes", "1.5")),
        ({"answers": None}, ()),
    ],
)
def test_answers_are_a_text_or_a_list(tmp_path: Path, fields: dict[str, Any], answers: tuple[str, ...]) -> None:
    [question], _ = load(tmp_path, {"question": "Who?", **fields})
    assert question.answers == answers


def test_questions_without_gold_are_counted_once_and_kept_null_ones_need_none(tmp_path: Path) -> None:
    questions, warnings = load(
        tmp_path,
        {"question": "One?", "gold": ["a"]},
        {"question": "Two?", "type": "null"},
        {"question": "Three?", "kind": "thematic"},
        {"question": "Four?"},
    )
    assert [q.kind for q in questions] == ["", Kind.NULL, Kind.THEMATIC, ""]
    assert warnings == ["2 of 4 questions without gold (first: 3): for answers only"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{", "is not valid JSON"),
        ("[" * 50_000, "nested too deeply"),
        ('{"question": "Who?", "weight": NaN}', "NaN is no JSON number"),
        ("[1]", "a line is a JSON object, not [1]"),
        ({"id": "x"}, 'there is no "question"'),
        ({"question": "  "}, 'there is no "question"'),
        ({"question": ["Who?"]}, '"question" is a text, not ["Who?"]'),
        ({"question": "Who?", "kind": 3}, '"kind" is a text'),
        ({"question": "Who?", "id": True}, "an id is a text or a whole number"),
        ({"question": "Who?", "answers": {"a": 1}}, '"answers" is a text or a list of texts'),
        ({"question": "Who?", "answers": [["a"]]}, '"answers" is a text or a list of texts'),
        ("[", "is a JSON list: write JSON lines, an object on each line"),
        ({"question": "Who?", "gold": {"document": "a.md"}}, '"gold" is a list, not {"document": "a.md"}'),
        ({"question": "Who?", "gold": [None]}, '"gold" is a list of uris and objects'),
        ({"question": "Who?", "gold": [""]}, '"gold" holds an empty uri'),
        ({"question": "Who?", "gold": [{}]}, 'without "document" and "text"'),
        ({"question": "Who?", "gold": [{"ordinal": 1, "text": "a"}]}, 'without "document"'),
        ({"question": "Who?", "gold": [{"document": "a", "ordinal": -1}]}, "no whole number from 0"),
        ({"question": "Who?", "gold": [{"document": "a", "ordinal": "1"}]}, "no whole number from 0"),
        ({"question": "Who?", "gold": [{"document": 5}]}, '"document" is a text, not 5'),
        ({"question": "Who?", "gold_ids": [{"document": "a"}]}, '"gold_ids" is a list of uris'),
        ({"question": "Who?", "gold_chunks": ["a"]}, '"gold_chunks" is a list of objects {document, ordinal}'),
        ({"question": "Who?", "gold_chunks": [{"document": "a"}]}, 'an object without "ordinal"'),
        ({"question": "Who?", "evidence": 5}, '"evidence" is a list'),
        ({"question": "Who?", "evidence": [{"source": "a"}]}, '"evidence" is texts'),
    ],
)
def test_a_wrong_line_is_named_with_what_is_wrong(tmp_path: Path, row: Any, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {"question": "Before?", "gold": ["a"]}, row)
    assert str(caught.value).startswith(f"{tmp_path / 'q.jsonl'}:2: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ids_that_come_twice_are_refused_also_when_one_is_a_line_number(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"q\.jsonl:2: the id '2' is that of line 1 already"):
        load(tmp_path, {"id": "2", "question": "One?"}, {"question": "Two?"})


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.jsonl: No such file"):
        load_questions(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="holds no question"):
        load(tmp_path, "")
    (tmp_path / "latin.jsonl").write_bytes('{"question": "Où?"}'.encode("latin-1"))
    with pytest.raises(UsageError, match=r"latin\.jsonl:1: is not UTF-8 text"):
        load_questions(tmp_path / "latin.jsonl")


def test_a_byte_order_mark_and_windows_line_ends_make_no_difference(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes('\ufeff{"question": "谁?"}\r\n\r\n{"question": "Who\\u0000?"}\r\n'.encode())
    questions, _ = load_questions(file)
    assert [(q.id, q.text) for q in questions] == [("1", "谁?"), ("3", "Who?")]
