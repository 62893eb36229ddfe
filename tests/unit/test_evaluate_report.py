"""The report of an evaluation: JSON, numbers as written, plots, and the page with hostile text in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pgrag.evaluate import page
from pgrag.evaluate.export import to_json
from pgrag.evaluate.page import to_html
from pgrag.evaluate.plots import Interval, Scale, Series, curves, escaped, forest, scatter, spread
from pgrag.evaluate.presentation import (
    Metric,
    count,
    dollars,
    gained,
    gold_text,
    headline_k,
    kinds,
    metrics_of,
    milliseconds,
    share,
)
from pgrag.evaluate.results import Estimate, EvaluationReport, Gold, Outcome, Question, Row, Verdict

HOSTILE = '<script>alert("1")</script>&\'\x00\u202e\ud800'
NAMESPACES = {"h": "http://www.w3.org/1999/xhtml", "s": "http://www.w3.org/2000/svg"}
KS = (2, 5, 10)


def estimate(mean: float, side: float = 0.05, n: int = 20) -> Estimate:
    return Estimate(mean, mean - side, mean + side, n)


def row(variant: str, kind: str, recall: float, gain: Estimate | None = None, **more: Estimate) -> Row:
    metrics = {f"recall@{k}": estimate(recall + (k - 5) / 100) for k in KS}
    metrics |= {f"all_gold@{k}": estimate(recall / 2) for k in KS} | {"mrr": estimate(0.5), **more}
    return Row(variant, kind, 20, 0, metrics, {} if gain is None else {"recall@5": gain})


def report(**changes: Any) -> EvaluationReport:
    questions = (
        Question(
            "q1", "Who keeps the lamp?", (Gold("docs/lamp.md", 3, "Ingrid keeps it."),), ("Ingrid",), "single_fact"
        ),
        Question("q2", HOSTILE, (Gold(text="王小明在上海工作"), Gold("b.md")), (), "multi_hop"),
        Question("q3", "What is the price?", (), (), "null"),
    )
    whole, none = dict.fromkeys(KS, 1.0), dict.fromkeys(KS, 0.0)
    outcomes = (
        Outcome("q1", "naive", ("file:///srv/docs/lamp.md:3",), (1,), whole, whole, 0.25, 1.0, 1.0,
                "Ingrid.", 1.0, 0.5, 812, 90, Decimal("0.0012"), {"search": 0.004}),
        Outcome("q1", "mix", error="ModelError: no answer"),
        Outcome("q2", "naive", ("a.md:0", HOSTILE), (None, None), none, none, 0.0, 0.0, 0.0),
        Outcome("q2", "mix", ("b.md:0",), (7, 1), {2: 0.5, 5: 0.5, 10: 0.5}, none, 1.0, 0.5, 0.5),
        Outcome("q3", "naive", ("a.md:0",), answer="Nothing was found.", exact_match=1.0),
    )  # fmt: skip
    values: dict[str, Any] = {
        "name": "harbour", "created_at": "2026-01-02T03:04:05+00:00",
        "settings": {"embedding_model": "words", "query": {"top_k": 40}, "modes": ("naive", "mix"), "none": None},
        "questions": questions, "baseline": "naive", "ks": KS,
        "rows": (
            row("naive", "", 0.613, seconds=estimate(0.004, 0.001)),
            row("mix", "", 0.752, Estimate(0.139, 0.101, 0.182, 20), seconds=estimate(0.009, 0.001)),
            row("naive", "multi_hop", 0.4),
            row("mix", "multi_hop", 0.6, Estimate(0.2, 0.1, 0.3, 9)),
            row("naive", "single_fact", 0.9),
            row("mix", "single_fact", 0.88, Estimate(-0.02, -0.06, 0.02, 9)),
            Row("naive", "null", 1, 0, {"exact_match": Estimate(1.0, 1.0, 1.0, 1)}),
        ),
        "outcomes": outcomes, "verdicts": (), "warnings": ("1 question left out: no text",),
    }  # fmt: skip
    return EvaluationReport(**{**values, **changes})


def parsed(found: EvaluationReport) -> ElementTree.Element:
    """The page, which is XML: whatever does not parse was not escaped or not closed."""
    text = to_html(found)
    text.encode("utf-8")
    return ElementTree.fromstring(text)  # noqa: S314 - our own page, without entities


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


# ---------------------------------------------------------------- JSON


def test_the_json_form_says_everything_and_is_plain_json() -> None:
    document = to_json(report(verdicts=(Verdict("naive", "mix", "diversity", "", 3, 0.25, 0.5, 0.25),)))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["format"], document["name"], document["ks"]) == (1, "harbour", [2, 5, 10])
    assert document["variants"] == ["naive", "mix"]
    overall = document["rows"][1]
    assert overall["metrics"]["recall@5"] == {"mean": 0.752, "low": 0.702, "high": 0.802, "n": 20}
    assert overall["gains"]["recall@5"] == {"mean": 0.139, "low": 0.101, "high": 0.182, "n": 20, "significant": True}
    assert document["rows"][5]["gains"]["recall@5"]["significant"] is False
    first = document["outcomes"][0]
    assert (first["recall"], first["cost"], first["seconds"]) == ({"2": 1, "5": 1, "10": 1}, 0.0012, {"search": 0.004})
    assert document["questions"][0]["gold"] == [{"document": "docs/lamp.md", "ordinal": 3, "text": "Ingrid keeps it."}]
    assert document["settings"]["modes"] == ["naive", "mix"]
    assert document["verdicts"][0]["second_wins"] == 0.5
    assert document["warnings"] == ["1 question left out: no text"]
    assert first["ranks"] == [1]
    last = document["conclusions"][-1]
    assert (last["kind"], last["metric"], last["best"], last["others"]) == ("null", "exact_match", "naive", [])
    assert last["text"] == "null (answers that say so): naive 1.000 on 1 question"
    assert set(to_json(report(), details=False)) == set(document) - {"questions", "outcomes"}


def test_json_has_no_numbers_that_json_lacks() -> None:
    found = report(settings={"a": float("nan"), "b": float("inf"), "c": Path("x"), "d": Decimal("0.5")})
    assert to_json(found)["settings"] == {"a": None, "b": None, "c": "x", "d": 0.5}
    assert to_json(report(outcomes=(Outcome("q1", "mix", cost=None),)))["outcomes"][0]["cost"] is None


# ---------------------------------------------------------------- numbers for people


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (share(0.8124), ".812"), (share(1.0), "1.000"), (share(0.9996), "1.000"), (share(-0.02), "-.020"),
        (share(0), ".000"), (share(-0.0001), ".000"), (share(-1.0), "-1.000"),
        (count(1234.5), "1,234"), (dollars(12.345), "$12.35"), (dollars(0.0123), "$0.0123"),
        (dollars(0.000123), "$0.000123"), (dollars(0), "$0.00"), (dollars(-0.02), "-$0.0200"),
        (milliseconds(0.0123), "12"), (milliseconds(0.0034), "3.4"), (milliseconds(0), "0"),
        (Metric("mrr", "MRR").estimate(Estimate(0.8, 0.76, 0.83, 9)), ".800 ±.035"),
        (Metric("mrr", "MRR").estimate(Estimate(0.8, 0.8, 0.8, 1)), ".800"),
        (Metric("mrr", "MRR").estimate(None), ""),
        (Metric("mrr", "MRR").gain(Estimate(0.041, 0.021, 0.051, 9)), "+.041 [.021, .051]*"),
        (Metric("mrr", "MRR").gain(Estimate(-0.041, -0.06, 0.01, 9)), "-.041 [-.060, .010]"),
        (Metric("mrr", "MRR").gain(Estimate(0.5, 0.5, 0.5, 1)), "+.500"),
        (Metric("mrr", "MRR").gain(Estimate(0.0, 0.0, 0.0, 9)), ".000"),
        (Metric("mrr", "MRR").gain(None), ""),
        (Metric("mrr", "MRR").gain(Estimate(1e-9, 0.0, 0.0, 9)), ".000"),
        (Metric("mrr", "MRR").gain(Estimate(0.5, 0.5, 0.6, 5)), "+.500 [.500, .600]"),
        (Metric("mrr", "MRR").estimate(Estimate(0.8, 0.76, 0.83, 9), spread=False), ".800"),
        (Metric("s", "ms", milliseconds).gain(Estimate(0.02, 0.01, 0.05, 9)), "+20 [10, 50]*"),
        (gold_text(Gold("a.md", 3, "so")), "a.md, chunk 3: “so”"), (gold_text(Gold(text="so")), "“so”"),
        (gold_text(Gold("a.md")), "a.md"),
    ],
)  # fmt: skip
def test_numbers_as_people_read_them(written: str, expected: str) -> None:
    assert written == expected


def test_columns_are_what_was_measured_in_reading_order() -> None:
    found = report()
    titles = [metric.title for metric in metrics_of(found, found.rows)]
    assert titles == ["recall@2", "recall@5", "recall@10", "all@5", "MRR", "EM", "ms"]
    assert [metric.title for metric in gained(metrics_of(found, found.rows))] == titles[:-1]
    free = Row("naive", "", 1, 0, {"cost": estimate(0.0, 0.0), "llm_tokens": estimate(0.0, 0.0)})
    paid = Row("mix", "", 1, 0, {"cost": estimate(0.01), "seconds_search": estimate(0.01)})
    assert metrics_of(found, [free]) == []
    assert [metric.title for metric in metrics_of(found, [free, paid])] == ["cost"]
    own = Row("naive", "", 1, 0, {"my_own": estimate(0.5), "f1": estimate(0.1)})
    assert [metric.title for metric in metrics_of(found, [own])] == ["F1", "my_own"]


@pytest.mark.parametrize(("ks", "k"), [((2, 5, 10), 5), ((1, 20), 1), ((3, 10), 3), ((10,), 10), ((4, 6), 4)])
def test_variants_are_compared_at_5_or_next_to_it(ks: tuple[int, ...], k: int) -> None:
    assert headline_k(report(ks=ks)) == k


def test_one_kind_is_not_shown_twice() -> None:
    both = (row("mix", "", 0.5), row("mix", "riddle", 0.5))
    riddle, other = Question("1", "?", kind="riddle"), Question("2", "?")
    assert kinds(report(rows=both, questions=(riddle,))) == ["riddle"]
    assert kinds(report(rows=both, questions=(riddle, other))) == ["riddle", ""]
    assert kinds(report(rows=both[:1], questions=(other,))) == [""]


# ---------------------------------------------------------------- plots


def test_a_scale_puts_values_on_pixels_and_keeps_them_in() -> None:
    scale = Scale(0.0, 1.0, 300.0, 14.0)
    assert [scale(value) for value in (0, 0.5, 1, 7, -1)] == [300, 157, 14, 14, 300]
    assert Scale(3.0, 3.0, 10.0, 20.0)(3.0) == 10


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-0.11, 0.11, [-0.1, -0.05, 0, 0.05, 0.1]),
        (0, 0.0038, [0, 0.001, 0.002, 0.003]),
        (2, 10, [2, 4, 6, 8, 10]),
        (0.93, 0.97, [0.93, 0.94, 0.95, 0.96, 0.97]),
        (4, 4, [4]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, ticks: list[float]) -> None:
    assert Scale(low, high, 0, 100).ticks() == pytest.approx(ticks)


def test_a_range_has_room_around_its_values() -> None:
    assert spread([0.0, 1.0]) == (0.0, 1.05)
    assert spread([-1.0, 1.0]) == pytest.approx((-1.1, 1.1))
    assert spread([0.5], at_least=(0.0, 1.0)) == (0.0, 1.05)
    assert spread([]) == pytest.approx((0.0, 1.05))
    low, high = spread([2.0])
    assert low < 2 < high


def test_a_point_of_a_curve_is_where_the_axes_say() -> None:
    plot = svg(curves("Recall", "k", "recall", [Series("naive", 0, [(2, 0.5), (10, 1.0)])], x_ticks=(2, 10)))
    line = plot.find(".//s:polyline", NAMESPACES)
    assert line is not None
    assert line.get("points") == "70,157 740,14"
    grid = {g.get("x1") for g in plot.findall(".//s:line[@class='grid']", NAMESPACES)}
    assert {"70", "740"} <= grid, "the ticks of k are under its points"
    assert grid_y(plot, "0.6") == pytest.approx(300 - 0.6 * 286, abs=0.1)
    assert "naive: 0.5 at 2" in [title.text for title in plot.findall(".//s:title", NAMESPACES)]


def test_whiskers_reach_from_the_low_to_the_high_end() -> None:
    group = [Interval("mix", 1, 0.25, 0.5, 1.0, "*")]
    plot = svg(forest("Recall", "recall", [("all", group)], text=share, ends=(0.0, 1.0)))
    whisker = plot.find(".//s:path[@class='line s1']", NAMESPACES)
    assert whisker is not None
    low, high = re.findall(r"[MH]([\d.]+)", whisker.get("d") or "")[:2]
    ticks = {label.text: float(label.get("x") or 0) for label in plot.findall(".//s:text[@class='middle']", NAMESPACES)}
    assert float(high) == pytest.approx(ticks["1.000"], abs=0.1)
    assert float(low) == pytest.approx(ticks[".000"] + (ticks["1.000"] - ticks[".000"]) / 4, abs=0.1)
    values = [value.text for value in plot.findall(".//s:text[@class='value']", NAMESPACES)]
    assert values == [".500*"]
    assert plot.find(".//s:line[@class='zero']", NAMESPACES) is None


def test_the_zero_line_of_gains_is_at_zero() -> None:
    plot = svg(forest("Gain", "gain", [("all", [Interval("mix", 0, -0.1, 0.0, 0.1)])], text=share, zero=True))
    zero = plot.find(".//s:line[@class='zero']", NAMESPACES)
    [label] = [text for text in plot.findall(".//s:text[@class='middle']", NAMESPACES) if text.text == ".000"]
    assert zero is not None
    assert zero.get("x1") == label.get("x")


def test_names_too_long_for_a_plot_are_cut_and_lie_in_it() -> None:
    name = "mix " + "chunk_ranking=pagerank " * 20
    plot = svg(forest("Gain", "gain", [("all", [Interval(name, 0, 0, 0.5, 1)])], text=share))
    [shown] = [t.text or "" for t in plot.findall(".//s:text[@class='end']", NAMESPACES)]
    assert shown.endswith("…")
    assert len(shown) < 60
    many = [Series(f"{number} 中文变体名称", number, [(0.1, 0.5)]) for number in range(20)]
    plot = svg(scatter("Time", "ms", "recall", many, x_text=milliseconds))
    _, _, width, height = map(float, (plot.get("viewBox") or "").split())
    for text in plot.findall(".//s:g[@class='legend']/s:text", NAMESPACES):
        assert float(text.get("x") or 0) < width
        assert float(text.get("y") or 0) < height


def test_series_are_told_apart_without_colour() -> None:
    lines = [Series(str(number), number, [(1, 0.1 * number)]) for number in range(8)]
    plot = svg(curves("Recall", "k", "recall", lines, x_ticks=(1,)))
    dashes = [line.get("stroke-dasharray") for line in plot.findall(".//s:polyline", NAMESPACES)]
    assert len(set(dashes)) == 8
    shapes = {re.sub(r"^M[\d. ]+", "", mark.get("d") or "") for mark in plot.findall("./s:path", NAMESPACES)}
    assert len(shapes) == 8


def svg(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 - our own plot


def grid_y(plot: ElementTree.Element, label: str) -> float:
    [found] = [text for text in plot.findall("./s:text[@class='end']", NAMESPACES) if text.text == label]
    return float(found.get("y") or 0) - 4


# ---------------------------------------------------------------- the page


def test_the_page_shows_plots_tables_questions_settings_and_warnings() -> None:
    root = parsed(report())
    assert [caption.text for caption in root.findall(".//h:figcaption", NAMESPACES)] == [
        "Recall at k",
        "recall@5 by kind of question",
        "Gain over naive in recall@5",
        "Time against recall",
    ]
    assert len(root.findall(".//s:svg", NAMESPACES)) == 4
    text = words(root)
    assert "3 questions, 2 variants, 2026-01-02T03:04:05+00:00" in text
    assert "all questions: mix .752 is not told apart from naive .613 (more on 1 of 20 questions, less on 0" in text
    assert "1 question left out: no text" in text
    settings = {words(line[0]): words(line[1]) for line in root.findall(".//h:table", NAMESPACES)[-1].iter(tag("tr"))}
    assert settings == {"embedding_model": "words", "query.top_k": "40", "modes": "naive, mix", "none": ""}
    tables = [table(found) for found in root.findall(".//h:table", NAMESPACES)]
    overall = tables[5]
    assert overall[0][:5] == ["variant", "questions", "failed", "recall@2", "recall@5"]
    assert overall[2][:5] == ["mix", "20", "0", ".722 ±.050", ".752 ±.050"]
    gains = tables[6]
    assert gains[1][2] == "+.139 [.101, .182]*"
    up = [cell.text for cell in root.findall(".//h:td[@class='up']", NAMESPACES)]
    assert up == ["+.200 [.100, .300]*", "+.139 [.101, .182]*"]


def test_questions_stand_with_what_was_needed_and_found_the_worst_first() -> None:
    root = parsed(report())
    shown = root.findall(".//h:details", NAMESPACES)
    scores = [found.text for found in root.findall(".//h:span[@class='score']", NAMESPACES)]
    assert scores == [".250", ".500", "1.000"]
    worst, lamp, _ = map(words, shown)
    assert "“王小明在上海工作”" in worst
    assert "b.md:0" in worst
    assert [words(one) for one in root.findall(".//h:strong", NAMESPACES)] == ["b.md:0", "file:///srv/docs/lamp.md:3"]
    assert "not found" in worst
    assert "docs/lamp.md, chunk 3: “Ingrid keeps it.”" in lamp
    assert "ModelError: no answer" in lamp
    needed, found = (table(one) for one in shown[1].findall(".//h:table", NAMESPACES))
    assert needed == [["needed, found at rank", "naive"], ["docs/lamp.md, chunk 3: “Ingrid keeps it.”", "1"]]
    assert found[1] == ["naive", "1.000", "file:///srv/docs/lamp.md:3", "Ingrid. (EM 1.000, F1 .500)"]
    needed, _ = (table(one) for one in shown[0].findall(".//h:table", NAMESPACES))
    assert needed == [
        ["needed, found at rank", "naive", "mix"],
        ["“王小明在上海工作”", "not found", "7"],
        ["b.md", "not found", "1"],
    ]


def test_what_was_needed_is_bold_however_gold_names_it() -> None:
    def bold(gold: tuple[Gold, ...], ranks: tuple[int | None, ...]) -> list[str]:
        found = ("a.md:0", "a.md:1", "b.md:4", "b.md:5", "c.md:0")
        outcome = Outcome("q1", "mix", found, ranks, dict.fromkeys(KS, 1.0))
        root = parsed(report(questions=(Question("q1", "?", gold),), outcomes=(outcome,)))
        return [words(one) for one in root.findall(".//h:strong", NAMESPACES)]

    assert bold((Gold(text="so"), Gold(text="and so")), (2, None)) == ["a.md:1"]
    assert bold((Gold("b.md", 5), Gold(text="so")), (4, 1)) == ["a.md:0", "b.md:5"]
    assert bold((Gold("b.md"), Gold("d.md")), (2, None)) == ["b.md:4", "b.md:5"], "the second document"
    assert bold((), ()) == []


def test_hostile_text_stays_text() -> None:
    everywhere = report(
        name=HOSTILE,
        baseline=HOSTILE,
        created_at=HOSTILE,
        settings={HOSTILE: HOSTILE},
        warnings=(HOSTILE,),
        questions=(Question(HOSTILE, HOSTILE, (Gold(HOSTILE, 0, HOSTILE),), (HOSTILE,), HOSTILE),),
        rows=(row(HOSTILE, HOSTILE, 0.5, estimate(0.1), **{HOSTILE: estimate(0.5)}), row(HOSTILE, "", 0.5)),
        outcomes=(
            Outcome(HOSTILE, HOSTILE, (HOSTILE,), (None,), {5: 0.5}, {5: 0.0}, 0.5, answer=HOSTILE),
            Outcome(HOSTILE, HOSTILE, error=HOSTILE),
        ),
        verdicts=(Verdict(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 0.5, 0.5, 0.0),),
    )
    root = parsed(everywhere)
    harmless = re.compile(
        "html|head|meta|title|style|body|h[1-3]|p|div|span|small|strong|ul|ol|li|table|caption|thead|tbody|tr|th|td|"
        "details|summary|figure|figcaption|svg|g|line|path|polyline|text"
    )
    assert not [element.tag for element in root.iter() if not harmless.fullmatch(element.tag.split("}")[1])]
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not [name for name in attributes if name.startswith("on") or name in ("href", "src", "style")]
    assert words(root).count('<script>alert("1")</script>') > 15
    page_text = to_html(everywhere)
    assert "<script" not in page_text
    assert "\x00" not in page_text
    assert escaped(HOSTILE) == "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#x27;\ufffd\u202e\ufffd"


def test_the_page_is_self_contained_forbids_scripts_and_fits_dark_and_print() -> None:
    text = to_html(report())
    assert text.startswith('<!DOCTYPE html>\n<html lang="en"')
    assert '<meta charset="utf-8"/>' in text
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    urls = set(re.findall(r"https?://[^\"'\s<)]+", text))
    assert urls == set(NAMESPACES.values()), "names of XML, not addresses"
    assert "url(" not in text
    assert "@import" not in text
    for wanted in ("prefers-color-scheme: dark", "@media print", "PingFang SC", "Noto Sans CJK SC"):
        assert wanted in text


def test_colours_of_the_page_can_be_read_on_its_ground() -> None:
    """WCAG 2: 3 to 1 for marks, 4.5 to 1 for text, on paper, on a light and on a dark screen."""
    style = (Path(page.__file__).parent / "page.css").read_text("utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        colours = dict(re.findall(r"--(\w+): (#\w+)", block))
        for ground in (colours["ground"], colours["panel"]):
            for number in range(8):
                assert contrast(colours[f"s{number}"], ground) >= 3, (number, ground)
            for name in ("text", "soft"):
                assert contrast(colours[name], ground) >= 4.5, (name, ground)


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_large_report_stays_a_page_and_says_what_it_left_out() -> None:
    questions = tuple(Question(f"q{number}", "x" * 3000, (Gold("a.md"),)) for number in range(1200))
    outcomes = tuple(
        Outcome(f"q{number}", "mix", tuple("d.md" for _ in range(50)), (1,), {5: 1.0}, {5: 1.0}, 1.0)
        for number in range(1200)
    )
    root = parsed(report(questions=questions, outcomes=outcomes))
    details = root.findall(".//h:details", NAMESPACES)
    assert len(details) == page.SHOWN_QUESTIONS
    assert "1,000 of 1,200; the JSON report holds them all." in words(root)
    assert len(details[0].findall(".//h:ol/h:li", NAMESPACES)) == page.SHOWN_FOUND
    assert words(details[0]).count("x") < page.SHOWN_CHARACTERS + 10


def test_an_empty_report_is_still_a_page() -> None:
    empty: Mapping[str, Any] = {"questions": (), "rows": (), "outcomes": (), "ks": (), "settings": {}, "warnings": ()}
    assert "0 questions, 0 variants" in words(parsed(report(**empty)))
    assert to_json(report(**empty))["variants"] == []


def tag(name: str) -> str:
    return f"{{{NAMESPACES['h']}}}{name}"


def table(element: ElementTree.Element | None) -> list[list[str]]:
    assert element is not None
    return [[words(cell) for cell in line] for line in element.iter(tag("tr"))]
