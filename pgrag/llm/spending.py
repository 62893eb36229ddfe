"""What the models of this process have cost, and the limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from decimal import Decimal

from pgrag.errors import BudgetError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts since the start: paid requests, answers from the cache, tokens, US dollars, requests of unknown price."""

    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Decimal = Decimal(0)
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class Bill:
    """Tokens and US dollars of one request; `cost` is None where the model's price is not known."""

    prompt_tokens: int
    completion_tokens: int
    cost: Decimal | None

    @property
    def amount(self) -> Decimal:
        """US dollars, 0 where the price is not known."""
        return self.cost or Decimal(0)


@dataclass(slots=True)
class Bills:
    """Bills of the requests made while a `tally` was open, and how many answers came from the cache instead."""

    bills: list[Bill] = field(default_factory=list)
    cached: int = 0


class Spending:
    """Adds up bills and refuses what would go over `limit` (US dollars). Safe to share between threads."""

    def __init__(self, limit: float | None) -> None:
        self.limit = None if limit is None else Decimal(str(limit))
        self._lock = threading.Lock()
        self._usage = Usage()
        self._reserved = Decimal(0)
        self._warned: set[str] = set()
        self._tally: ContextVar[Bills | None] = ContextVar(f"pgrag-tally-{id(self)}", default=None)

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        with self._lock:
            return self._usage

    @contextmanager
    def tally(self) -> Iterator[Bills]:
        """Records the bills of this task, and of the tasks that it starts, until it is closed."""
        bills = Bills()
        token = self._tally.set(bills)
        try:
            yield bills
        finally:
            self._tally.reset(token)

    @contextmanager
    def reserve(self, model: str, estimate: Decimal | None) -> Iterator[None]:
        """Holds a request's estimated cost while it runs; None where the price is not known.

        Raises BudgetError when it does not fit beside what is spent and what is under way.
        """
        amount = estimate or Decimal(0)
        with self._lock:
            if self.limit is not None:
                if estimate is None and model not in self._warned:
                    self._warned.add(model)
                    logger.warning("max_cost does not count %s: its price is not known", model)
                if self._usage.cost + self._reserved + amount > self.limit:
                    raise BudgetError(
                        f"stopped before a request to {model}: ${self._usage.cost:.4f} spent, ${self._reserved:.4f} "
                        f"under way and about ${amount:.4f} for this one exceed max_cost ${self.limit:.4f}; what is "
                        "done is kept: raise max_cost and run the same again"
                    )
            self._reserved += amount
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= amount

    def add(self, bill: Bill) -> None:
        """Counts a paid request."""
        if (open_tally := self._tally.get()) is not None:
            open_tally.bills.append(bill)
        with self._lock:
            seen = self._usage
            self._usage = replace(
                seen,
                calls=seen.calls + 1,
                prompt_tokens=seen.prompt_tokens + bill.prompt_tokens,
                completion_tokens=seen.completion_tokens + bill.completion_tokens,
                cost=seen.cost + bill.amount,
                unpriced=seen.unpriced + (bill.cost is None),
            )

    def add_cached(self) -> None:
        """Counts an answer that came from the cache."""
        if (open_tally := self._tally.get()) is not None:
            open_tally.cached += 1
        with self._lock:
            self._usage = replace(self._usage, cached=self._usage.cached + 1)
