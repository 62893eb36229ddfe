"""What users of such systems ran into, as tests named by their row in the project's list of cases."""

from __future__ import annotations

import asyncio
import subprocess
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import numpy as np
import pytest
from numpy.typing import NDArray

from pgrag import Document, Filter, Keywords, Mode, PgRAG
from pgrag.database.pool import prepare_connection
from pgrag.documents.chunker import Chunker
from pgrag.errors import DimensionError
from pgrag.text.tokens import Tokenizer
from pgrag.types import Chunk, ExtractedFact, ExtractedMention, Extraction, FactEntity, Retrieval, Role
from tests.cli.command import COMMAND, assert_error, environment, pgrag, pgrag_json
from tests.support import postgres
from tests.support.limits import PROGRAM_SECONDS
from tests.support.models import FixedKeywords, WordEmbedder
from tests.support.plans import Plan, scans, watch, whole_tables
from tests.support.rag import ask, capitals, count, extractor, graph, ingest, open_rag, rows, value, with_rag
from tests.support.skewed import EMBEDDER, skewed_dsn


def related(source: str, target: str, text: str = "They are related.", *more: ExtractedMention) -> Extraction:
    ends = (FactEntity(source, Role.SOURCE), FactEntity(target, Role.TARGET))
    return Extraction((ExtractedMention(source), ExtractedMention(target), *more), (ExtractedFact(text, ends),))


def test_case_1_nul_and_lone_surrogates_are_stored_without(words_dsn: str, tmp_path: Path) -> None:
    def dirty(chunk: Chunk) -> Extraction:
        found = related("Al\0der", "Bir\ud800ch", "Alder\0 knows Birch\udfff.")
        mention = ExtractedMention("Ce\0dar", "tree\0", "A tall\ud800 tree.")
        return Extraction((*found.mentions, mention), found.facts, ("tr\0ees", "\0"))

    bad = Document(
        "uri\0:1\ud800", "Alder\0 knows \ud800Birch.", "Ti\0tle", "text/plain", {"k\0": ["v\ud800"]}, ("la\0bel",)
    )
    named = tmp_path / "na\udcffme.txt"
    named.write_text("Dogwood knows Elm.", "utf-8")
    report = ingest(words_dsn, [bad, named, "no\0such.txt"], extracts=extractor(dirty))
    assert report.added == 2
    [failure] = report.failures
    assert "\0" not in failure.uri
    [document] = rows(words_dsn, "select uri, title, body, metadata, labels from document where title <> ''")
    assert document == ("uri:1", "Title", "Alder knows Birch.", {"k": ["v"]}, ["label"])
    assert rows(words_dsn, "select start_char, end_char from chunk order by id limit 1") == [(0, 18)]
    assert {name for (name,) in rows(words_dsn, "select name from entity")} == {"Alder", "Birch", "Cedar"}
    assert rows(words_dsn, "select type, description from mention where name = 'Cedar'")[0] == ("tree", "A tall tree.")
    assert value(words_dsn, "select distinct text from fact") == "Alder knows Birch."
    assert value(words_dsn, "select distinct keywords from chunk") == ["trees"]
    result = ask(words_dsn, "Who knows\0 Birch\ud800?", keywords=Keywords(("Bir\0ch",), ("\ud800",)))
    assert result.retrieval.entities[0].name == "Birch"
    assert "Alder knows Birch." in result.answer


def test_case_2_long_names_are_whole_and_far_too_long_ones_are_counted(words_dsn: str) -> None:
    first, second, endless = "A" + "b" * 299, "樹" * 300, "C" * 5000
    asked = extractor(lambda _: related(first, second, "So it is.", ExtractedMention(endless)))
    report = ingest(words_dsn, {"a": "Whatever it says."}, extracts=asked)
    assert report.failures == ()
    assert dict(report.dropped) == {"name too long": 1}
    assert {name for (name,) in rows(words_dsn, "select name from entity")} == {first, second}
    assert {frozenset(pair) for pair in rows(words_dsn, "select source, target from relations")} == {
        frozenset((first, second))
    }
    found = ask(words_dsn, "Which?", mode="local", keywords=Keywords((second,)))
    assert found.retrieval.entities[0].name == second


HOSTILE = [
    'List "big \\ plan"',
    "x'); drop table chunk; --",
    "{a,b}",
    "$1",
    "%s",
    "NULL",
    "O'Brien",
    "a\tb",
    "<b>bold</b>",
]


