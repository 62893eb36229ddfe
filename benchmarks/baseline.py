"""What a release found on the sets of quality.py, kept as ids and numbers, and what another one finds more or less.

A file holds a row a set and extraction: `gold`, the ids of the passages that each question needs, and of each system
the ids of the first ten passages found, best first, and the rank (from 1) of each gold one, null where it is not found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rankings import recalls

from pgrag.evaluate.metrics import bootstrap

KEPT = ("naive", "default", "two rounds")  # systems of a baseline
LENGTH = 10  # of a kept ranking
LEAST_MEAN = -0.005  # gain of the default over all sets


@dataclass(frozen=True, slots=True)
class Row:
    """A set with one extraction: of each question the gold ids, and by system the ids found, best first."""

    name: str
    extraction: str
    gold: Sequence[Sequence[str]]
    found: Mapping[str, Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Change:
    """Recall@5 of a system then and now, the gain with its 95 % interval, and how many questions' lists differ."""

    name: str
    extraction: str
    system: str
    questions: int
    then: float
    now: float
    gain: float
    low: float
    high: float
    changed: int

    @property
    def worse(self) -> bool:
        """Whether it is significantly worse."""
        return self.high < 0


def record(file: Path, rows: Iterable[Row]) -> None:
    """Writes a baseline, a line a question and system; rows of other sets that the file has are kept."""
    kept = {(row.name, row.extraction): row for row in (read_baseline(file) if file.exists() else ())}
    kept |= {(row.name, row.extraction): row for row in rows}
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(_row_lines(row) for _, row in sorted(kept.items()))
    file.write_text(f"[\n{lines}\n]\n", "utf-8")


def _row_lines(row: Row) -> str:
    head = f'{{"set": {json.dumps(row.name)}, "extraction": {json.dumps(row.extraction)},\n "gold": '
    systems = []
    for system in KEPT:
        lists = [list(ids[:LENGTH]) for ids in row.found[system]]
        ranks = [
            [ids.index(one) + 1 if one in ids else None for one in gold]
            for ids, gold in zip(lists, row.gold, strict=True)
        ]
        systems.append(f' {json.dumps(system)}: {{"found": {_lines(lists)},\n  "ranks": {_lines(ranks)}}}')
    return head + _lines(row.gold) + ",\n" + ",\n".join(systems) + "}"


def _lines(items: Sequence[Any]) -> str:
    return "[\n" + ",\n".join(json.dumps(item, separators=(",", ":")) for item in items) + "]"


def read_baseline(file: Path) -> list[Row]:
    """The rows of a file that `record` wrote."""
    rows = json.loads(file.read_text("utf-8"))
    return [
        Row(row["set"], row["extraction"], row["gold"], {s: row[s]["found"] for s in KEPT if s in row}) for row in rows
    ]


def compare(then: Iterable[Row], now: Iterable[Row]) -> list[Change]:
    """Each system of each row that both have. Exits where the questions are not the same."""
    known = {(row.name, row.extraction): row for row in then}
    changes = []
    for row in now:
        before = known.get((row.name, row.extraction))
        if before is None:
            continue
        if [list(gold) for gold in before.gold] != [list(gold) for gold in row.gold]:
            raise SystemExit(f"{row.name}: the baseline is of other questions")
        changes += [_change(row, system, before.found[system]) for system in before.found]
    return changes


def _change(row: Row, system: str, then: Sequence[Sequence[str]]) -> Change:
    found = [list(ids[:LENGTH]) for ids in row.found[system]]
    old, new = (recalls(lists, row.gold, (5,))[:, 0] for lists in (then, found))
    gain = bootstrap(new - old)
    changed = sum(list(a) != b for a, b in zip(then, found, strict=True))
    return Change(
        row.name, row.extraction, system, len(found), float(old.mean()), float(new.mean()),
        gain.mean, gain.low, gain.high, changed,
    )  # fmt: skip


def mean_gain(changes: Sequence[Change], system: str = "default") -> float | None:
    """The mean over the sets; None where the system was not compared."""
    gains = [change.gain for change in changes if change.system == system]
    return float(np.mean(gains)) if gains else None


def missed(changes: Sequence[Change]) -> list[str]:
    """What became worse than it may, in words."""
    mean = mean_gain(changes)
    misses = [
        f"{c.name}, {c.extraction}: the default finds significantly less than the baseline, {c.gain:+.3f}"
        for c in changes
        if c.system == "default" and c.worse
    ]
    if mean is not None and mean < LEAST_MEAN:
        misses.append(f"mean recall@5 of the default {mean:+.4f} over the baseline, least {LEAST_MEAN}")
    return misses


def show_comparison(changes: Sequence[Change]) -> None:
    """A line each system of each set, then the means."""
    if not changes:
        return
    print(f"\n{'against the baseline':32} {'system':12} {'then':>6} {'now':>6}  {'gain of recall@5':26} lists changed")
    for c in changes:
        gain = f"{c.gain:+.3f} [{c.low:+.3f}, {c.high:+.3f}]{' *' if c.low > 0 or c.worse else '  '}"
        print(
            f"{f'{c.name}, {c.extraction}':32} {c.system:12} {c.then:6.3f} {c.now:6.3f}  {gain}  "
            f"{c.changed} of {c.questions}"
        )
    for system in KEPT:
        gain = mean_gain(changes, system)
        if gain is not None:
            print(f"{'mean':32} {system:12} {'':13}  {gain:+.4f}")
