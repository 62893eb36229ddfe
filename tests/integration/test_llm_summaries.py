"""Summaries by a language model, over real HTTP: one call each, from new notes only, never of a text that is gone."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from pgrag import Document, PgRAG
from pgrag.errors import ModelAccessError
from pgrag.text.tokens import Tokenizer
from tests.support.llm import Brain, enclosed, llm_rag, think, using
from tests.support.openai_server import OpenAIServer, Reply, Request, failing
from tests.support.rag import count, database_text, rows, value

DEEDS = ("built", "sold", "sailed", "lost", "found", "moored", "painted", "named", "burned", "raised", "leased", "won")


@pytest.fixture
def llm() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


def deed(n: int) -> str:
    return f"Alder {DEEDS[n % len(DEEDS)]} ship number {n}."


def deeds(*numbers: int) -> list[Document]:
    """Documents that say one thing of Alder each."""
    return [Document(f"deed-{n}", deed(n)) for n in numbers]


def run(dsn: str, llm: OpenAIServer, work: Callable[[PgRAG], Awaitable[Any]], **settings: Any) -> Any:
    return asyncio.run(using(llm_rag(dsn, llm, **{"gleaning": 0, **settings}), work))


def alder(dsn: str) -> str:
    found: str = value(dsn, "select description from entity where name = 'Alder'")
    return found


def notes_of(request: Request) -> list[str]:
    return [line.removeprefix("- ") for line in enclosed(request, "notes").splitlines()]


# ---------------------------------------------------------------- when, and of what


def test_from_the_eighth_fragment_on_one_call(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm)

    async def work(rag: PgRAG) -> None:
        await rag.ingest(deeds(*range(7)))
        assert brain.counts["summary"] == 0
        assert sorted(alder(words_dsn).splitlines()) == sorted(map(deed, range(7)))
        await rag.ingest(deeds(7))
        assert brain.counts["summary"] == 1
        await rag.refresh()
        await rag.ingest(deeds(7))
        assert brain.counts["summary"] == 1

    run(words_dsn, llm, work)
    (request,) = brain.of("summary")
    assert enclosed(request, "subject") == "Alder"
    assert sorted(notes_of(request)) == sorted(map(deed, range(8)))
    assert alder(words_dsn) == "Alder is told of in 8 notes."
    assert count(words_dsn, "mention", "summarised") == 8
    assert count(words_dsn, "stale") == 0
    line = value(words_dsn, "select tokens from entity")
    assert line < 40, "the line of the context is counted with the summary"


def test_many_tokens_are_a_reason_too(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm)
    long = " ".join(f"Alder moored by pier {n} that day and" for n in range(20)) + " left."
    run(words_dsn, llm, lambda rag: rag.ingest([Document("a", long)]), summary_above_tokens=100, summary_tokens=50,
        chunk_tokens=300)  # fmt: skip
    assert brain.counts["summary"] == 1
    assert alder(words_dsn) == "Alder is told of in 1 notes."


def test_relations_are_summarised_too(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm)
    told = [Document(f"d{n}", f"Alder {deed_} Birch in year {n}.") for n, deed_ in enumerate(DEEDS[:8])]
    run(words_dsn, llm, lambda rag: rag.ingest(told))
    subjects = Counter(enclosed(request, "subject") for request in brain.of("summary"))
    assert subjects == Counter({"Alder": 1, "Birch": 1, "Alder - Birch": 1})
    assert rows(words_dsn, "select description, keywords, weight from relation") == [
        ("Alder - Birch is told of in 8 notes.", sorted(DEEDS[:8]), 64.0)
    ]
    assert count(words_dsn, "fact", "summarised") == 8


def test_a_second_summary_is_made_from_the_first_and_what_is_new(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm)

    async def work(rag: PgRAG) -> None:
        await rag.ingest(deeds(*range(8)))
        await rag.ingest(deeds(8, 9))
        assert alder(words_dsn).splitlines()[0] == "Alder is told of in 8 notes."
        assert sorted(alder(words_dsn).splitlines()[1:]) == sorted([deed(8), deed(9)]), "new notes follow the summary"
        assert brain.counts["summary"] == 1
        await rag.ingest(deeds(*range(10, 15)))

    run(words_dsn, llm, work)
    second = brain.of("summary")[1:]
    (request,) = second
    first, *new = notes_of(request)
    assert first == "Alder is told of in 8 notes."
    assert sorted(new) == sorted(map(deed, range(8, 15)))
    assert alder(words_dsn) == "Alder is told of in 8 notes."
    assert count(words_dsn, "mention", "summarised") == 15


def test_again_from_the_fragments_when_a_summarised_one_went(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm)

    async def work(rag: PgRAG) -> None:
        await rag.ingest(deeds(*range(9)))
        brain.forget()
        await rag.delete("deed-4")
        assert value(words_dsn, "select summary from entity") is None
        assert sorted(alder(words_dsn).splitlines()) == sorted(deed(n) for n in range(9) if n != 4), "at once, unpaid"
        await rag.refresh()
        await rag.delete("deed-5")
        await rag.refresh()

    run(words_dsn, llm, work)
    (request,) = brain.of("summary")
    assert sorted(notes_of(request)) == sorted(deed(n) for n in range(9) if n != 4)
    assert sorted(alder(words_dsn).splitlines()) == sorted(deed(n) for n in range(9) if n not in (4, 5)), "seven stand"
    assert count(words_dsn, "llm_cache", "purpose = 'summary'") == 0


def test_too_many_notes_for_one_context_are_summarised_in_groups(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm)
    brain.replies["summary"] = lambda request: Reply(
        f"Alder did {len(notes_of(request))} things, {notes_of(request)[0]}"
    )
    tokenizer = Tokenizer("o200k_base")
    padding = "and it was told in every tavern of the coast for many years to come, by those who were there"
    many = [Document(f"d{n}", f"{deed(n)[:-1]} {padding}.") for n in range(24)]
    run(words_dsn, llm, lambda rag: rag.ingest(many), summary_context_tokens=256)
    requests = brain.of("summary")
    assert len(requests) > 3
    for request in requests:
        assert sum(tokenizer.count_many(notes_of(request))) <= 256
    told = Counter(note for request in requests for note in notes_of(request) if not note.startswith("Alder did "))
    assert told == Counter(document.body for document in many), "every note in one group, once"
    assert alder(words_dsn).startswith("Alder did ")
    assert count(words_dsn, "mention", "summarised") == 24


# ---------------------------------------------------------------- nobody pays twice


def test_two_refreshers_never_pay_for_one_summary(words_dsn: str, llm: OpenAIServer) -> None:
    """Even where a summary takes longer than a lease."""
    brain = think(llm)

    async def work(rag: PgRAG) -> None:
        names = ("Alder", "Birch", "Cedar", "Elm")
        await rag.ingest(
            [Document(f"{name}-{n}", f"{name} told story number {n}.") for name in names for n in range(9)]
        )
        rows(words_dsn, "update entity set summary = null")
        rows(words_dsn, "update mention set summarised = false")
        rows(words_dsn, "delete from llm_cache where purpose = 'summary'")
        rows(words_dsn, "select mark_stale(array(select id from entity), '{}')")
        brain.forget()
        brain.replies["summary"] = lambda r: Reply(f"{enclosed(r, 'subject')} tells stories.", delay=1.0)
        others = [llm_rag(words_dsn, llm, lease_seconds=0.4, llm_concurrency=2) for _ in range(3)]

        async def refresh(other: PgRAG, wait: float) -> None:
            async with other:
                await asyncio.sleep(wait)
                await other.refresh()

        await asyncio.gather(*(refresh(other, 0.5 * n) for n, other in enumerate(others)))

    run(words_dsn, llm, work)
    subjects = Counter(enclosed(request, "subject") for request in brain.of("summary"))
    assert subjects == Counter({"Alder": 1, "Birch": 1, "Cedar": 1, "Elm": 1})
    assert rows(words_dsn, "select description from entity order by name limit 1") == [("Alder tells stories.",)]
    assert count(words_dsn, "stale") == 0


# ---------------------------------------------------------------- changes meanwhile


def deleting(dsn: str, llm: OpenAIServer, uri: str, text: str) -> Callable[[Request], Reply]:
    """Deletes a document while the model writes the first summary."""
    done: list[str] = []

    def reply(request: Request) -> Reply:
        if not done:
            done.append(uri)
            asyncio.run(using(llm_rag(dsn, llm), lambda rag: rag.delete(uri)))
            return Reply(text)
        return Reply(f"Alder is told of in {len(notes_of(request))} notes.")

    return reply


def test_nothing_is_kept_of_a_source_deleted_while_the_summary_is_written(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm, summary=deleting(words_dsn, llm, "secret", "Alder met Quetzal and built ships."))

    async def work(rag: PgRAG) -> None:
        await rag.ingest([*deeds(*range(8)), Document("secret", "Alder met a man from Quetzal.")])

    run(words_dsn, llm, work)
    assert "quetzal" not in database_text(words_dsn).casefold()
    first, second = brain.of("summary")
    assert len(notes_of(first)) == 9
    assert sorted(notes_of(second)) == sorted(map(deed, range(8)))
    assert alder(words_dsn) == "Alder is told of in 8 notes."
    assert value(words_dsn, "select sum(calls) from llm_usage where purpose = 'summary'") == 2, "both are paid"
    assert count(words_dsn, "llm_cache", "purpose = 'summary'") == 1
    assert count(words_dsn, "stale") == 0


def test_a_note_that_comes_while_the_summary_is_written_is_not_lost(words_dsn: str, llm: OpenAIServer) -> None:
    done: list[int] = []

    def reply(request: Request) -> Reply:
        if not done:
            done.append(1)
            asyncio.run(
                using(llm_rag(words_dsn, llm, refresh_seconds=60.0, gleaning=0), lambda rag: rag.ingest(deeds(8)))
            )
        return Reply(f"Alder is told of in {len(notes_of(request))} notes.")

    think(llm, summary=reply)
    run(words_dsn, llm, lambda rag: rag.ingest(deeds(*range(8))))
    assert deed(8) in alder(words_dsn) or alder(words_dsn) == "Alder is told of in 9 notes."
    assert count(words_dsn, "stale") == 0


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "fault",
    [failing(400, "filtered"), Reply(""), Reply("Alder did a lot of", finish_reason="length"), Reply("Summary:")],
)
def test_a_summary_that_fails_leaves_the_notes_and_holds_up_nothing(
    words_dsn: str, llm: OpenAIServer, fault: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    brain: Brain = think(llm)
    brain.replies["summary"] = lambda r: (
        fault if enclosed(r, "subject") == "Alder" else Reply(f"{enclosed(r, 'subject')} is summed up.")
    )

    async def work(rag: PgRAG) -> None:
        others = [Document(f"birch-{n}", f"Birch told story number {n}.") for n in range(9)]
        report = await rag.ingest([*deeds(*range(8)), *others])
        assert report.failures == ()
        assert sorted(alder(words_dsn).splitlines()) == sorted(map(deed, range(8)))
        assert value(words_dsn, "select description from entity where name = 'Birch'") == "Birch is summed up."
        assert count(words_dsn, "entity_vector") == count(words_dsn, "entity") == 2
        assert count(words_dsn, "stale") == 0
        brain.replies.clear()
        await rag.ingest(deeds(8))

    run(words_dsn, llm, work)
    assert "the fragments on Alder stand as they are" in caplog.text
    assert alder(words_dsn) == "Alder is told of in 9 notes.", "the next note brings another try"
    assert brain.counts["summary"] in (3, 4)


def test_a_refused_key_ends_the_refresh_and_it_goes_on_later(words_dsn: str, llm: OpenAIServer) -> None:
    brain = think(llm, summary=failing(401, "no such key"))
    with pytest.raises(ModelAccessError, match="set llm_api_key"):
        run(words_dsn, llm, lambda rag: rag.ingest(deeds(*range(8))))
    assert count(words_dsn, "stale") == 1
    assert count(words_dsn, "stale", "lease_until is not null") == 0
    brain.replies.clear()
    run(words_dsn, llm, lambda rag: rag.refresh())
    assert alder(words_dsn) == "Alder is told of in 8 notes."


def test_preambles_are_taken_off_and_length_is_kept(words_dsn: str, llm: OpenAIServer) -> None:
    think(llm, summary=Reply("Here is the merged description:\n\n**Summary:** " + "Alder built ships. " * 200))
    run(words_dsn, llm, lambda rag: rag.ingest(deeds(*range(8))), summary_tokens=50)
    assert re.fullmatch(r"(Alder built ships\. ?)+.*", alder(words_dsn))
    assert Tokenizer("o200k_base").count(alder(words_dsn)) <= 100