def test_case_3_hostile_names_and_descriptions_are_found_by_the_same_words(words_dsn: str) -> None:
    def function(chunk: Chunk) -> Extraction:
        name = HOSTILE[int(chunk.body.split()[-1].strip("nx"))]
        return related(name, "Hub", f"{name} costs $$$ (RM200)", ExtractedMention(name, "x", "costs $$$ (RM200)"))

    texts = {f"d:{i}": f"The text of number n{i}x" for i in range(len(HOSTILE))}
    assert ingest(words_dsn, texts, extracts=extractor(function)).failures == ()
    for i, name in enumerate(HOSTILE):
        result = ask(words_dsn, name, mode="local", keywords=Keywords((name,)))
        top = result.retrieval.entities[0]
        assert top.name == " ".join(name.split())
        assert "name" in top.why
        assert top.description == "costs $$$ (RM200)"
        assert f"d:{i}" in [r.uri for r in result.references[:2]], "two of the names fold to the same words"
    assert ask(words_dsn, "costs $$$ (RM200)").references
    assert count(words_dsn, "chunk") == len(HOSTILE)


def test_case_4_two_processes_initialise_the_same_empty_database(empty_dsn: str) -> None:
    command = [*COMMAND, "init"]
    env = environment(PGRAG_DSN=empty_dsn)
    both = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    ended = [(*process.communicate(timeout=PROGRAM_SECONDS), process.returncode) for process in both]
    assert [(error, code) for _, error, code in ended] == [("", 0), ("", 0)]
    assert sorted("created" in out for out, *_ in ended) == [False, True]
    assert pgrag_json("db", "check", dsn=empty_dsn) == {"workspace": "default", "problems": []}


# ---------------------------------------------------------------- 5, 28 and 29, on a graph as uneven as real ones


@pytest.fixture(scope="module")
def skewed(server: postgres.Postgresql) -> str:
    """A hub with 100,000 leaves in a graph of 110,000 entities."""
    return skewed_dsn(server)


def watched(dsn: str, *questions: str, **options: Any) -> list[tuple[Retrieval, list[Plan]]]:
    """What `PgRAG.retrieve` finds for names, one after the other on one connection, and the plans of what it ran."""

    async def run() -> list[tuple[Retrieval, list[Plan]]]:
        plans: list[Plan] = []
        found = []
        watching = partial(watch, plans=plans)  # anew whenever the connection is taken: a pool stops it at its return
        async with (
            asyncpg.create_pool(dsn, min_size=1, max_size=1, init=prepare_connection, setup=watching) as pool,
            open_rag(dsn, pool=pool, embedder=EMBEDDER) as rag,
        ):
            for question in questions:
                plans.clear()
                retrieval = await rag.retrieve(question, keywords=Keywords((question,)), **options)
                await asyncio.sleep(0)
                found.append((retrieval, [plan for plan in plans if plan.function or ".retrieve(" in plan.query]))
        return found

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*log listener", asyncpg.InterfaceWarning)
        return asyncio.run(run())


def some_names(dsn: str, where: str, count: int = 7) -> list[str]:
    query = f"select name from entity where {where} order by md5(name) limit {count}"  # noqa: S608 - constants
    return [name for (name,) in rows(dsn, query)]


@pytest.mark.parametrize("cap", [5, 32])
def test_case_5_of_a_star_degree_cap_edges_are_read(skewed: str, cap: int) -> None:
    assert value(skewed, "select degree from entity where name = 'Hub'") == 100_000
    for hops in (1, 2):
        options = {"top_k": 1, "hops": hops, "degree_cap": cap, "chunk_ranking": "vector"}  # pagerank walks on
        [(found, plans)] = watched(skewed, "Hub", mode="local", **options)
        assert found.entities[0].name == "Hub"
        edges = [node for function, node in scans(plans, "adjacency") if function == "edges_of"]
        assert {node.kind for node in edges} == {"Index Only Scan"}
        read = [node.read * node.loops for node in edges if node.loops]
        assert read[0] == cap
        assert sum(read) <= cap * (1 if hops == 1 else 3)
        assert len([r for r in found.relations if "Hub" in (r.source, r.target)]) == cap
        assert found.chunks


