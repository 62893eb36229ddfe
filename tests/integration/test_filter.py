"""Filters from the caller to the rows: every entrance, one round trip, budgets, nothing of other documents."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server import counting_proxy
from pgrag import Document, Filter, Mode
from pgrag.errors import UsageError
from pgrag.evaluate.results import Gold, Question
from pgrag.text.lines import entity_line, relation_line
from pgrag.text.tokens import Tokenizer
from tests.cli.command import assert_error, pgrag
from tests.support.postgres import Postgresql, create_database, drop_database
from tests.support.rag import ask, ingest, open_rag, with_rag

SEARCHING = [mode for mode in Mode if mode is not Mode.BYPASS]
TEAMS = ("north", "south", "west")
DOCUMENTS = [
    Document(
        f"{team}/{year}.txt",
        f"Ingrid leads Team {team.title()} in Varnholm. {secret} works for Ingrid. {secret} repairs Etna in Varnholm.",
        metadata={"team": team, "year": year},
        labels=("report", team) if year > 2021 else ("draft", team),
        published_at=datetime(year, 6, 1, tzinfo=UTC),
    )
    for team in TEAMS
    for year in (2021, 2022, 2023)
    for secret in [f"Zed{team}{year}"]
]


@pytest.fixture(scope="module")
def reports(server: Postgresql, words_template: str) -> Any:
    """A database with DOCUMENTS in it, for tests that only read."""
    create_database(server.url(), "reports", template=words_template)
    dsn = server.url(database="reports")
    assert ingest(dsn, DOCUMENTS).failures == ()
    yield dsn
    drop_database(server.url(), "reports")


CHOICES = [
    (Filter(metadata={"team": "north"}), {"north/2021.txt", "north/2022.txt", "north/2023.txt"}),
    (Filter(uri="*/2022.*"), {f"{team}/2022.txt" for team in TEAMS}),
    (Filter(labels=["report", "west"]), {"west/2022.txt", "west/2023.txt"}),
    (Filter(any_label=["north", "west"], published_until=date(2021, 6, 1)), {"north/2021.txt", "west/2021.txt"}),
    (Filter(published_from=date(2022, 6, 1), published_until=date(2022, 6, 1)), {f"{t}/2022.txt" for t in TEAMS}),
    (Filter(documents=["south/2021.txt", "nowhere"]), {"south/2021.txt"}),
    (Filter(labels=["nobody"]), set()),
    (Filter(documents=[]), set()),
    (Filter(), {d.uri for d in DOCUMENTS}),
]


@pytest.mark.parametrize("mode", SEARCHING)
def test_every_filter_bounds_every_layer(reports: str, mode: Mode) -> None:
    for chosen, uris in CHOICES:
        result = ask(reports, "Who repairs Etna in Varnholm?", mode=mode, filter=chosen, chunk_top_k=50)
        assert {chunk.uri for chunk in result.retrieval.chunks} == uris, chosen
        assert {reference.uri for reference in result.references} == uris
        others = [f"Zed{d.uri[:-4].replace('/', '')}" for d in DOCUMENTS if d.uri not in uris]
        text = repr(result)
        assert not [word for word in others if word in text]
        assert bool(result.retrieval.entities) is (bool(uris) and mode is not Mode.NAIVE)
        if uris:
            assert "Etna" in result.answer


def test_every_entrance_takes_a_filter(reports: str) -> None:
    chosen = Filter(documents="north/2022.txt")
    question = "Who repairs Etna?"

    async def work(rag: Any) -> None:
        found = await rag.retrieve(question, filter=chosen)
        assert {chunk.uri for chunk in found.chunks} == {"north/2022.txt"}
        async with aclosing(await rag.stream(question, filter=chosen)) as answer:
            assert "Zednorth2022" in "".join([piece async for piece in answer])
        second = await rag.query(question, filter=chosen, rounds=2)
        assert {chunk.uri for chunk in second.retrieval.chunks} == {"north/2022.txt"}
        gold = [Question("q", question, (Gold("north/2022.txt"),))]
        report = await rag.evaluate(gold, modes=["naive", "mix"], filter=chosen)
        assert {row for outcome in report.outcomes for row in outcome.found} == {"north/2022.txt:0"}
        assert report.settings["filter"] == {"documents": ["north/2022.txt"]}

    with_rag(reports, work)


def test_it_is_one_round_trip(reports: str) -> None:
    async def run() -> None:
        async with counting_proxy(reports) as messages, open_rag(messages.dsn, pool_size=1) as rag:
            for mode in SEARCHING:
                for _ in range(2):
                    await rag.retrieve("Who repairs Etna?", mode=mode, filter=Filter(labels="draft"))
                messages.reset()
                assert (await rag.retrieve("Who leads?", mode=mode, filter=Filter(labels="report"))).chunks
                assert messages.turns == 1
                assert dict(messages.sent) == {"B": 1, "E": 1, "S": 1}

    asyncio.run(run())


def test_tokens_are_those_of_the_lines_and_stay_within_the_budgets(reports: str) -> None:
    tokenizer = Tokenizer()
    for budget in (40, 100, 300, 1000):
        found = ask(
            reports, "Who repairs Etna in Varnholm?", filter=Filter(any_label=["north", "west"]), max_total_tokens=3000,
            max_entity_tokens=budget, max_relation_tokens=budget, only_context=True,
        ).retrieval  # fmt: skip
        for e in found.entities:
            assert e.tokens == tokenizer.count(entity_line(e.name, e.type, e.description))
        for r in found.relations:
            assert r.tokens == tokenizer.count(relation_line(r.source, r.target, r.description))
        assert sum(e.tokens for e in found.entities) <= budget
        assert sum(r.tokens for r in found.relations) <= budget
    assert found.entities
    assert found.relations


def test_wrong_filters_are_refused(reports: str) -> None:
    with pytest.raises(UsageError, match=r"give a pgrag\.Filter"):
        ask(reports, "Who?", filter={"labels": ["north"]})
    with pytest.raises(UsageError, match="bypass searches nothing: it takes no filter"):
        with_rag(reports, lambda rag: rag.query("Who?", mode="bypass", filter=Filter(labels="north")))


def test_the_command_line_refuses_wrong_filters_before_it_connects() -> None:
    for words in (["--since", "yesterday"], ["--filter-metadata", "team"], ["--until", "2024-02-30"]):
        result = pgrag("query", "Who?", *words, dsn="postgresql://nobody@127.0.0.1:1/x")
        assert_error(result, 2, words[0])


@pytest.mark.models
def test_the_command_line_searches_under_a_filter(dsn: str, tmp_path: Path) -> None:
    for name, text in (("a.txt", "Ingrid Solberg keeps the lighthouse."), ("b.txt", "Tove Berg keeps the ferry.")):
        (tmp_path / name).write_text(text)
    assert pgrag("ingest", str(tmp_path / "a.txt"), "--label", "sea", "--metadata", "n=1", dsn=dsn).returncode == 0
    assert pgrag("ingest", str(tmp_path / "b.txt"), "--published-at", "2024-05-31", dsn=dsn).returncode == 0
    for words, there, absent in (
        (["--label", "sea"], "Ingrid", "Tove"),
        (["--any-label", "sea", "--any-label", "x"], "Ingrid", "Tove"),
        (["--filter-metadata", '{"n": "1"}'], "Ingrid", "Tove"),
        (["--filter-metadata", "n=1"], "Ingrid", "Tove"),
        (["--uri", "*/b.txt"], "Tove", "Ingrid"),
        (["--document", (tmp_path / "b.txt").resolve().as_uri()], "Tove", "Ingrid"),
        (["--since", "2024-05-31", "--until", "2024-05-31"], "Tove", "Ingrid"),
    ):
        shown = pgrag("query", "Who keeps it?", "--only-context", *words, dsn=dsn).stdout
        assert there in shown
        assert absent not in shown
