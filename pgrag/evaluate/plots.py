"""Plots as SVG text for the report page: no library, no script; colours come from the page's style sheet.

Series are told apart by colour, by the shape of the mark and by the dashes of the line, so that neither a colour-blind
reader nor a black-and-white print loses one.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

STYLES = 8
"""Colours, marks and dashes before they repeat; the page's style sheet defines `.s0` to `.s7`."""
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 4", "12 4", "1 4", "9 3 2 3 2 3")
_DRAWN = 'fill="none" stroke="currentColor"'  # for a plot that is taken out of its page, and so of its style sheet
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_WIDE = re.compile("[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]")
_WIDTH, _CHARACTER, _LINE = 760.0, 7.1, 20.0  # pixels of a plot, of a letter at 12 px, of a line in a legend

Format = Callable[[float], str]


def escaped(text: str) -> str:
    """`text` for HTML, XML and attributes; what neither can hold (control characters, half surrogates) is U+FFFD."""
    return html.escape(_UNPRINTABLE.sub("\ufffd", text), quote=True)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` linearly onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside are put on the edge."""
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the scale, a step of 1, 2 or 5 times a power of ten apart, `most` of them at most."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        step = 10.0 ** math.floor(math.log10(span / most))
        step *= next(factor for factor in (1, 2, 5, 10, 20) if span / (step * factor) <= most - 1)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def spread(values: Iterable[float], *, at_least: tuple[float, float] | None = None) -> tuple[float, float]:
    """Ends of a scale that shows all `values`, a little room included, and the range `at_least`."""
    shown = list(values)
    if at_least is not None:
        shown += at_least
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    floor = low if low == 0 else low - room
    return floor, high + room


@dataclass(frozen=True, slots=True)
class Series:
    """A named line; `style` is its number among all variants."""

    name: str
    style: int
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval, named by its variant; `mark` stands behind its value."""

    name: str
    style: int
    low: float
    mean: float
    high: float
    mark: str = ""


def curves(title: str, x_label: str, y_label: str, lines: Sequence[Series], *, x_ticks: Sequence[float]) -> str:
    """Lines from left to right over the given x values; y from 0 to 1."""
    left, top, bottom = 56.0, 14.0, 300.0
    x = Scale(min(x_ticks, default=0), max(x_ticks, default=1), left + 14, _WIDTH - 20)
    y = Scale(0.0, 1.0, bottom, top)
    parts = [_y_axis(y, left, _WIDTH - 6, y_label, _share), _x_axis(x, x_ticks, top, bottom, x_label, _number)]
    for line in lines:
        corners = " ".join(f"{_px(x(at))},{_px(y(value))}" for at, value in line.points)
        dash = _DASHES[line.style % STYLES]
        parts.append(
            f'<polyline class="line {_class(line.style)}" {_DRAWN} stroke-dasharray="{dash}" points="{corners}"/>'
        )
        parts += [
            _mark(line.style, x(at), y(value), f"{line.name}: {_share(value)} at {_number(at)}")
            for at, value in line.points
        ]
    legend, height = _legend([(line.name, line.style) for line in lines], left, bottom + 56)
    return _svg(title, height, [*parts, legend])


def forest(
    title: str, x_label: str, groups: Sequence[tuple[str, Sequence[Interval]]], *, text: Format, zero: bool = False,
    ends: tuple[float, float] | None = None,
) -> str:  # fmt: skip
    """A dot with whiskers a row, under the name of its group; with `zero` a line at 0, which an interval leaves out
    or not. `text` writes a value; `ends` are the least range of the x axis."""
    shown = [interval for _, group in groups for interval in group]
    names = max((_text_width(interval.name) for interval in shown), default=0.0)
    left, right = min(names + 26, _WIDTH * 0.45), _WIDTH - 96
    low, high = spread((value for interval in shown for value in (interval.low, interval.high)), at_least=ends)
    x = Scale(low, high, left + 8, right)
    top, row = 8.0, 22.0
    bottom = top + row * (len(shown) + len(groups)) + 6
    parts = [_x_axis(x, x.ticks(), top, bottom, x_label, text)]
    if zero:
        parts.append(
            f'<line class="zero" stroke="#555" x1="{_px(x(0))}" x2="{_px(x(0))}" y1="{_px(top)}" y2="{_px(bottom)}"/>'
        )
    at = top
    for name, group in groups:
        at += row
        parts.append(_text(4, at - 6, name, "group"))
        for interval in group:
            at += row
            parts.append(_whisker(interval, x, at - 8, left, right, text))
    return _svg(title, bottom + 44, parts)


def _whisker(interval: Interval, x: Scale, y: float, left: float, right: float, text: Format) -> str:
    low, high = _px(x(interval.low)), _px(x(interval.high))
    said = f"{interval.name}: {text(interval.mean)} [{text(interval.low)}, {text(interval.high)}]"
    return (
        _text(left - 4, y + 4, _shortened(interval.name, left - 10), "end")
        + f'<path class="line {_class(interval.style)}" {_DRAWN} d="M{low} {_px(y)}H{high}M{low} {_px(y - 4)}v8M{high} '
        f'{_px(y - 4)}v8"/>'
        + _mark(interval.style, x(interval.mean), y, said)
        + _text(right + 10, y + 4, text(interval.mean) + interval.mark, "value")
    )


def scatter(title: str, x_label: str, y_label: str, points: Sequence[Series], *, x_text: Format) -> str:
    """A mark for each point; x from 0, y around the values."""
    left, top, bottom = 56.0, 14.0, 300.0
    found = [point for series in points for point in series.points]
    x = Scale(*spread((at for at, _ in found), at_least=(0.0, 0.0)), left + 14, _WIDTH - 20)
    low, high = spread(value for _, value in found)
    y = Scale(max(low, 0.0), min(high, 1.0), bottom, top)
    parts = [_y_axis(y, left, _WIDTH - 6, y_label, _share), _x_axis(x, x.ticks(), top, bottom, x_label, x_text)]
    parts += [
        _mark(series.style, x(at), y(value), f"{series.name}: {_share(value)} in {x_text(at)}", size=6)
        for series in points
        for at, value in series.points
    ]
    legend, height = _legend([(series.name, series.style) for series in points], left, bottom + 56)
    return _svg(title, height, [*parts, legend])


# ---------------------------------------------------------------- parts


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    name = escaped(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_px(_WIDTH)} {_px(height)}" role="img" '
        f'font-size="12" stroke-width="1.5" aria-label="{name}">{"".join(parts)}</svg>'
    )


def _x_axis(x: Scale, ticks: Sequence[float], top: float, bottom: float, label: str, text: Format) -> str:
    lines = [
        f'<line class="grid" stroke="#aaa" x1="{_px(x(tick))}" x2="{_px(x(tick))}" y1="{_px(top)}" y2="{_px(bottom)}"/>'
        + _text(x(tick), bottom + 16, text(tick), "middle")
        for tick in ticks
    ]
    axis = _axis((x.start, bottom), (x.end, bottom))
    return "".join(lines) + axis + _text((x.start + x.end) / 2, bottom + 34, label, "middle label")


def _y_axis(y: Scale, left: float, right: float, label: str, text: Format) -> str:
    lines = [
        f'<line class="grid" stroke="#aaa" x1="{_px(left)}" x2="{_px(right)}" y1="{_px(y(tick))}" y2="{_px(y(tick))}"/>'
        + _text(left - 6, y(tick) + 4, text(tick), "end")
        for tick in y.ticks()
    ]
    turned = f'transform="translate(14 {_px((y.start + y.end) / 2)}) rotate(-90)"'
    name = f'<text class="middle label" text-anchor="middle" {turned}>{escaped(label)}</text>'
    return "".join(lines) + _axis((left, y.end), (left, y.start)) + name


def _axis(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line class="axis" stroke="#555" x1="{_px(x1)}" x2="{_px(x2)}" y1="{_px(y1)}" y2="{_px(y2)}"/>'


def _mark(style: int, x: float, y: float, said: str, size: float = 4.5) -> str:
    """The mark of a series; its words show under the mouse and are read aloud."""
    s = size
    shape = (
        f"M{_px(x - s)} {_px(y)}a{s} {s} 0 1 0 {2 * s} 0a{s} {s} 0 1 0 {-2 * s} 0z",
        f"M{_px(x - s)} {_px(y - s)}h{2 * s}v{2 * s}h{-2 * s}z",
        f"M{_px(x)} {_px(y - s)}l{s} {2 * s}h{-2 * s}z",
        f"M{_px(x)} {_px(y - s)}l{s} {s}l{-s} {s}l{-s} {-s}z",
        f"M{_px(x)} {_px(y + s)}l{s} {-2 * s}h{-2 * s}z",
        f"M{_px(x - s)} {_px(y - s)}l{2 * s} {2 * s}m0 {-2 * s}l{-2 * s} {2 * s}",
        f"M{_px(x - s)} {_px(y)}h{2 * s}m{-s} {-s}v{2 * s}",
        f"M{_px(x - s)} {_px(y - s / 2)}h{2 * s}v{s}h{-2 * s}z",
    )[style % STYLES]
    return f'<path class="mark {_class(style)}" stroke="currentColor" d="{shape}"><title>{escaped(said)}</title></path>'


def _legend(entries: Sequence[tuple[str, int]], left: float, top: float) -> tuple[str, float]:
    """Names behind their marks, in as many lines as they need, and the height of the plot with them."""
    parts: list[str] = []
    x, y = left, top
    for name, style in entries:
        width = _text_width(name) + 36
        if x > left and x + width > _WIDTH:
            x, y = left, y + _LINE
        dash = _DASHES[style % STYLES]
        parts.append(
            f'<line class="line {_class(style)}" {_DRAWN} stroke-dasharray="{dash}" x1="{_px(x)}" x2="{_px(x + 22)}" '
            f'y1="{_px(y)}" y2="{_px(y)}"/>{_mark(style, x + 11, y, name)}'
            + _text(x + 27, y + 4, _shortened(name, _WIDTH - left - 36), "")
        )
        x += width
    return f'<g class="legend">{"".join(parts)}</g>', y + 14


def _text(x: float, y: float, text: str, classes: str) -> str:
    first = classes.split(" ")[0]
    anchor = f' text-anchor="{first}"' if first in ("middle", "end") else ""
    return f'<text class="{classes}"{anchor} x="{_px(x)}" y="{_px(y)}">{escaped(text)}</text>'


def _text_width(text: str) -> float:
    return _CHARACTER * (len(text) + len(_WIDE.findall(text)))


def _shortened(text: str, width: float) -> str:
    """`text`, cut where it would be wider than so many pixels."""
    if _text_width(text) <= width:
        return text
    kept = text
    while kept and _text_width(kept + "…") > width:
        kept = kept[:-1]
    return kept + "…"


def _class(style: int) -> str:
    return f"s{style % STYLES}"


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _share(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 1 else f"{value:g}"


def _number(value: float) -> str:
    return f"{value:g}"
