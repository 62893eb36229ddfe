"""Questions for an evaluation, drafted by a language model from passages of the workspace and checked against them."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pgrag.database.store import Store
from pgrag.errors import ModelError, UsageError
from pgrag.evaluate.calls import PURPOSE, each_answer
from pgrag.evaluate.drafts import UNREADABLE, Draft, DrawnChunk, loosened, read_draft
from pgrag.evaluate.results import Kind, Question
from pgrag.llm import prompts
from pgrag.llm.gateway import Gateway
from pgrag.llm.replies import ChatResult

SHARES: Mapping[Kind, float] = MappingProxyType(
    {Kind.SINGLE_FACT: 0.3, Kind.MULTI_HOP: 0.25, Kind.AGGREGATION: 0.15, Kind.THEMATIC: 0.15, Kind.NULL: 0.15}
)
"""How the questions are divided among the kinds, where nothing else is said."""
MAX_QUESTIONS = 2_000
ATTEMPTS = 2  # calls a question asked for, at most


@dataclass(frozen=True, slots=True)
class DraftedQuestions:
    """The questions made, the `attempts` (calls, cached ones included), and drafts left out, by reason.

    `warnings` say in words what was left out and which kinds the workspace has no passages for.
    """

    questions: tuple[Question, ...]
    attempts: int
    dropped: Mapping[str, int]
    warnings: tuple[str, ...]


async def draft_questions(
    store: Store,
    gateway: Gateway,
    model: str,
    count: int,
    *,
    shares: Mapping[Kind, float] = SHARES,
) -> DraftedQuestions:
    """At most `count` questions, mixed by `shares`, each with its answers and the sentences that hold them as gold.

    Passages are drawn by digest, spread over the documents: the same texts and answers give the same questions.
    A draft that fails a check is dropped and another one asked for, up to two calls a question. Passages come again
    only when all of the kind were shown, then with the questions asked before. A kind without passages (documents that
    name one entity, ...) leaves its share to the others. Raises UsageError for a wrong count or share, BudgetError and
    ModelAccessError; what was paid for is kept, and the same call goes on from there.
    """
    if not 1 <= count <= MAX_QUESTIONS:
        raise UsageError(f"questions to draft: {count} is not between 1 and {MAX_QUESTIONS:,}")
    wanted = checked_shares(shares)
    stocks = [_Stock(kind, await _draws(store, kind, count)) for kind in wanted]
    return await _Drafting(gateway, model, count, wanted, stocks).run()


def checked_shares(shares: Mapping[Kind, float]) -> dict[Kind, float]:
    """The shares above 0, summing to 1. Raises UsageError for a kind that cannot be drafted and for wrong numbers."""
    known = [kind.value for kind in Kind]
    if unknown := [str(kind) for kind in shares if kind not in known]:
        raise UsageError(f"no kind of question: {', '.join(unknown)}; there are {', '.join(known)}")
    total = math.fsum(shares.values()) if all(math.isfinite(s) and s >= 0 for s in shares.values()) else 0.0
    if not 0 < total < math.inf:
        raise UsageError("shares of kinds of questions must be 0 or more, and one above 0")
    return {Kind(kind): share / total for kind, share in shares.items() if share > 0}


@dataclass(frozen=True, slots=True)
class _Draw:
    """Passages that go together, the subject they share, and the questions made from them so far."""

    subject: str
    chunks: tuple[DrawnChunk, ...]
    asked: list[str] = field(default_factory=list)


class _Stock:
    """The draws of a kind in their order, from the first again when all were taken, and how far the kind has come."""

    def __init__(self, kind: Kind, draws: Sequence[_Draw]) -> None:
        self.kind = kind
        self.draws = draws
        self.attempts = 0
        self.made = 0

    def take(self) -> _Draw:
        """The next one."""
        self.attempts += 1
        return self.draws[(self.attempts - 1) % len(self.draws)]


async def _draws(store: Store, kind: Kind, limit: int) -> list[_Draw]:
    """What can be drawn for a kind, each set of passages once."""
    subjects: dict[int, str] = {}
    drawn: dict[int, list[DrawnChunk]] = {}
    for row in await store.draw_passages(kind.value, f"{kind.value}:", limit):
        subjects[row["draw"]] = row["subject"]
        drawn.setdefault(row["draw"], []).append(
            DrawnChunk(row["chunk_id"], row["uri"], row["ordinal"], tuple(row["headings"]), row["body"])
        )
    draws = {frozenset(p.chunk_id for p in found): (subjects[n], tuple(found)) for n, found in drawn.items()}
    return [_Draw(subject, found) for subject, found in draws.values()]


class _Drafting:
    """Asks in rounds for what is missing."""

    def __init__(
        self, gateway: Gateway, model: str, count: int, shares: Mapping[Kind, float], stocks: Sequence[_Stock]
    ) -> None:
        self._gateway = gateway
        self._model = model
        self._count = count
        self._bare = [stock.kind for stock in stocks if not stock.draws]
        self._stocks = [stock for stock in stocks if stock.draws]
        total = math.fsum(shares[stock.kind] for stock in self._stocks)
        self._targets = {stock.kind: count * shares[stock.kind] / total for stock in self._stocks}
        self._questions: list[Question] = []
        self._seen: set[str] = set()
        self._dropped: Counter[str] = Counter()
        self._attempts = 0
        self._error = ""

    async def run(self) -> DraftedQuestions:
        """Until there are enough questions or attempts."""
        while jobs := list(self._round()):
            drafts = await each_answer(jobs, self._gateway.settings.llm_concurrency, self._ask)
            for (stock, draw), draft in zip(jobs, drafts, strict=True):
                self._take(stock, draw, draft)
        order = list(Kind)
        questions = sorted(self._questions, key=lambda question: order.index(Kind(question.kind)))
        return DraftedQuestions(tuple(questions), self._attempts, dict(self._dropped), self._warnings())

    def _round(self) -> Iterator[tuple[_Stock, _Draw]]:
        """What to ask next: a draw for each question that is missing, of the kind furthest behind its target.

        It ends earlier where that kind has no other draw: what these give is to be seen first.
        """
        left = Counter({stock.kind: len(stock.draws) for stock in self._stocks})  # no draw twice in a round
        under_way: Counter[Kind] = Counter()
        for _ in range(min(self._count - len(self._questions), ATTEMPTS * self._count - self._attempts)):
            behind = {
                stock: self._targets[stock.kind] - stock.made - under_way[stock.kind]
                for stock in self._stocks
                if stock.attempts < max(2, math.ceil(ATTEMPTS * self._targets[stock.kind]))
            }
            stock = max(behind, key=lambda stock: behind[stock], default=None)
            if stock is None or not left[stock.kind]:
                return
            under_way[stock.kind] += 1
            left[stock.kind] -= 1
            self._attempts += 1
            yield stock, stock.take()

    async def _ask(self, job: tuple[_Stock, _Draw]) -> Draft:
        stock, draw = job
        texts = [chunk.text for chunk in draw.chunks]

        def read(result: ChatResult) -> Draft:
            return read_draft(result.text, stock.kind, draw.chunks, truncated=result.truncated)

        result = await self._gateway.chat(
            PURPOSE,
            prompts.draft_messages(
                stock.kind.value,
                texts,
                language=prompts.language_of("\n".join(texts)),
                subject=draw.subject,
                asked=draw.asked,
            ),
            model=self._model,
            schema=prompts.schema("draft"),
            chunks=[chunk.chunk_id for chunk in draw.chunks],
            usable=lambda cached: read(cached).problem != UNREADABLE,
        )
        return read(result)

    def _take(self, stock: _Stock, draw: _Draw, draft: Draft | ModelError) -> None:
        """Keeps a draft, or counts why not. What was asked once is not asked of these passages again, good or bad."""
        if isinstance(draft, ModelError):
            self._dropped["call that failed"] += 1
            self._error = self._error or str(draft)
            return
        if draft.text:
            draw.asked.append(draft.text)
        key = loosened(draft.text)
        problem = draft.problem or ("question that was asked before" if key in self._seen else "")
        if problem:
            self._dropped[problem] += 1
            return
        self._seen.add(key)
        stock.made += 1
        kind = stock.kind.value
        self._questions.append(Question(f"{kind}-{stock.made}", draft.text, draft.gold, draft.answers, kind))

    def _warnings(self) -> tuple[str, ...]:
        told = [f"no passages to draft questions of the kind {kind.value} from" for kind in self._bare]
        if self._dropped:
            counts = ", ".join(f"{number} {reason}" for reason, number in sorted(self._dropped.items()))
            told.append(f"drafts of {self._model} left out: {counts}")
        if self._error:
            told.append(f"the first call that failed: {self._error}")
        if len(self._questions) < self._count:
            told.append(f"{len(self._questions)} of {self._count} questions after {self._attempts} attempts")
        return tuple(told)


def write_questions(path: Path, questions: Sequence[Question]) -> None:
    """Writes a set of questions as JSON lines (UTF-8), whole or not at all. Raises UsageError as `check_target`."""
    check_target(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("x", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(_as_json(question), ensure_ascii=False) + "\n" for question in questions)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def check_target(path: Path) -> None:
    """Raises UsageError if questions cannot be written there: to be asked before any are paid for."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: {'it is' if path.is_dir() else f'{path.parent} is not'} a directory")
    if path.exists():
        raise UsageError(f"{path} exists: give another name, or remove it")


def _as_json(question: Question) -> dict[str, Any]:
    gold = [{"document": g.document, "ordinal": g.ordinal, "text": g.text} for g in question.gold]
    return {"id": question.id, "question": question.text, "kind": question.kind, "answers": list(question.answers),
            "gold": gold}  # fmt: skip
