"""Evaluation sets in the layouts of BEIR, HippoRAG and JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgrag.errors import UsageError
from pgrag.evaluate.layouts import EvaluationSet, load_layout
from pgrag.evaluate.results import Gold, Question
from pgrag.types import Document

MILL = "The mill at Ostrand grinds rye."
FORGE = "The forge at Ostrand makes hinges."
CORPUS = [{"title": "Mill", "text": MILL}]


def lines(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", "utf-8")


def qrels(directory: Path, split: str, *rows: str) -> None:
    path = directory / "qrels" / f"{split}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n", "utf-8")


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    directory = tmp_path / "trades"
    lines(
        directory / "corpus.jsonl",
        {"_id": "d1", "title": "Mill", "text": MILL, "metadata": {}},
        {"_id": "d2", "title": "Forge", "text": ""},
        {"_id": "d3", "title": "", "text": " "},
        {"_id": 4, "title": "", "text": FORGE},
    )
    lines(
        directory / "queries.jsonl",
        {"_id": "q1", "text": "What is ground?", "metadata": {}},
        {"_id": "q2", "text": "What is made?"},
        {"_id": "q3", "text": "What is sold?"},
        {"_id": "q4", "text": "What is bought?"},
    )
    return directory


# ---------------------------------------------------------------- BEIR


def test_beir_takes_scores_above_zero_of_the_test_split(beir: Path) -> None:
    qrels(beir, "train", "q4\td1\t1")
    qrels(beir, "test", "q1\td1\t2", "q1\td2\t0", "q2\t4\t1", "q2\td1\t1", "q2\t4\t1")
    found = load_layout(beir)
    assert found == EvaluationSet(
        "trades",
        (Document("d1", MILL, "Mill"), Document("d2", "Forge", "Forge"), Document("4", FORGE)),
        (
            Question("q1", "What is ground?", (Gold("d1"),)),
            Question("q2", "What is made?", (Gold("4"), Gold("d1"))),
        ),
        ("1 passage left out: no text",),
    )


def test_beir_counts_what_it_leaves_out(beir: Path) -> None:
    qrels(beir, "test", "q1\td1\t1", "q2\td1\t0", "q3\td9\t1", "q7\td1\t1")
    found = load_layout(beir)
    assert [question.id for question in found.questions] == ["q1"]
    assert found.warnings == (
        "1 passage left out: no text",
        "1 judged query left out: no text in queries.jsonl (first: q7)",
        "1 query left out: no passage has a score above 0",
        "1 question left out: not all passages needed are in the corpus",
    )


def test_beir_splits(beir: Path) -> None:
    qrels(beir, "dev", "q4\td1\t1")
    assert [q.id for q in load_layout(beir).questions] == ["q4"]
    qrels(beir, "train", "q1\td1\t1")
    assert [q.id for q in load_layout(beir, split="train").questions] == ["q1"]
    with pytest.raises(UsageError, match=r"has no qrels/test\.tsv; splits there: dev, train"):
        load_layout(beir)


@pytest.mark.parametrize("row", ["q1 d1 1", "q1\td1\thigh", "q1\t0\td1\t1"])
def test_beir_judgements_that_are_none(beir: Path, row: str) -> None:
    qrels(beir, "test", "q1\td1\t1", row)
    with pytest.raises(UsageError, match=r"test\.tsv:3: a line is query-id, corpus-id and score, by tabs"):
        load_layout(beir)


def test_beir_judgements_may_lack_the_line_with_names(beir: Path) -> None:
    (beir / "qrels").mkdir()
    (beir / "qrels" / "test.tsv").write_text('q1\td1\t1\n"q2"\td1\t1\n')
    assert [q.id for q in load_layout(beir).questions] == ["q1"]


# ---------------------------------------------------------------- JSON lines


def test_json_lines_with_missing_evidence_and_a_pool(tmp_path: Path) -> None:
    lines(
        tmp_path / "corpus.jsonl",
        {"id": "a", "title": "Mill", "text": MILL},
        {"id": "b", "title": "Forge", "text": FORGE},
    )
    lines(
        tmp_path / "questions.jsonl",
        {"id": "1", "question": "What is ground?", "gold_ids": ["a"], "answers": ["rye"], "type": "single_fact"},
        {"id": "2", "question": "What is made?", "gold_ids": ["b"], "missing_evidence": 0},
        {"id": "3", "question": "What is lost?", "gold_ids": ["a"], "missing_evidence": 2},
        {"id": "4", "question": "What is new?", "gold_ids": [], "type": "null"},
        {"id": "5", "question": "What is it about?", "gold_ids": [], "evidence": "Rye."},
    )
    whole = load_layout(tmp_path)
    assert [(q.id, q.gold) for q in whole.questions] == [
        ("1", (Gold("a"),)),
        ("2", (Gold("b"),)),
        ("4", ()),
        ("5", ()),
    ]
    assert whole.questions[0].answers == ("rye",)
    assert whole.warnings == (
        "1 question left out: missing_evidence",
        "1 of 4 questions without gold (first: 5): for answers only",
    )


def test_a_corpus_has_each_id_once(tmp_path: Path) -> None:
    lines(tmp_path / "questions.jsonl", {"question": "Who?", "gold_ids": ["a"]})
    lines(tmp_path / "corpus.jsonl", {"id": "a", "text": MILL}, {"id": "a", "text": FORGE})
    with pytest.raises(UsageError, match=r"corpus\.jsonl:2: the id 'a' is that of another passage already"):
        load_layout(tmp_path)
    lines(tmp_path / "corpus.jsonl", {"text": MILL})
    with pytest.raises(UsageError, match=r'corpus\.jsonl:1: there is no "id"'):
        load_layout(tmp_path)


# ---------------------------------------------------------------- HippoRAG


def hippo(directory: Path, corpus: Any, *rows: Any, name: str = "trades") -> EvaluationSet:
    (directory / f"{name}_corpus.json").write_text(json.dumps(corpus), "utf-8")
    (directory / f"{name}.json").write_text(json.dumps(rows), "utf-8")
    return load_layout(directory, name=name)


def test_paragraphs_are_matched_by_title_and_text(tmp_path: Path) -> None:
    corpus = [
        {"title": "Ostrand", "text": MILL, "idx": 0},
        {"title": "Ostrand", "text": FORGE, "idx": 1},
        {"title": "Ostrand", "text": FORGE, "idx": 2},
        {"title": "Rye", "text": "Rye is a grain.", "idx": 3},
    ]
    paragraphs = [
        {"title": "Ostrand", "paragraph_text": FORGE.replace(" ", "  "), "is_supporting": True},
        {"title": "Rye", "paragraph_text": "Rye is a grain, edited since.", "is_supporting": True},
        {"title": "Ostrand", "paragraph_text": MILL, "is_supporting": False},
    ]
    found = hippo(
        tmp_path,
        corpus,
        {
            "id": "2hop__1",
            "question": "Which?",
            "answer": "hinges",
            "answer_aliases": ["a hinge"],
            "paragraphs": paragraphs,
        },
        {"id": "u", "question": "Unknown?", "answer": "no", "answerable": False, "paragraphs": paragraphs},
        {"id": "x", "question": "Lost?", "answer": "x", "paragraphs": [{"title": "Ostrand", "text": "Other."}]},
    )
    assert [(d.uri, d.title, d.body) for d in found.documents] == [
        ("trades-00000", "Ostrand", MILL),
        ("trades-00001", "Ostrand", FORGE),
        ("trades-00002", "Rye", "Rye is a grain."),
    ]
    assert found.questions == (
        Question("2hop__1", "Which?", (Gold("trades-00001"), Gold("trades-00002")), ("hinges", "a hinge")),
        Question("u", "Unknown?", (), ("no",), "null"),
    )
    assert found.warnings == ("1 question left out: not all passages needed are in the corpus",)


def test_supporting_facts_of_hotpotqa_over_a_corpus_of_sentences(tmp_path: Path) -> None:
    corpus = {"Mill": [MILL, " It is old."], "Forge": [FORGE], "Rye": ["Rye is", "a grain."]}
    found = hippo(
        tmp_path, corpus,
        {
            "_id": "h1", "question": "Which is older?", "answer": "yes", "type": "comparison",
            "supporting_facts": [["Mill", 0], ["Mill", 1], ["Forge", 0]],
            "context": [["Mill", [MILL, " It is old."]], ["Rye", ["Rye is", "a grain."]], ["Forge", [FORGE]]],
        },
        {
            "_id": "h2", "question": "Which is a grain?", "answer": ["rye"],
            "supporting_facts": {"title": ["Rye"], "sent_id": [0]},
            "context": {"title": ["Rye"], "sentences": [["Rye is", "a grain."]]},
        },
    )  # fmt: skip
    assert [document.body for document in found.documents] == [f"{MILL} It is old.", FORGE, "Rye is a grain."]
    assert found.questions == (
        Question("h1", "Which is older?", (Gold("trades-00000"), Gold("trades-00001")), ("yes",), "comparison"),
        Question("h2", "Which is a grain?", (Gold("trades-00002"),), ("rye",)),
    )


def test_one_of_several_sets_is_named(tmp_path: Path) -> None:
    row = {"question": "What?", "answer": "rye", "paragraphs": [{"title": "Mill", "text": MILL}]}
    for name in ("a", "b"):
        assert hippo(tmp_path, [{"title": "Mill", "text": MILL}], row, name=name).name == name
    with pytest.raises(UsageError, match="holds several sets, name one: a, b"):
        load_layout(tmp_path)
    with pytest.raises(UsageError, match=r"has no c\.json with c_corpus\.json; it has: a, b"):
        load_layout(tmp_path, name="c")


@pytest.mark.parametrize(
    ("corpus", "row", "problem"),
    [
        ("x", {}, "is neither a list of passages nor an object"),
        ([{"title": "Mill"}], {}, "passage 1: has no text"),
        (CORPUS, 5, "question 1: is no object"),
        (CORPUS, {"id": "1"}, 'question 1: there is no "question"'),
        (CORPUS, {"question": "?", "paragraphs": {}}, '"paragraphs" is no list'),
        (CORPUS, {"question": "?", "supporting_facts": [["Mill", 0]]}, '"context" is no list'),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, corpus: Any, row: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        hippo(tmp_path, corpus, row)


def test_a_directory_that_is_no_set_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no evaluation set: it needs corpus\.jsonl with questions\.jsonl, or"):
        load_layout(tmp_path)
    with pytest.raises(UsageError, match="is no directory"):
        load_layout(tmp_path / "none")
