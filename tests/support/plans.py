"""The plans of what a server really runs, statements inside functions included: auto_explain tells them as notices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pytest

# the connection's user must be superuser
WATCHED = (
    "load 'auto_explain'",
    *(
        f"set auto_explain.{name} = {value}"
        for name, value in {
            "log_min_duration": 0, "log_nested_statements": "on", "log_analyze": "on", "log_timing": "off",
            "log_buffers": "on", "log_format": "json", "log_level": "notice",
        }.items()
    ),
)  # fmt: skip
NO_PLANS = "this server has no auto_explain: it does not tell what it does"
_FUNCTION = re.compile(r"""^(?:PL/pgSQL function (?:\w+\.)?(\w+)\(|SQL function "(\w+)" )""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a plan that has run, as EXPLAIN tells it: `table` is what it reads, `above` the nodes it is under."""

    facts: Mapping[str, Any]
    table: str
    above: tuple[Node, ...]

    @property
    def kind(self) -> str:
        return str(self.facts["Node Type"])

    @property
    def index(self) -> str:
        return str(self.facts.get("Index Name", ""))

    @property
    def loops(self) -> int:
        """How often it ran; 0 where it was not needed."""
        return int(self.facts["Actual Loops"])

    @property
    def expected(self) -> int:
        """Rows that the planner expected of one run."""
        return int(self.facts["Plan Rows"])

    @property
    def read(self) -> float:
        """Rows looked at by one run of it, on average, those that a condition dropped included."""
        return float(self.facts["Actual Rows"]) + float(self.facts.get("Rows Removed by Filter", 0))

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.table, self.index)))


@dataclass(frozen=True, slots=True)
class Plan:
    """One statement that has run; `function` is the one it stands in, empty for the client's own."""

    function: str
    query: str
    tree: Mapping[str, Any]

    def nodes(self) -> list[Node]:
        return list(_nodes(self.tree, ()))

    @property
    def shape(self) -> str:
        """What the planner chose, without what the statement met in the tables."""
        return f"{self.function}: " + "; ".join(f"{len(node.above)} {node}" for node in self.nodes())

    @property
    def pages(self) -> int:
        """Pages read by it and all statements that ran inside it, whether they were in memory or not."""
        return int(self.tree["Shared Hit Blocks"] + self.tree["Shared Read Blocks"])


def _nodes(tree: Mapping[str, Any], above: tuple[Node, ...]) -> Iterator[Node]:
    bitmap_of = above[-1].table if above and tree["Node Type"].startswith("Bitmap") else ""
    node = Node(tree, tree.get("Relation Name", bitmap_of), above)
    yield node
    for part in tree.get("Plans", ()):
        yield from _nodes(part, (*above, node))


def parse_plan(message: str, context: str | None) -> Plan | None:
    """The plan that a notice tells; None for another notice."""
    if not message.startswith("duration: "):
        return None
    told = json.loads(message.partition("plan:\n")[2])
    found = _FUNCTION.search(context or "")
    return Plan((found[1] or found[2]) if found else "", told["Query Text"], told["Plan"])


class Watched:
    """A session of psycopg, whose statements are watched."""

    def __init__(self, dsn: str) -> None:
        self._plans: list[Plan] = []
        self._connection = psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor)
        try:
            for setting in WATCHED:
                self._connection.execute(setting)
        except psycopg.errors.UndefinedFile:
            self._connection.close()
            pytest.skip(NO_PLANS)
        self._connection.add_notice_handler(self._notice)

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        plan = parse_plan(notice.message_primary or "", notice.context)
        if plan is not None:
            self._plans.append(plan)

    def run(self, statement: str, *values: Any) -> tuple[list[tuple[Any, ...]], list[Plan]]:
        """Its rows, and the plans of all that ran for it in the order they ended: its own is the last."""
        self._plans.clear()
        text: Any = statement
        cursor = self._connection.execute(text, values or None)
        return (cursor.fetchall() if cursor.description else []), list(self._plans)

    def close(self) -> None:
        self._connection.close()


async def watch(connection: asyncpg.Connection, plans: list[Plan]) -> None:
    """Has a session of asyncpg watched: plans are added to the list a moment after their statement ended."""

    def told(_: asyncpg.Connection, message: asyncpg.PostgresLogMessage) -> None:
        plan = parse_plan(message.message, message.context)
        if plan is not None:
            plans.append(plan)

    try:
        for setting in WATCHED:
            await connection.execute(setting)
    except asyncpg.UndefinedFileError:
        pytest.skip(NO_PLANS)
    connection.add_log_listener(told)


def scans(plans: Sequence[Plan], *tables: str) -> list[tuple[str, Node]]:
    """The nodes that read a table (of these), with the functions they stand in."""
    found = [(plan.function, node) for plan in plans for node in plan.nodes() if node.table]
    return [(function, node) for function, node in found if not tables or node.table in tables]


def whole_tables(plans: Sequence[Plan]) -> set[tuple[str, str]]:
    """The tables that are read as a whole, with the functions that do it."""
    return {(function, node.table) for function, node in scans(plans) if "Seq Scan" in node.kind}
