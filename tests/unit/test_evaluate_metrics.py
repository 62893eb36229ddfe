"""Metrics against values worked out by hand, and the table of means and differences."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrag.evaluate import metrics
from pgrag.evaluate.matching import Matches
from pgrag.evaluate.results import Estimate, Kind, Outcome, Question
from pgrag.search.answer import NOTHING_FOUND

RANKS = st.lists(st.none() | st.integers(1, 30), min_size=1, max_size=8)


def found(*ranks: int | None) -> Matches:
    """Gold at these ranks, each of which is relevant."""
    last = max((rank for rank in ranks if rank), default=0)
    return Matches(ranks, tuple(rank in ranks for rank in range(1, last + 1)))


# ---------------------------------------------------------------- passages


def test_of_gold_at_ranks_1_and_4_and_one_not_found() -> None:
    matches = found(4, 1, None)
    assert [metrics.recall(matches, k) for k in (1, 3, 4, 10)] == [1 / 3, 1 / 3, 2 / 3, 2 / 3]
    assert metrics.all_gold(matches, 10) == 0.0
    assert [metrics.all_gold(found(4, 1), k) for k in (3, 4)] == [0.0, 1.0]
    assert metrics.reciprocal_rank(matches) == 1.0
    assert metrics.ndcg(matches) == pytest.approx((1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3) + 0.5))
    assert metrics.context_precision(matches) == pytest.approx((1 / 1 + 2 / 4) / 2)


def test_nothing_found_is_0_in_every_metric() -> None:
    matches = Matches((None, None), (False, False, False))
    values = [metrics.recall(matches, 5), metrics.all_gold(matches, 5), metrics.reciprocal_rank(matches)]
    assert [*values, metrics.ndcg(matches), metrics.context_precision(matches)] == [0.0] * 5


def test_ndcg_looks_at_ten_ranks_and_at_no_more_gold() -> None:
    assert metrics.ndcg(found(11)) == 0.0
    assert metrics.ndcg(found(10)) == pytest.approx(1 / math.log2(11))
    assert metrics.ndcg(found(*range(1, 13))) == pytest.approx(1.0)


def test_gold_found_in_one_passage_is_one_gain() -> None:
    assert metrics.ndcg(found(1, 1)) == 1.0
    assert metrics.ndcg(found(2, 2)) == pytest.approx(1 / math.log2(3))
    assert metrics.ndcg(found(1, 1, None)) == pytest.approx(1 / (1 + 1 / math.log2(3)))


def test_precision_counts_passages_that_repeat_gold() -> None:
    assert metrics.context_precision(Matches((2,), (False, True, True))) == pytest.approx((1 / 2 + 2 / 3) / 2)


@given(RANKS, st.integers(1, 30), st.randoms(use_true_random=False))
def test_metrics_are_shares_that_no_order_of_gold_changes(ranks: list[int | None], k: int, random: object) -> None:
    shuffled = list(ranks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for measure in (
        lambda m: metrics.recall(m, k),
        lambda m: metrics.all_gold(m, k),
        metrics.reciprocal_rank,
        metrics.ndcg,
        metrics.context_precision,
    ):
        value = measure(found(*ranks))
        assert 0 <= value <= 1 + 1e-12
        assert value == pytest.approx(measure(found(*shuffled)))
    assert metrics.recall(found(*ranks), k) <= metrics.recall(found(*ranks), k + 1)
    assert metrics.all_gold(found(*ranks), k) <= metrics.recall(found(*ranks), k)


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("answer", "right", "exact", "f1"),
    [
        ("The Mosel!", ["mosel"], 1, 1),
        ("the Mosel [1][2].", ["A Mosel"], 1, 1),
        ("Ｍｏｓｅｌ", ["Mosel"], 1, 1),
        ("well-known", ["well known"], 0, 0),
        ("It is the Mosel", ["Mosel"], 0, 2 * 1 / (3 + 1)),
        ("Mosel Mosel", ["Mosel"], 0, 2 * 1 / (2 + 1)),
        ("Rhine", ["Mosel", "the Rhine river"], 0, 2 * 1 / (1 + 2)),
        ("Rhine", ["Mosel", "Rhine"], 1, 1),
        ("Mosel and Rhine", ["Rhine and Mosel"], 0, 1),
        ("1,350 crowns", ["1350 crowns"], 1, 1),
        ("yes", ["Yes."], 1, 1),
        ("yes, it is", ["yes"], 0, 0),
        ("no", ["yes"], 0, 0),
        ("", ["Mosel"], 0, 0),
        ("the", ["a"], 1, 1),
        ("下午四点半。", ["下午四点半"], 1, 1),
        ("每天下午四点半", ["下午四点半"], 0, 2 * 5 / (7 + 5)),
        ("4月22日", ["４月22日停电"], 0, 2 * 4 / (4 + 6)),
        ("用GPT模型", ["gpt 模型"], 0, 2 * 3 / (4 + 3)),
    ],
)
def test_exact_match_and_f1(answer: str, right: list[str], exact: float, f1: float) -> None:
    assert metrics.exact_match(answer, right) == exact
    assert metrics.f1(answer, right) == pytest.approx(f1)


@given(st.text(max_size=30), st.text(max_size=30))
def test_f1_is_a_share_that_is_1_for_equal_answers(one: str, other: str) -> None:
    assert metrics.f1(one, [one]) == metrics.exact_match(one, [one]) == 1.0
    assert 0 <= metrics.f1(one, [other]) <= 1
    assert metrics.f1(one, [other]) == pytest.approx(metrics.f1(other, [one]))
    assert metrics.exact_match(one, [other]) <= metrics.f1(one, [other])


@pytest.mark.parametrize(
    "answer",
    [
        NOTHING_FOUND,
        "The sources do not say who founded the mill. They name its owner [1].",
        "The provided passages don’t contain any information about the price.",
        "There is no information about the founder in the sources [2].",
        "Insufficient information.",
        "I cannot answer this from the sources.",
        "The year is not mentioned in the sources.",
        "I do not know.",
        "The sources hold no answer: the founder is missing.",
        "资料中没有提到磨坊的创始人。",
        "资料没有说明截单时间。",
        "根据现有资料，无法确定创始人是谁。",
        "未找到相关内容。",
        "所给资料并未提供该信息。",
        "信息不足。",
    ],
)
def test_answers_that_say_that_nothing_was_found(answer: str) -> None:
    assert metrics.is_refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "The mill was founded by Ada Quist [1].",
        "Ada Quist founded it [1]. The sources do not say when.",
        "No. The mill is older than the forge.",
        "The mill does not grind rye.",
        "The forge was closed in 1920 [2].",
        "磨坊的创始人是王五[1]。资料没有说明年份。",
        "不是，磨坊更早。",
        "每天下午四点半。",
    ],
)
def test_answers_that_answer(answer: str) -> None:
    assert not metrics.is_refusal(answer)


# ---------------------------------------------------------------- means and intervals


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = np.random.default_rng(7).normal(3.0, 2.0, 400)
    found = metrics.bootstrap(values)
    error = 1.96 * values.std() / math.sqrt(400)
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - error, abs=0.02)
    assert found.high == pytest.approx(values.mean() + error, abs=0.02)
    assert found.n == 400


def test_the_bootstrap_of_zeros_and_ones_has_the_quantiles_of_the_binomial() -> None:
    found = metrics.bootstrap([1.0] * 5 + [0.0] * 5)  # 10 draws of p = 1/2: 2 to 8 hold 97.9 %, 3 to 7 only 89.1 %
    assert (found.mean, found.low, found.high) == (0.5, pytest.approx(0.2), pytest.approx(0.8))


def test_few_values() -> None:
    assert metrics.bootstrap([0.25]) == Estimate(0.25, 0.25, 0.25, 1)
    assert metrics.bootstrap([0.5, 0.5]) == Estimate(0.5, 0.5, 0.5, 2)
    with pytest.raises(ValueError, match="no values"):
        metrics.bootstrap([])
    assert metrics.estimates([]) == []


def test_columns_are_estimated_as_each_by_itself() -> None:
    random = np.random.default_rng(3)
    columns = [random.random(n) for n in (40, 7, 40, 1, 7)]
    for found, column in zip(metrics.estimates(columns), columns, strict=True):
        alone = metrics.bootstrap(column)
        assert (found.n, found.mean, found.low, found.high) == (
            alone.n,
            pytest.approx(alone.mean),
            pytest.approx(alone.low),
            pytest.approx(alone.high),
        )


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_an_interval_lies_within_the_values(values: list[float]) -> None:
    found = metrics.bootstrap(values, resamples=200)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9


def test_of_a_difference_that_is_always_the_same_sign_0_is_left_out() -> None:
    assert metrics.bootstrap([0.1, 0.2, 0.3, 0.1, 0.2, 0.3]).significant
    assert not metrics.bootstrap([0.1, -0.2, 0.3, -0.1, 0.2, -0.3]).significant


def test_five_differences_of_one_sign_can_be_chance() -> None:
    five = metrics.bootstrap([0.1, 0.2, 0.3, 0.1, 0.2])
    assert five.low > 0
    assert not five.significant


# ---------------------------------------------------------------- the table

QUESTIONS = [
    Question("1", "?", kind="multi_hop"),
    Question("2", "?", kind="multi_hop"),
    Question("3", "?", kind=Kind.NULL),
    Question("4", "?", kind="odd"),
]


def outcome(question: str, variant: str, recall: float | None = None, **more: object) -> Outcome:
    shares = None if recall is None else {2: recall, 5: recall}
    return Outcome(question, variant, recall=shares, **more)  # type: ignore[arg-type]


def test_rows_by_variant_and_kind_with_paired_differences() -> None:
    outcomes = [
        outcome("1", "naive", 0.0, seconds={"search": 0.5, "answer": 1.0}),
        outcome("1", "mix", 0.5),
        outcome("2", "naive", 0.5),
        outcome("2", "mix", 1.0),
        outcome("3", "naive", exact_match=0.0),
        outcome("3", "mix", exact_match=1.0),
        outcome("4", "naive", 1.0),
        outcome("4", "mix", error="it broke", cost=None),
    ]
    rows = metrics.summarise(outcomes, QUESTIONS, "naive", (5,))
    assert [(row.kind, row.variant, row.questions, row.errors) for row in rows] == [
        ("", "naive", 4, 0), ("", "mix", 4, 1), ("multi_hop", "naive", 2, 0), ("multi_hop", "mix", 2, 0),
        ("null", "naive", 1, 0), ("null", "mix", 1, 0), ("odd", "naive", 1, 0), ("odd", "mix", 1, 1),
    ]  # fmt: skip
    naive, mix, hops, null, odd = rows[0], rows[1], rows[3], rows[5], rows[7]
    assert naive.metrics["recall@5"].mean == pytest.approx(0.5)
    assert naive.metrics["recall@5"].n == 3
    assert naive.metrics["seconds"] == Estimate(1.5, 1.5, 1.5, 1)
    assert naive.metrics["seconds_answer"] == Estimate(1.0, 1.0, 1.0, 1)
    assert naive.gains == {}
    assert mix.metrics["recall@5"].mean == pytest.approx(0.75)
    assert mix.gains["recall@5"] == Estimate(0.5, 0.5, 0.5, 2)  # question 4 failed: not compared
    assert "recall@2" not in mix.metrics
    assert "exact_match" not in mix.gains  # of one question: no interval
    assert hops.metrics["recall@5"] == mix.metrics["recall@5"]
    assert null.metrics["exact_match"] == Estimate(1.0, 1.0, 1.0, 1)
    assert "recall@5" not in null.metrics
    assert (odd.metrics, odd.gains) == ({}, {})


def test_a_cost_that_is_not_known_is_in_no_mean() -> None:
    outcomes = [outcome("1", "mix", cost=Decimal("0.02")), outcome("2", "mix", cost=None)]
    [row, _] = metrics.summarise(outcomes, QUESTIONS[:2], "naive")
    assert row.metrics["cost"] == Estimate(0.02, 0.02, 0.02, 1)
    assert row.metrics["llm_tokens"].n == 2
    assert row.gains == {}


def test_kinds_are_ordered_ours_first() -> None:
    questions = [Question(str(n), "?", kind=kind) for n, kind in enumerate(["zeta", "null", "", "single_fact", "beta"])]
    assert metrics.kinds_of(questions) == ["single_fact", "null", "beta", "zeta"]
    assert metrics.summarise([], questions, "naive") == ()
