"""The library's front: opening, pools, workspaces, errors and their exit codes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import asyncpg
import pytest

from pgrag import Document, PgRAG, Settings
from pgrag.config import schema_of
from pgrag.database.pool import connection_arguments, prepare_connection
from pgrag.errors import (
    ConfigError,
    DatabaseError,
    DimensionError,
    ExitCode,
    PgragError,
    UsageError,
    WorkspaceError,
)
from pgrag.rag import content_uri, initialise_workspace
from tests.migration.support import fingerprint
from tests.support.models import FixedKeywords, WordEmbedder
from tests.support.rag import count, extractor, ingest, open_rag, rows, value, with_rag

TEXT = {"a": "Alder knows Birch. Birch knows Cedar."}


def test_the_first_ingest_makes_the_workspace(empty_dsn: str) -> None:
    report = ingest(empty_dsn, TEXT, workspace="acme")
    assert (report.added, report.failures) == (1, ())
    assert value(empty_dsn, "select count(*) from entity", schema="pgrag_acme") == 3
    stats = with_rag(empty_dsn, lambda rag: rag.stats(), workspace="acme")
    assert (stats.workspace, stats.embedding_model, stats.dimension) == ("acme", "words", 384)
    assert (stats.documents, stats.chunks, stats.entities, stats.relations, stats.facts) == (1, 1, 3, 2, 2)
    assert (stats.mentions, stats.chunks_pending, stats.chunks_failed, stats.stale) == (3, 0, 0, 0)
    assert stats.bytes > 100_000


ASKING: list[Any] = [
    lambda rag: rag.query("Who?"), lambda rag: rag.stats(), lambda rag: rag.documents(), lambda rag: rag.delete("a"),
    lambda rag: rag.refresh(), lambda rag: rag.retry(), lambda rag: rag.failures(), lambda rag: rag.retrieve("Who?"),
]  # fmt: skip


def test_asking_a_workspace_that_is_not_there_says_what_to_do_and_makes_nothing(empty_dsn: str) -> None:
    for work in ASKING:
        with pytest.raises(WorkspaceError, match=r"no workspace default .* run `pgrag init`") as caught:
            with_rag(empty_dsn, work)
        assert caught.value.exit_code == ExitCode.DATABASE == 3
    assert value(empty_dsn, "select count(*) from pg_namespace where nspname like 'pgrag%%'", schema="public") == 0


@pytest.mark.parametrize(
    ("dsn", "kind", "code", "words"),
    [
        ("postgresql://ann:s3cret@127.0.0.1:1/x", DatabaseError, 3, "cannot connect to database x on 127.0.0.1 port 1"),
        ("postgresql://ann:s3cret@nowhere.invalid/x", DatabaseError, 3, "cannot connect to database x on nowhere"),
        ("host=/nonexistent dbname=x password=s3cret", DatabaseError, 3, "to database x on /nonexistent"),
        ("not a dsn s3cret", ConfigError, 2, "not a PostgreSQL connection string"),
        ("postgresql://ann:s3cret@127.0.0.1:port/x", ConfigError, 2, "port"),
        ("host=127.0.0.1 port=1 connect_timeout=soon password=s3cret", ConfigError, 2, "connect_timeout"),
        ("host=127.0.0.1 port=1 shape=round password=s3cret", ConfigError, 2, "connection string"),
        ("host=127.0.0.1 port=1 sslcrldir=/x password=s3cret", ConfigError, 2, "sslcrldir"),
        ("host=a\0b password=s3cret", ConfigError, 2, "not a PostgreSQL connection string"),
    ],
)
def test_a_wrong_dsn_is_one_line_without_the_password(dsn: str, kind: type[PgragError], code: int, words: str) -> None:
    for work in (lambda rag: rag.query("Who?"), lambda rag: rag.ingest([Document("a", "Alder knows Birch.")])):
        with pytest.raises(kind) as caught:
            with_rag(dsn, work)
        assert caught.value.exit_code == code
        assert words in str(caught.value)
        assert "s3cret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_wrong_password_or_database_is_a_database_error(words_dsn: str) -> None:
    with pytest.raises(DatabaseError, match='database "no_such" does not exist') as caught:
        with_rag(re.sub(r"/[^/]*$", "/no_such", words_dsn), lambda rag: rag.stats())
    assert caught.value.exit_code == 3


def test_several_hosts_are_understood() -> None:
    arguments = connection_arguments(Settings(dsn="host=a,b port=1,2 dbname=x connect_timeout=3"))
    assert (arguments["host"], arguments["port"], arguments["timeout"]) == (["a", "b"], [1, 2], 3)


def test_using_it_before_it_is_open_says_so(words_dsn: str) -> None:
    rag = open_rag(words_dsn)
    with pytest.raises(UsageError, match="async with PgRAG"):
        asyncio.run(rag.stats())

    async def after() -> None:
        async with rag:
            await rag.stats()
        await rag.stats()

    with pytest.raises(UsageError, match="not open"):
        asyncio.run(after())


def test_settings_and_single_ones_are_not_mixed() -> None:
    with pytest.raises(UsageError, match="either settings"):
        PgRAG("postgresql://h/x", settings=Settings())
    with pytest.raises(ConfigError, match="unknown_one"):
        PgRAG(unknown_one=1)


def test_unknown_status_and_unknown_documents(words_dsn: str) -> None:
    ingest(words_dsn, TEXT)
    with pytest.raises(UsageError, match="pending, complete, failed or empty"):
        with_rag(words_dsn, lambda rag: rag.documents("finished"))
    report = with_rag(words_dsn, lambda rag: rag.delete(["a", "b\0", "b", "a"]))
    assert (report.documents, report.chunks, report.facts, report.entities, report.missing) == (1, 1, 2, 3, ("b",))
    assert count(words_dsn, "entity") == 0


def test_a_uri_with_a_nul_is_deleted_by_the_same_uri(words_dsn: str) -> None:
    ingest(words_dsn, {"a\0b": "Alder knows Birch."})
    report = with_rag(words_dsn, lambda rag: rag.delete("a\0b"))
    assert (report.documents, report.missing) == (1, ())


def test_content_uris_are_made_of_any_text() -> None:
    assert content_uri("a") == content_uri("a") != content_uri("\ud800")


# ---------------------------------------------------------------- pools


def given_pool(dsn: str, work: Any, size: int = 2, **details: Any) -> Any:
    async def run() -> Any:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=size, init=prepare_connection) as pool:
            async with open_rag(dsn, pool=pool, **details) as rag:
                result = await work(rag)
            assert await pool.fetchval("select 1") == 1, "the caller's pool stays open"
            return result

    return asyncio.run(run())


def test_the_callers_pool_is_used_and_not_closed(words_dsn: str) -> None:
    async def work(rag: PgRAG) -> tuple[Any, Any]:
        return await rag.ingest([Document("a", TEXT["a"])]), await rag.query("Who knows Cedar?")

    report, result = given_pool(words_dsn, work)
    assert (report.added, report.failures) == (1, ())
    assert "Birch knows Cedar. [1]" in result.answer


def test_a_pool_without_a_workspace_makes_none_anywhere(empty_dsn: str, words_dsn: str) -> None:
    """The dsn of the settings may be another database than the pool's."""

    async def run() -> None:
        async with asyncpg.create_pool(words_dsn, min_size=0, init=prepare_connection) as pool:
            rag = PgRAG(
                settings=Settings(dsn=empty_dsn, workspace="acme"),
                pool=pool,
                embedder=WordEmbedder(),
                extractor=extractor(),
                keyword_extractor=FixedKeywords(),
            )
            async with rag:
                await rag.ingest([Document("a", TEXT["a"])])

    with pytest.raises(WorkspaceError, match="run `pgrag init`"):
        asyncio.run(run())
    for dsn in (empty_dsn, words_dsn):
        assert value(dsn, "select to_regnamespace('pgrag_acme') is null", schema="public")


