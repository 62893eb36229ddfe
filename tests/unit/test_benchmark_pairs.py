from __future__ import annotations

import numpy as np
import pytest

from benchmarks.goals import Goal
from benchmarks.pairs import Side, differing, least_ratio, ratio, turn


def test_whoever_goes_first_alternates_by_question_and_by_pass() -> None:
    assert [turn(("tree", "release"), 1, number)[0] for number in range(4)] == ["release", "tree", "release", "tree"]
    assert [turn(("tree", "release"), pass_, 3) for pass_ in (1, 2)] == [["tree", "release"], ["release", "tree"]]


def test_ratio_is_that_of_the_medians_over_all_questions_and_passes() -> None:
    ours, theirs = Side(ms=[[2, 4], [6, 100]]), Side(ms=[[1, 2], [3, 500]])
    assert ratio(ours, theirs).value == pytest.approx(5 / 2.5)
    assert ours.percentile(50) == 5
    assert ours.percentile(100) == 100


def test_interval_of_the_ratio_is_narrow_where_each_question_is_as_much_slower_however_hard_it_is() -> None:
    hard = np.random.default_rng(3).exponential(10, (60, 1)) + 1
    found = ratio(Side(ms=(1.1 * hard).tolist()), Side(ms=hard.tolist()))
    assert (found.low, found.value, found.high) == pytest.approx((1.1, 1.1, 1.1))

    noise = np.random.default_rng(4).normal(1, 0.1, (2, 60, 3))
    found = ratio(*(Side(ms=(10 * side).tolist()) for side in noise))
    assert 0.9 < found.low < 1 < found.high < 1.1
    assert found == ratio(*(Side(ms=(10 * side).tolist()) for side in noise))  # the same draws every time


def test_ratio_of_least_times_leaves_out_what_came_between() -> None:
    ours, theirs = Side(ms=[[2, 90], [50, 4], [6, 6]]), Side(ms=[[1, 1], [2, 70], [300, 3]])
    assert least_ratio(ours, theirs).value == 2


def test_sides_that_were_asked_different_questions_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="not asked the same"):
        ratio(Side(ms=[[1.0], [2.0]]), Side(ms=[[1.0]]))


def test_a_question_differs_by_ids_or_order_in_any_layer_and_an_empty_layer_is_none() -> None:
    ours = Side(
        rows=[{"chunks": [1, 2]}, {"chunks": [1, 2]}, {"entities": [1], "chunks": [3]}, {"chunks": [], "x": []}]
    )
    theirs = Side(rows=[{"chunks": [1, 2]}, {"chunks": [2, 1]}, {"entities": [2], "chunks": [3]}, {}])
    assert differing(ours, theirs) == 2
    assert differing(ours, ours) == 0


@pytest.mark.parametrize(("figure", "met"), [(1.05, True), (1.0501, False), (None, None)])
def test_goal_is_met_at_its_limit_and_unknown_without_a_figure(figure: float | None, met: bool | None) -> None:
    assert Goal("p50 / release", figure, 1.05).met is met


def test_goal_of_a_least_value() -> None:
    assert Goal("recall", 0.92, 0.92, at_most=False).met is True
    assert Goal("recall", 0.91, 0.92, at_most=False).met is False
