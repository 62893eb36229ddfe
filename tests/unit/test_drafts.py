"""What a model may write for a drafted question, and what of it is refused, with its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrag.evaluate.drafts import UNREADABLE, Draft, DrawnChunk, loosened, read_draft
from pgrag.evaluate.matching import compact
from pgrag.evaluate.results import Gold, Kind

FERRY = DrawnChunk(
    11, "a.md", 3, ("Ferries",), "The “Brindlewake” ran aground\noff Tessaly Point — in 2017. Nobody was hurt."
)
BOARD = DrawnChunk(12, "b.md", 0, (), "The Port Board fined Hallowmere Marine 2.4 million crowns.")
YARD = DrawnChunk(13, "c.md", 1, (), "Hallowmere Marine was founded in 1974. The Port Board met in 2017.")
ALL = (FERRY, BOARD, YARD)
FINE = {"passage": 2, "text": "The Port Board fined Hallowmere Marine 2.4 million crowns."}
FOUNDED = {"passage": 3, "text": "Hallowmere Marine was founded in 1974."}
GROUND = {"passage": 1, "text": 'The "Brindlewake" ran aground off Tessaly Point - in 2017.'}


def answer(question: str = "Who was fined?", answers: Any = ("Hallowmere Marine",), evidence: Any = (FINE,)) -> str:
    return json.dumps({"question": question, "answers": answers, "evidence": evidence})


def test_evidence_is_spelled_as_in_the_passage() -> None:
    draft = read_draft(
        answer("Where did the Brindlewake run aground?", ["Tessaly  Point"], [GROUND]), Kind.SINGLE_FACT, ALL
    )
    verbatim = "The “Brindlewake” ran aground\noff Tessaly Point — in 2017."
    assert draft == Draft(
        "Where did the Brindlewake run aground?", ("Tessaly Point",), (Gold("a.md", 3, verbatim),), ""
    )


@pytest.mark.parametrize("number", [1, 3, 0, 99, -1, "2", "two", None, 2.0, [2]])
def test_a_wrong_number_does_not_hide_the_passage(number: Any) -> None:
    draft = read_draft(answer(evidence=[{"passage": number, "text": FINE["text"]}]), Kind.SINGLE_FACT, ALL)
    assert (draft.gold, draft.problem) == ((Gold("b.md", 0, BOARD.body),), "")


def test_the_number_decides_where_two_passages_say_the_same() -> None:
    twin = DrawnChunk(14, "d.md", 7, (), BOARD.body)
    for number, document in ((1, "b.md"), (2, "d.md")):
        evidence = [{"passage": number, "text": BOARD.body}]
        assert read_draft(answer(evidence=evidence), Kind.SINGLE_FACT, (BOARD, twin)).gold[0].document == document


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{answer()}\n```",
        f"<think>Who was fined?</think>Here you are: {answer()} Is that good?",
        f"[{answer()}]",
        answer().replace('"answers": ["Hallowmere Marine"]', '"answer": "Hallowmere Marine"'),
        answer(evidence=FINE),
        answer(evidence=FINE["text"]),
    ],
)
def test_answers_of_every_form(text: str) -> None:
    assert read_draft(text, Kind.SINGLE_FACT, ALL) == Draft(
        "Who was fined?", ("Hallowmere Marine",), (Gold("b.md", 0, BOARD.body),)
    )


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("single_fact", "I cannot.", UNREADABLE),
        ("single_fact", '{"question": 7}', UNREADABLE),
        ("single_fact", "", UNREADABLE),
        ("single_fact", answer(" \n"), "no question of the kind in the passages"),
        ("single_fact", answer("Who? " * 200), "question that is too long"),
        ("single_fact", answer("Who was fined in the passage?"), "question that speaks of the text"),
        ("single_fact", answer("According to the document, who was fined?"), "question that speaks of the text"),
        ("single_fact", answer("What do both of these short excerpts say?"), "question that speaks of the text"),
        ("single_fact", answer("Who was fined [2]?"), "question that speaks of the text"),
        ("single_fact", answer("谁被罚款？"), "question in another language than the passages"),
        ("single_fact", answer(answers=[" "]), "question without an answer"),
        ("single_fact", answer(answers=None), "question without an answer"),
        ("single_fact", answer(evidence=[]), "evidence of too few passages"),
        (
            "single_fact",
            answer(evidence=[{"passage": 2, "text": "The Board fined nobody at all."}]),
            "evidence that no passage holds",
        ),
        ("single_fact", answer(evidence=[FINE, {"passage": 2, "text": "Board"}]), "evidence that is no sentence"),
        ("single_fact", answer(evidence=[{"passage": 2, "text": "x" * 100_000}]), "evidence that is no sentence"),
        ("multi_hop", answer(evidence=[FINE]), "evidence of too few passages"),
        ("multi_hop", answer(evidence=[FINE, FINE]), "evidence of too few passages"),
        ("multi_hop", answer(evidence=[FINE, FOUNDED]), ""),
        ("aggregation", answer(evidence=[FINE, FOUNDED]), "evidence of too few passages"),
        ("aggregation", answer(evidence=[FINE, FOUNDED, GROUND]), ""),
        ("thematic", answer(evidence=[GROUND, FOUNDED]), ""),
        ("null", answer(answers=[], evidence=[]), ""),
        ("null", answer(answers=["Nobody"], evidence=[]), "question that the passages answer"),
        ("null", answer(answers=[], evidence=[FINE]), "question that the passages answer"),
        ("null", answer("", [], []), "no question of the kind in the passages"),
        ("single_fact", answer("What is the effect of the textile fine on Port Board documents?"), ""),
    ],
)
def test_what_is_refused(kind: str, text: str, problem: str) -> None:
    assert read_draft(text, Kind(kind), ALL).problem == problem


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ("砚川重工收购了多少股份？", ""),
        ("英文中常用的缩写是什么？", ""),
        ("根据上文，收购了多少股份？", "question that speaks of the text"),
        ("这段文字说了什么？", "question that speaks of the text"),
        ("文中提到的公司是谁？", "question that speaks of the text"),
        ("Who bought the shares?", "question in another language than the passages"),
        ("砚川重工在 PostgreSQL 的 release notes 和 changelog 中写了什么？", ""),
    ],
)
def test_chinese_questions(question: str, problem: str) -> None:
    passage = DrawnChunk(1, "c", 0, (), "2019年3月，砚川重工收购了青崖轴承６０％的股份。")
    draft = read_draft(
        answer(question, ["60%"], [{"passage": 1, "text": "砚川重工收购了青崖轴承60%的股份。"}]),
        Kind.SINGLE_FACT,
        (passage,),
    )
    assert draft.problem == problem
    assert draft.gold == (Gold("c", 0, "砚川重工收购了青崖轴承６０％的股份。"),)


@given(st.text(alphabet="aZéE\u0301ﬁ６ 　\n“-—…İ\u200b가", min_size=20, max_size=60), st.data())
@settings(max_examples=200, deadline=None)
def test_what_is_found_is_found_by_the_evaluation_too(body: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(body) - 1))
    end = data.draw(st.integers(start + 1, len(body)))
    draft = read_draft(
        answer(evidence=[{"passage": 1, "text": body[start:end]}]), Kind.SINGLE_FACT, (DrawnChunk(1, "u", 0, (), body),)
    )
    assert (draft.problem == "") == (len(loosened(body[start:end])) >= 8) == bool(draft.gold)
    for gold in draft.gold:
        assert gold.text in body
        assert compact(gold.text) in compact(body)
