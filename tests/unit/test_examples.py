"""The example corpus is what its README says: kinds, languages, and gold sentences that stand in the documents."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DOCUMENTS = sorted(p for p in (EXAMPLES / "documents").rglob("*") if p.is_file())
QUESTIONS: list[dict[str, Any]] = [
    json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()
]
KINDS = {"single_fact", "aggregation", "multi_hop", "thematic"}
each_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])


def han_share(text: str) -> float:
    """Share of Han characters among the letters of a text."""
    letters = [c for c in text if c.isalpha()]
    return sum("\u4e00" <= c <= "\u9fff" for c in letters) / max(1, len(letters))


def test_corpus_has_enough_documents_of_every_format() -> None:
    formats = Counter(p.suffix for p in DOCUMENTS)
    assert formats.total() >= 12
    assert {".md", ".txt", ".html", ".jsonl"} == set(formats)
    assert all(p.read_text("utf-8").strip() for p in DOCUMENTS)


def test_corpus_and_questions_speak_chinese_too() -> None:
    assert sum(han_share(p.read_text("utf-8")) > 0.5 for p in DOCUMENTS) >= 2
    chinese = [q for q in QUESTIONS if han_share(q["question"]) > 0.5]
    assert len(chinese) >= 2
    assert "single_fact" in {q["kind"] for q in chinese}


def test_json_lines_records_have_id_title_and_text() -> None:
    records = [
        json.loads(line)
        for path in DOCUMENTS
        if path.suffix == ".jsonl"
        for line in path.read_text("utf-8").splitlines()
    ]
    assert len(records) >= 3
    assert len({r["id"] for r in records}) == len(records)
    assert all(r["title"] and len(r["text"]) > 100 for r in records)


def test_every_kind_has_at_least_three_questions() -> None:
    kinds = Counter(q["kind"] for q in QUESTIONS)
    assert set(kinds) == KINDS
    assert min(kinds.values()) >= 3


def test_ids_and_questions_are_unique() -> None:
    assert len({q["id"] for q in QUESTIONS}) == len(QUESTIONS)
    assert len({q["question"] for q in QUESTIONS}) == len(QUESTIONS)


@each_question
def test_question_has_exactly_the_documented_fields(question: dict[str, Any]) -> None:
    assert set(question) == {"id", "question", "kind", "answer", "gold", "why"}
    assert all(question[field].strip() for field in ("id", "question", "answer", "why"))
    assert all(set(gold) == {"document", "text"} for gold in question["gold"])


@each_question
def test_gold_sentence_stands_once_in_its_document_and_nowhere_else(question: dict[str, Any]) -> None:
    for gold in question["gold"]:
        assert gold["text"].strip()
        holders = [p.relative_to(EXAMPLES).as_posix() for p in DOCUMENTS if gold["text"] in p.read_text("utf-8")]
        assert holders == [gold["document"]]
        assert (EXAMPLES / gold["document"]).read_text("utf-8").count(gold["text"]) == 1


@each_question
def test_only_single_facts_rest_on_one_document(question: dict[str, Any]) -> None:
    documents = [gold["document"] for gold in question["gold"]]
    assert len(set(documents)) == len(documents)
    if question["kind"] == "single_fact":
        assert len(documents) == 1
    else:
        assert 2 <= len(documents) <= (3 if question["kind"] == "multi_hop" else 4)