@pytest.mark.parametrize("mode", ["local", "mix"])
def test_case_5_a_question_about_the_centre_reads_what_any_question_reads(skewed: str, mode: str) -> None:
    names = some_names(skewed, "degree between 2 and 5")
    _, (_, hub), *others = watched(skewed, "Hub", "Hub", *names, mode=mode)
    assert hub[-1].pages <= 1.5 * median(plans[-1].pages for _, plans in others)


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.BYPASS])
def test_case_28_the_tenth_call_is_carried_out_as_the_second(skewed: str, mode: Mode) -> None:
    names = some_names(skewed, "degree > 1000")
    calls = watched(skewed, "Hub", "Hub", *names, "Hub", mode=mode)
    (second, plans), (tenth, later) = calls[1], calls[9]
    assert (second.entities, second.relations, second.chunks) == (tenth.entities, tenth.relations, tenth.chunks)
    assert second.chunks
    assert [plan.shape for plan in plans] == [plan.shape for plan in later]
    assert [plan.pages for plan in plans] == [plan.pages for plan in later]
    for _, ran in calls:
        assert len(ran) > 3
        assert whole_tables(ran) == set()


@pytest.mark.parametrize("mode", ["naive", "mix"])
@pytest.mark.parametrize(("every", "there"), [(100, 600), (1000, 60)])
def test_case_29_a_filter_leaves_as_many_passages_as_asked_for_or_all(
    skewed: str, mode: str, every: int, there: int
) -> None:
    chosen = Filter(metadata={f"every{every}": True})
    for limit in (10, 100):
        [(found, plans)] = watched(skewed, "Hub", mode=mode, filter=chosen, chunk_top_k=limit)
        assert len({chunk.id for chunk in found.chunks}) == len(found.chunks) == min(limit, there)
        assert {int(chunk.uri.removeprefix("doc/")) % every for chunk in found.chunks} == {0}
        assert whole_tables(plans) == set()


def test_case_13_spellings_of_one_name_are_one_entity(words_dsn: str) -> None:
    spellings = ["ACME", "Acme", "acme", "ＡＣＭＥ", "ACME ", '"Acme"', "the Acme", "Acme's"]

    def function(chunk: Chunk) -> Extraction:
        return related(spellings[int(chunk.body.split()[-1])], "Birch", chunk.body)

    texts = {f"d:{i}": f"Said in text number {i}" for i in range(len(spellings))}
    ingest(words_dsn, texts, extracts=extractor(function))
    found = dict(rows(words_dsn, "select name, mentions from entity"))
    assert len(found) == 2
    assert set(found.values()) == {len(spellings)}
    assert count(words_dsn, "relation") == 1
    assert value(words_dsn, "select weight from relation") == len(spellings)


@pytest.mark.parametrize("cleared", [False, True])
def test_case_14_no_word_of_a_deleted_text_is_left(words_dsn: str, cleared: bool) -> None:
    secret = "Quetzalcoatl paid Birch. Zirconium belongs to Quetzalcoatl. Birch visited Nowhereville."
    ingest(words_dsn, {"keep": "Alder knows Birch.", "secret:xylophone": secret})
    response = f"response about {secret}"
    rows(
        words_dsn,
        "select put_cached(code_digest(), 'k', 'extract', 'm', %s, 1, 1, 0, array(select id from chunk))",
        response,
    )
    if cleared:
        rows(words_dsn, "delete from llm_cache")
    ask(words_dsn, "Who paid Birch?")
    report = with_rag(words_dsn, lambda rag: rag.delete("secret:xylophone"))
    assert (report.documents, report.missing) == (1, ())
    tables = "select c.relname from pg_class c where c.relkind = 'r' and c.relnamespace = 'pgrag'::regnamespace"
    for word in ("Quetzalcoatl", "Zirconium", "Nowhereville", "xylophone", "paid", "visited", "belongs"):
        for (table,) in rows(words_dsn, tables):
            assert count(words_dsn, table, f"t::text ilike '%{word}%'") == 0, (word, table)
    assert rows(words_dsn, "select name, mentions, degree from entity order by 1") == [("Alder", 1, 1), ("Birch", 1, 1)]
    with_rag(words_dsn, lambda rag: rag.refresh())
    assert count(words_dsn, "entity_vector") == 2


def test_case_14_what_remains_is_as_if_it_had_never_been_there(words_dsn: str, empty_dsn: str) -> None:
    keep = {"keep": "Alder knows Birch. Birch sees Cedar.", "too": "Birch sees Cedar."}
    ingest(words_dsn, {**keep, "gone": "Birch knows Alder. Cedar sees Dogwood. Birch is old."})
    with_rag(words_dsn, lambda rag: rag.delete(["gone"]))
    with_rag(words_dsn, lambda rag: rag.refresh())
    ingest(empty_dsn, keep)
    assert graph(words_dsn) == graph(empty_dsn)


