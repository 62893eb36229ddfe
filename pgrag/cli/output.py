"""What the command prints: data on standard output, everything else on standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from pgrag.text.jsonable import jsonable

# Control characters of a document or a file name must not steer the reader's terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class OutputClosedError(Exception):
    """The reader of standard output is gone (`pgrag documents | head -1`)."""


def plain(text: str) -> str:
    """`text` with control characters made visible, so that it can be printed on a terminal."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """`text` on one line, without control characters."""
    return plain(" ".join(text.split()))


def emit(text: str) -> None:
    """Print data on standard output. Raises OutputClosedError when nobody reads it any more."""
    _write(plain(text))


def emit_part(text: str) -> None:
    """Print a part of a line on standard output, at once."""
    _write(plain(text), end="")


def emit_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    _write(json.dumps(jsonable(value), ensure_ascii=not utf8, allow_nan=False, indent=2))


def note(text: str) -> None:
    """Print a remark on standard error."""
    sys.stderr.write(plain(text) + "\n")
    sys.stderr.flush()


def _write(text: str, end: str = "\n") -> None:
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosedError from None


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows: a table on a terminal, else one tab-separated line a row under a line of headers."""
    cells = [[one_line("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        emit("\n".join("\t".join(row) for row in [list(headers), *cells]))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        grid.add_column(header, overflow="fold")
    for row in cells:
        grid.add_row(*(Text(cell) for cell in row))
    Console().print(grid)


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """`name  value` lines, aligned."""
    lines = [(name, str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name.ljust(width)}  {one_line(value)}" for name, value in lines)


def size(count: int) -> str:
    """A number of bytes for people: `12.3 MB` (powers of 1,000)."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def amount(count: int, noun: str, plural: str = "") -> str:
    """`1 chunk`, `2 chunks`, `1,200 entities`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def dollars(amount: Decimal) -> str:
    """US dollars with as many places as small prices need: `$12.34`, `$0.0123`, `$0.000123`."""
    places = 2 if amount >= 1 or not amount else 4 if amount >= Decimal("0.01") else 6
    return f"${amount:,.{places}f}"
