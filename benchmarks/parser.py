"""What is kept of recorded model answers: parses every one and counts records kept, mended and refused, by wart.

    python benchmarks/parser.py DIRECTORY [--json] [--goals]

DIRECTORY holds JSON lines with a `raw_response` each: `extractions.jsonl` (and `warts`, a list of what is odd about the
answer), `keywords.jsonl`, `summaries.jsonl`; a missing file is left out. An answer with two warts counts under both.
Goals: nothing crashes, and no answer in which records can be seen yields none.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pgrag.errors import ExtractionError
from pgrag.extraction.llm.parse import parse_extraction
from pgrag.graph.summary_answer import clean_summary
from pgrag.search.keyword_answer import parse_keywords

# A second opinion, deliberately simpler than the parser: a tag, a delimiter, and at least two more fields with words.
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_VISIBLE = re.compile(
    r"(?:^|[(（])\W{0,6}(?:entity|relation(?:ship)?)[\"'”]?\s{0,2}<[|#](?![^\n]*(?:entity_name|source_entity|\{))"
    r"[^\n]*?\w[^\n]*?[|#]>[^\n]*?\w[^\n]*?[|#]>\W*\w",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(slots=True)
class Row:
    """One line of the table; counts are of answers, but `visible`, `kept` and `dropped`, which are of records."""

    answers: int = 0
    visible: int = 0
    kept: int = 0
    dropped: int = 0
    mended: int = 0
    cut: int = 0
    refused: int = 0
    lost: int = 0
    crashed: int = 0


@dataclass(slots=True)
class Report:
    """All rows, what was dropped and mended by reason, and the answers that miss a goal."""

    rows: dict[str, Row] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0

    def rows_of(self, names: list[str]) -> list[Row]:
        """The rows of the names, made where they are new."""
        return [self.rows.setdefault(name, Row()) for name in names]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; 1 if a goal is missed and --goals is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--goals", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args(arguments)
    report = Report()
    read = 0
    for name, take in (("extractions", _extraction), ("keywords", _keywords), ("summaries", _summary)):
        for answer in _answers(options.directory / f"{name}.jsonl"):
            read += 1
            _guarded(take, answer, name, report)
    if not read:
        parser.error(f"no answers in {options.directory}")
    print(json.dumps(asdict(report), ensure_ascii=False, indent=2) if options.json else _table(report))
    return 1 if options.goals and report.failures else 0


def _answers(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _guarded(
    take: Callable[[dict[str, Any], list[Row], Report], None], answer: dict[str, Any], name: str, report: Report
) -> None:
    warts = answer.get("warts")
    kinds = [f"{name}: all"] + [f"  {wart}" for wart in (warts or ["none"])] if warts is not None else [f"{name}: all"]
    rows = report.rows_of(kinds)
    for row in rows:
        row.answers += 1
    started = time.perf_counter()
    try:
        take(answer, rows, report)
    except Exception as error:  # noqa: BLE001 - counting what crashes is what this command is for
        report.failures.append(f"{answer.get('id')}: {type(error).__name__}: {error}"[:200])
        for row in rows:
            row.crashed += 1
    report.slowest_seconds = max(report.slowest_seconds, time.perf_counter() - started)


def _extraction(answer: dict[str, Any], rows: list[Row], report: Report) -> None:
    raw = answer["raw_response"]
    visible = len(_VISIBLE.findall(_THINKING.sub("", raw)))
    for row in rows:
        row.visible += visible
    try:
        parsed = parse_extraction(raw, finish_reason=answer.get("finish_reason"), names_in_prompt=frozenset())
    except ExtractionError as error:
        if visible:
            report.failures.append(f"{answer.get('id')}: {visible} records to be seen, none kept: {error}")
        for row in rows:
            row.refused += 1
            row.lost += bool(visible)
        return
    extraction = parsed.extraction
    report.dropped.update(extraction.dropped)
    report.mended.update(parsed.mended)
    for row in rows:
        row.kept += len(extraction.mentions) + len(extraction.facts)
        row.dropped += sum(extraction.dropped.values())
        row.mended += bool(parsed.mended)
        row.cut += not parsed.complete


def _keywords(answer: dict[str, Any], rows: list[Row], report: Report) -> None:
    found = parse_keywords(answer["raw_response"])
    for row in rows:
        row.kept += len(found.low) + len(found.high) if found else 0
        row.refused += found is None


def _summary(answer: dict[str, Any], rows: list[Row], report: Report) -> None:
    found = clean_summary(answer["raw_response"])
    for row in rows:
        row.kept += found is not None
        row.refused += found is None
        row.mended += found is not None and found != answer["raw_response"].strip()


def _table(report: Report) -> str:
    columns = list(Row.__dataclass_fields__)
    width = max(map(len, report.rows))
    lines = [" ".join([" " * width, *(f"{column:>8}" for column in columns)])]
    for name, row in report.rows.items():
        lines.append(" ".join([f"{name:<{width}}", *(f"{getattr(row, column):>8}" for column in columns)]))
    for title, counts in (("dropped", report.dropped), ("mended", report.mended)):
        lines.append(f"{title}: " + ", ".join(f"{n} {reason}" for reason, n in counts.most_common()))
    lines.append(f"slowest answer: {report.slowest_seconds * 1000:.0f} ms")
    return "\n".join([*lines, *(f"FAILED {failure}" for failure in report.failures)])


if __name__ == "__main__":
    sys.exit(main())