def test_case_15_a_changed_number_re_extracts_one_chunk_and_the_old_fact_goes(words_dsn: str) -> None:
    people = ["Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gorse", "Hazel", "Ivy", "Juniper"]
    body = "\n\n".join(
        f"{name} was born {980 + i} in the old town by the river and learned the trade of a maker of barrels there."
        for i, name in enumerate(people)
    )
    settings = {"chunk_tokens": 32, "chunk_overlap": 0}
    ingest(words_dsn, {"a": body}, **settings)
    assert count(words_dsn, "chunk") == 10
    asked = extractor()
    report = ingest(words_dsn, {"a": body.replace("born 987", "born 1203")}, extracts=asked, **settings)
    assert (report.updated, report.chunks, report.chunks_reused, len(asked.asked)) == (1, 10, 9, 1)
    assert "1203" in asked.asked[0]
    for table in ("chunk", "chunk_search", "fact", "mention", "entity", "lexeme", "document"):
        # as a word: digests and times may hold these digits
        assert count(words_dsn, table, r"t::text ~ '(^|[^[:alnum:].])987\y'") == 0, table
    assert "born 1203" in ask(words_dsn, "When was Hazel born?").answer


def test_case_16_files_of_one_name_in_two_folders_are_two_documents(words_dsn: str, tmp_path: Path) -> None:
    for folder, text in (("a", "Alder knows Birch."), ("b", "Cedar knows Dogwood.")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "readme.md").write_text(text, "utf-8")
    report = ingest(words_dsn, [tmp_path])
    assert (report.added, report.failures) == (2, ())
    uris = {uri for (uri,) in rows(words_dsn, "select uri from document")}
    assert uris == {(tmp_path / folder / "readme.md").as_uri() for folder in "ab"}


