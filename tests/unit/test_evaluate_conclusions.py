"""What is concluded from an evaluation: the best variant, whether that is more than chance, how many more to ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pgrag.evaluate import metrics
from pgrag.evaluate.conclusions import Comparison, conclusions, in_words, sentence
from pgrag.evaluate.export import to_json
from pgrag.evaluate.results import Estimate, EvaluationReport, Outcome, Question, Verdict

FIRST = "best by recall@5 (share of the needed passages among the first 5):"


def report(
    recalls: Mapping[str, Sequence[float]], *, kind: str = "multi_hop", ndcg: Mapping[str, float] | None = None
) -> EvaluationReport:
    """Questions of one kind, with the recall at 5 of each for each variant; the first variant is the baseline."""
    asked = len(next(iter(recalls.values())))
    questions = tuple(Question(str(n), "?", kind=kind) for n in range(asked))
    outcomes = tuple(
        Outcome(
            str(n),
            variant,
            recall={5: values[n]},
            ndcg=(ndcg or {}).get(variant),
            context_tokens=1000,
            seconds={"search": 0.02},
        )
        for n in range(asked)
        for variant, values in recalls.items()
    )
    baseline = next(iter(recalls))
    rows = metrics.summarise(outcomes, questions, baseline, (5,))
    return EvaluationReport("set", "now", {}, questions, baseline, (5,), rows, outcomes)


def test_a_variant_that_is_better_beyond_chance_is_said_to_be() -> None:
    found = report({"naive": [0.0, 0.5] * 6, "mix": [0.5, 1.0] * 5 + [0.0, 0.5]})
    [one] = conclusions(found)
    [naive] = one.others
    assert (one.kind, one.metric, one.best, one.questions) == ("multi_hop", "recall@5", "mix", 12)
    assert (naive.better, naive.worse, naive.told, naive.needed) == (10, 0, True, None)
    gain = next(row for row in found.rows if row.variant == "mix" and row.kind == "").gains["recall@5"]
    assert naive.difference == gain, "as in the table"
    assert in_words(found) == [
        FIRST,
        "  multi hop: mix .667 is better than naive .250 (+.417 [.292, .500]; more on 10 of 12 questions, less on 0)",
        "a question takes mix 1,000 tokens and 20 ms, naive 1,000 tokens and 20 ms",
    ]


def test_a_difference_that_may_be_chance_tells_how_many_questions_it_would_take() -> None:
    [one] = conclusions(report({"naive": [0.0] * 15 + [1.0], "mix": [1.0] * 2 + [0.0] * 14}))
    [naive] = one.others
    assert (naive.better, naive.worse, naive.told) == (2, 1, False)
    # (1.96 + .84)² · s² / d², with the s of the differences and d = 1/16
    assert naive.needed == pytest.approx(7.84 * (3 / 16 - 1 / 256) * 16 / 15 * 256, abs=1)
    assert sentence(one) == (
        "multi hop: mix .125 is not told apart from naive .062 (more on 2 of 16 questions, less on 1; about 400 "
        "questions would tell)"
    )


def test_five_questions_tell_nothing_however_they_turn_out() -> None:
    [one] = conclusions(report({"naive": [0.0] * 5, "mix": [1.0] * 5}))
    assert (one.others[0].told, one.others[0].needed) == (False, 6)
    [one] = conclusions(report({"naive": [0.0] * 6, "mix": [1.0] * 6}))
    assert one.others[0].told


def test_few_questions_that_differ_among_many_tell_nothing() -> None:
    found = report({"naive": [0.0] * 200, "mix": [1.0] * 5 + [0.0] * 195})
    [other] = conclusions(found)[0].others
    assert other.difference.significant, "its interval leaves out 0"
    assert not other.told
    assert other.needed is not None
    assert other.needed > 200


def test_of_equal_variants_the_baseline_is_named_then_the_better_ranked() -> None:
    same = report({"naive": [0.5, 1.0], "local": [0.5, 1.0], "mix": [0.5, 1.0]}, ndcg={"mix": 0.9})
    assert in_words(same) == [
        FIRST,
        "  multi hop: naive .750 is the same on every question as local, mix (2 questions)",
    ]
    better = report({"naive": [0.0, 0.0], "local": [0.5, 1.0], "mix": [0.5, 1.0]}, ndcg={"local": 0.8, "mix": 0.9})
    assert conclusions(better)[0].best == "mix"
    crossed = report({"naive": [1.0, 0.0], "mix": [0.0, 1.0]})
    assert in_words(crossed)[1:] == [
        "  multi hop: naive .500 is not told apart from mix .500 (more on 1 of 2 questions, less on 1)"
    ]


def test_a_baseline_that_is_best_is_named_with_the_same_interval_turned_round() -> None:
    found = report({"naive": [1.0] * 8, "mix": [0.0] * 6 + [1.0] * 2})
    [other] = conclusions(found)[0].others
    gain = found.rows[1].gains["recall@5"]
    assert (other.difference.low, other.difference.high) == (-gain.high, -gain.low)
    assert in_words(found)[1] == (
        "  multi hop: naive 1.000 is better than mix .250 (+.750 [.375, 1.000]; more on 6 of 8 questions, less on 0)"
    )


def test_variants_too_many_to_name_are_counted() -> None:
    names = [f"mix chunk_ranking=vector hops={n}" for n in range(1, 6)]
    found = report({"naive": [0.0] * 8, **{name: [1.0] * 8 for name in names}})
    lines = in_words(found)
    assert lines[1] == (
        f"  multi hop: {names[0]} 1.000 is better than naive .000 (+1.000 [1.000, 1.000]; more on 8 of 8 questions, "
        f"less on 0); it is the same on every question as {names[1]} and 3 more"
    )
    many = report({"naive": [0.0] * 8, **{f"{n}": [1.0] * 8 for n in range(10)}})
    assert in_words(many)[-1].startswith("10 comparisons were made")


def test_answers_are_concluded_apart_from_passages() -> None:
    questions = (Question("1", "?", kind="single_fact"), Question("2", "?", kind="null"))
    outcomes = (
        Outcome("1", "mix", recall={5: 1.0}, answer="a", exact_match=0.0, f1=0.5),
        Outcome("2", "mix", answer="a", exact_match=1.0),
    )
    rows = metrics.summarise(outcomes, questions, "mix", (5,))
    found = EvaluationReport("set", "now", {}, questions, "mix", (5,), rows, outcomes)
    assert in_words(found) == [
        FIRST,
        "  single fact: mix 1.000 on 1 question",
        "  all questions: mix 1.000 on 1 question",
        "best by F1 of the answers (words shared with a right one):",
        "  single fact: mix .500 on 1 question",
        "  null (answers that say so): mix 1.000 on 1 question",
        "  all questions: mix .500 on 1 question",
    ]


def test_questions_that_failed_cannot_turn_the_sign() -> None:
    outcomes = [Outcome(str(n), "naive", recall={5: 0.2 if n < 8 else 0.0}) for n in range(20)]
    outcomes += [
        Outcome(str(n), "mix", recall={5: 0.1}) if n < 8 else Outcome(str(n), "mix", error="no") for n in range(20)
    ]
    questions = tuple(Question(str(n), "?") for n in range(20))
    rows = metrics.summarise(outcomes, questions, "naive", (5,))
    [one] = conclusions(EvaluationReport("set", "now", {}, questions, "naive", (5,), rows, tuple(outcomes)))
    assert one.best == "mix", "by its mean over what it answered"
    assert one.others[0].worse == 8
    assert not one.others[0].told
    assert "is not told apart from naive" in sentence(one)


@pytest.mark.parametrize(
    ("questions", "first", "second", "said"),
    [
        (40, 0.25, 0.625, "mix on .625 of 40 answers, naive on .250: more than chance"),  # 25 to 10: p = .02
        (40, 0.35, 0.55, "mix on .550 of 40 answers, naive on .350: no more than chance"),  # 22 to 14: p = .24
        (6, 1.0, 0.0, "naive on 1.000 of 6 answers, mix on .000: more than chance"),
        (5, 1.0, 0.0, "naive on 1.000 of 5 answers, mix on .000: no more than chance"),
        (9, 0.0, 0.0, "neither naive nor mix (9 answers)"),
    ],
)
def test_what_the_judge_prefers_is_said_with_how_sure_that_is(
    questions: int, first: float, second: float, said: str
) -> None:
    whole = replace(
        report({"naive": [0.5], "mix": [0.5]}),
        verdicts=tuple(
            Verdict("naive", "mix", criterion, kind, questions, first, second, 1 - first - second)
            for kind in ("", "multi_hop")
            for criterion in ("diversity", "overall")
        ),
    )
    [line] = [line for line in in_words(whole) if "judge" in line]
    assert line.startswith("the judge prefers ")
    assert line.endswith(said)


def test_nothing_measured_is_nothing_concluded() -> None:
    questions = (Question("1", "?"),)
    outcomes = (Outcome("1", "naive"),)
    rows = metrics.summarise(outcomes, questions, "naive", (5,))
    assert in_words(EvaluationReport("set", "now", {}, questions, "naive", (5,), rows, outcomes)) == []


def test_more_questions_than_anybody_asks_are_not_counted() -> None:
    other = Comparison("mix", 0.5, Estimate(0.0001, -0.1, 0.1, 50), 0.4, 10, 9)
    assert other.needed is not None
    assert other.needed > 10_000
    one = conclusions(report({"naive": [0.5], "mix": [0.5]}))[0]
    assert sentence(type(one)("", "recall@5", 50, "naive", 0.5, (other,))).endswith(
        "; more than 10,000 questions would tell)"
    )


def test_the_json_form_has_them() -> None:
    [one] = to_json(report({"naive": [0.0] * 6, "mix": [1.0] * 6}))["conclusions"]
    assert (one["best"], one["mean"], one["questions"]) == ("mix", 1.0, 6)
    assert one["others"] == [
        {"variant": "naive", "mean": 0.0, "difference": {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 6},
         "deviation": 0.0, "better": 6, "worse": 0, "told": True, "needed": None}
    ]  # fmt: skip
    assert one["text"].startswith("multi hop: mix 1.000 is better than naive .000")