@pytest.mark.parametrize("given", [True, False])
def test_one_connection_is_enough(words_dsn: str, given: bool) -> None:
    async def work(rag: PgRAG) -> Any:
        texts = [Document(f"d:{i}", f"Alder knows Birch since year {i}.\n\nCedar knows Dogwood.") for i in range(6)]
        seen: list[Any] = []
        report, *_ = await asyncio.gather(
            rag.ingest(texts, progress=seen.append),
            *(rag.stats() for _ in range(4)),
            *(rag.query("Who?") for _ in range(4)),
        )
        assert seen[-1].chunks_done == seen[-1].chunks_total == 6
        return report

    run: Any = given_pool if given else lambda *a, size, **d: with_rag(*a, pool_size=size, **d)
    report = run(words_dsn, work, size=1, workers=4, claim_batch=1)
    assert (report.added, report.failures) == (6, ())


def test_prepared_statements_can_be_switched_off(words_dsn: str) -> None:
    async def work(rag: PgRAG) -> str:
        await rag.ingest([Document("a", TEXT["a"])])
        return (await rag.query("Who knows Cedar?")).answer

    assert "Birch knows Cedar." in with_rag(words_dsn, work, prepared_statements=False)


# ---------------------------------------------------------------- models that do not fit


@pytest.mark.parametrize(
    ("embedder", "kind", "words"),
    [
        (WordEmbedder(1536), DimensionError, ["384 dimensions", "1536"]),
        (WordEmbedder(384, model="other"), WorkspaceError, ["words", "other"]),
    ],
)
def test_another_model_is_refused_before_anything_is_written(
    words_dsn: str, embedder: WordEmbedder, kind: type[PgragError], words: list[str]
) -> None:
    before = fingerprint(words_dsn)
    for work in (*ASKING, lambda rag: rag.ingest([Document("a", TEXT["a"])])):
        with pytest.raises(kind) as caught:
            with_rag(words_dsn, work, embedder=embedder)
        assert all(word in str(caught.value) for word in (*words, "pgrag reembed"))
    assert fingerprint(words_dsn) == before
    assert rows(words_dsn, "select * from document") == []
    assert embedder.asked == []


def test_another_tokenizer_is_refused(words_dsn: str) -> None:
    with pytest.raises(WorkspaceError, match="o200k_base"):
        ingest(words_dsn, TEXT, tokenizer="cl100k_base")


def test_initialise_is_public_and_may_be_repeated(empty_dsn: str) -> None:
    settings = Settings(dsn=empty_dsn, workspace="second")
    assert asyncio.run(initialise_workspace(settings, WordEmbedder())) is True
    assert asyncio.run(initialise_workspace(settings, WordEmbedder())) is False
    assert schema_of("second") == "pgrag_second"
    assert ingest(empty_dsn, TEXT, workspace="second").added == 1