def test_case_17_the_same_file_three_times_and_a_pair_both_ways(words_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("Alder knows Birch. Birch knows Alder.", "utf-8")
    for _ in range(3):
        ingest(words_dsn, [path])
    copy = Document("copy", "Alder knows Birch. Birch knows Alder.")
    ingest(words_dsn, [copy])
    assert count(words_dsn, "document") == 2
    [(weight, keywords)] = rows(words_dsn, "select weight, keywords from relation")
    assert (weight, keywords) == (1, []), "one text, counted once"
    with_rag(words_dsn, lambda rag: rag.delete("copy"))
    assert value(words_dsn, "select weight from relation") == 1
    assert value(words_dsn, "select count(distinct chunk_id) from fact") == 1
    assert count(words_dsn, "fact") == 2
    assert count(words_dsn, "adjacency") == 2


def test_case_19_another_dimension_is_refused_with_advice(words_dsn: str) -> None:
    with pytest.raises(DimensionError, match=r"384 dimensions .* 1536: .*pgrag reembed") as caught:
        ingest(words_dsn, {"a": "Alder knows Birch."}, embedder=WordEmbedder(1536))
    assert caught.value.exit_code == 2
    assert count(words_dsn, "document") == 0
    assert_error(pgrag("status", dsn=words_dsn), 3, "words", "multilingual-e5-small")


def test_case_20_3072_dimensions_have_an_index_that_is_used(empty_dsn: str) -> None:
    embedder = WordEmbedder(3072)
    texts = {f"d:{i}": f"{'Alder' if i % 2 else 'Birch'} met Cedar{i} in year {i}." for i in range(40)}
    assert ingest(empty_dsn, texts, embedder=embedder).failures == ()
    nearest = (
        "explain select chunk_id from chunk_vector "
        "order by embedding <=> (select embedding from chunk_vector limit 1) limit 5"
    )
    plan = rows(f"{empty_dsn}?options=-c%20enable_seqscan%3Doff", nearest)
    assert any("Index Scan using chunk_vector_embedding_idx" in line for (line,) in plan), plan
    result = ask(empty_dsn, "Who met Cedar7?", opening={"embedder": embedder})
    assert "met Cedar7 in year 7." in result.answer


def test_case_20_4097_dimensions_are_refused_before_anything_is_made(empty_dsn: str) -> None:
    with pytest.raises(DimensionError, match=r"4097 dimensions; pgvector indexes 4000 .*`dimensions` option"):
        ingest(empty_dsn, {"a": "Alder knows Birch."}, embedder=WordEmbedder(4097))
    assert value(empty_dsn, "select count(*) from pg_namespace where nspname like 'pgrag%%'", schema="public") == 0
    assert value(empty_dsn, "select count(*) from pg_extension where extname = 'vector'", schema="public") == 0


def test_case_22_two_workspaces_in_one_process_do_not_leak(words_dsn: str) -> None:
    async def run() -> None:
        async with open_rag(words_dsn, workspace="one") as one, open_rag(words_dsn, workspace="two") as two:
            texts = ["Alder knows Birch.", "Alder knows Cedar."]
            await asyncio.gather(
                *(rag.ingest([Document("same", text)]) for rag, text in zip((one, two), texts, strict=True))
            )
            for rag, mine, other in ((one, "Birch", "Cedar"), (two, "Cedar", "Birch")):
                for mode in (m for m in Mode if m is not Mode.BYPASS):
                    result = await rag.query("Whom does Alder know: Birch or Cedar?", mode=mode)
                    assert mine in result.context
                    assert other not in result.context
                assert (await rag.stats()).entities == 2
            await one.delete("same")
            assert ((await one.stats()).entities, (await two.stats()).entities) == (0, 2)

    asyncio.run(run())
    assert count(words_dsn, "document") == 0, "nor into the default workspace"


@pytest.mark.parametrize(
    "body",
    ["".join(chr(0x4E00 + i * 7 % 20_000) for i in range(5000)), "字" * 4999 + "👩🏽‍🚀", "👩‍👩‍👧‍👦" * 700, "🇩🇪" * 900],
    ids=["han", "han and emoji", "families", "flags"],
)
def test_case_24_texts_without_a_space_are_rebuilt_exactly(words_dsn: str, body: str) -> None:
    report = ingest(
        words_dsn, {"a": body}, chunk_tokens=128, chunk_overlap=0, extracts=extractor(lambda _: related("A", "B"))
    )
    assert report.failures == ()
    found = rows(words_dsn, "select start_char, end_char, body, tokens from chunk order by ordinal")
    assert len(found) > 10
    assert "".join(text for *_, text, _ in found) == body == value(words_dsn, "select body from document")
    assert [start for start, *_ in found] == [0, *(end for _, end, *_ in found[:-1])]
    tokenizer = Tokenizer()
    for start, end, text, tokens in found:
        assert body[start:end] == text
        assert tokenizer.count(text) == tokens <= 128
        assert text[0] not in "\u200d\U0001f3fd", "no character is cut in two"
    for reference in ask(words_dsn, body[:20]).references:
        assert 0 <= reference.start < reference.end <= len(body)
    assert [c.body for c in Chunker(tokenizer, 128, 0).chunk(Document("a", body))] == [text for *_, text, _ in found]


class BlindEmbedder(WordEmbedder):
    """Cannot tell any two texts apart."""

    def vector(self, text: str) -> NDArray[np.float32]:
        """The same for every text."""
        return np.full(self.dimension, self.dimension**-0.5, np.float32)


@pytest.mark.parametrize("ranking", ["vector", "weight", "pagerank"])
@pytest.mark.parametrize("named", [True, False])
def test_case_26_a_code_is_found_though_the_embedder_cannot_tell(words_dsn: str, ranking: str, named: bool) -> None:
    """By its name where it was extracted, else by full text."""
    texts = {
        f"d:{n}": f"The Server reports ORA-{n:05} when Oracle runs out of thing number {n}." for n in range(1500, 1600)
    }
    names = extractor(capitals) if named else extractor(lambda chunk: related("Server", "Oracle", chunk.body))
    ingest(words_dsn, texts, embedder=BlindEmbedder(), extracts=names)
    opening: Any = {"embedder": BlindEmbedder(), "keywords": FixedKeywords(["ORA-01555"] if named else [], ["reports"])}
    result = ask(words_dsn, "What does ora-01555 mean?", chunk_top_k=10, chunk_ranking=ranking, opening=opening)
    assert "d:1555" in [r.uri for r in result.references]
    assert "ORA-01555" in result.context
    if named:
        assert result.retrieval.entities[0].name == "ORA-01555"


def test_case_26_nothing_is_needed_but_the_question(words_dsn: str) -> None:
    texts = {f"d:{n}": f"The Server reports ORA-{n:05} now." for n in range(1500, 1600)}
    ingest(words_dsn, texts, embedder=BlindEmbedder())

    async def work(rag: PgRAG) -> str:
        return (await rag.retrieve("What does ORA-01555 mean?", mode="local", chunk_top_k=3)).entities[0].name

    assert with_rag(words_dsn, work, embedder=BlindEmbedder()) == "ORA-01555"
