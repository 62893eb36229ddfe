from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrag.documents.chunker import RST, Chunker, first_title
from pgrag.documents.custom_chunker import OwnChunker
from pgrag.errors import ConfigError, DocumentError
from pgrag.text.tokens import Tokenizer
from pgrag.types import Chunk, Document

TOKENIZER = Tokenizer()
FAMILY = "👨\u200d👩\u200d👧\u200d👦"


def chunks_of(body: str, max_tokens: int = 1200, overlap: int = 0, **fields: object) -> list[Chunk]:
    """The chunks, after checking what holds for every text."""
    chunks = Chunker(TOKENIZER, max_tokens, overlap).chunk(Document("u", body, **fields))  # type: ignore[arg-type]
    if not body.strip():
        assert chunks == []
        return chunks
    rebuilt = ""
    for ordinal, chunk in enumerate(chunks):
        assert chunk.ordinal == ordinal
        assert chunk.body == body[chunk.start : chunk.end]
        assert TOKENIZER.count(chunk.body) <= max_tokens
        assert chunk.tokens == TOKENIZER.count(chunk.model_text)
        assert chunk.start <= len(rebuilt)
        if ordinal:
            assert chunks[ordinal - 1].start < chunk.start
            assert chunks[ordinal - 1].end < chunk.end
            assert TOKENIZER.count(body[chunk.start : chunks[ordinal - 1].end]) <= overlap
        rebuilt = rebuilt[: chunk.start] + chunk.body
    assert rebuilt == body
    return chunks


def bodies(body: str, max_tokens: int = 1200, overlap: int = 0, **fields: object) -> list[str]:
    return [chunk.body for chunk in chunks_of(body, max_tokens, overlap, **fields)]


MARKUP = ("# Top\n", "## Part\n\n", "\n\n", "\n", "- item one\n", "```\n", "| a | b |\n", "Title\n====\n", "\r\n", " ")
WORDS = ("Acme failed. ", "支付平台升级了。", "，", "x" * 40, "Dr. Smith said so! ", "汉" * 30, ".")
CLUSTERS = (FAMILY, "e\u0301", "🇨🇳", "👍🏽", "❤\ufe0f", "\r\n")
PIECES = st.sampled_from((*MARKUP, *WORDS, *CLUSTERS))


@given(st.lists(PIECES, max_size=60).map("".join), st.sampled_from([16, 32, 100]), st.sampled_from([0, 4, 8]))
@settings(max_examples=300)
def test_spans_rebuild_the_text_and_limits_hold(body: str, max_tokens: int, overlap: int) -> None:
    chunks_of(body, max_tokens, overlap)


@given(st.text(max_size=400), st.sampled_from([16, 17, 64]), st.sampled_from([0, 8]))
@settings(max_examples=300)
def test_any_text_can_be_chunked(body: str, max_tokens: int, overlap: int) -> None:
    chunks_of(body, max_tokens, overlap)


@given(st.lists(st.sampled_from((*CLUSTERS, "汉", "a", " ", "。")), max_size=200))
def test_what_is_seen_as_one_character_stays_whole(clusters: list[str]) -> None:
    body = "x" + "".join(clusters)
    boundaries, place = {0}, 1
    for cluster in clusters:
        boundaries.add(place)
        place += len(cluster)
    assert {chunk.start for chunk in chunks_of(body, 40, 8)} <= boundaries


def test_five_thousand_han_characters_with_a_joined_emoji_on_the_boundary() -> None:
    boundary = chunks_of("汉" * 5_000, 1200, 100)[0].end
    for shift in range(-8, 1):
        body = "汉" * (boundary + shift) + FAMILY + "字" * (5_000 - boundary)
        chunks = chunks_of(body, 1200, 100)
        assert len(chunks) == 5
        start = boundary + shift
        assert not {chunk.end for chunk in chunks} & set(range(start + 1, start + len(FAMILY)))


def test_a_cluster_over_the_limit_is_cut_all_the_same() -> None:
    assert len(chunks_of("a" + "\u0301" * 1_000, 100)) > 5


@pytest.mark.parametrize("body", ["", " \n\t ", "\u3000\n"])
def test_nothing_to_chunk(body: str) -> None:
    assert bodies(body) == []


def test_a_small_document_is_one_chunk() -> None:
    body = "\n\n# Pay\n\nIt pays.\n\n## Team\n\nWei leads it.\n\n"
    assert bodies(body) == [body]


def test_sections_of_level_one_and_two_start_chunks_once_a_quarter_is_full() -> None:
    small = "## A\n\nShort.\n\n"
    large = "## B\n\n" + "The service handles refunds for every shop. " * 3 + "\n\n"
    deep = "### C\n\nStill here.\n\n"
    assert bodies(small + large + deep + small, 100) == [small + large + deep, small]
    assert bodies(small + small, 100) == [small + small]


def test_breaks_at_a_heading_then_a_paragraph_in_the_second_half() -> None:
    sentence = "The service handles refunds for every shop. "  # 8 or 9 tokens
    opening = sentence * 7 + "\n\n"
    heading = "### Deep\n\n" + sentence * 3 + "\n\n" + sentence * 3 + "\n\n"
    assert bodies(opening + heading, 100)[0] == opening
    paragraphs = sentence * 8 + "\n\n" + sentence * 8
    assert bodies(paragraphs, 100)[0] == sentence * 8 + "\n\n"
    early = sentence + "\n\n" + sentence * 20
    assert bodies(early, 100)[0] not in (sentence + "\n\n", early)
    assert bodies(early, 100)[0].endswith("shop. ")


def test_a_heading_is_never_left_behind() -> None:
    sentence = "The service handles refunds for every shop. "
    for lead in range(2, 12):
        for chunk in bodies(sentence * lead + "\n\n### Deep\n\n" + sentence * 20, 100):
            assert not chunk.endswith("### Deep\n\n")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("支付平台升级了。数据库没有变！为什么？", ["支付平台升级了。", "数据库没有变！为什么？"]),
        ("他说：“现在就升级吧。”然后系统就重启了。", ["他说：“现在就升级吧。”", "然后系统就重启了。"]),
        ("Dr. Smith of Acme Inc. fixed it. Then it ran.", ["Dr. Smith of Acme Inc. fixed it. ", "Then it ran."]),
        ("See Fig. 3 and U.S. data, e.g. here. All fine.", ["See Fig. 3 and U.S. data, e.g. here. ", "All fine."]),
        ('"Did it restart?" he asked. It did not.', ['"Did it restart?" he asked. ', "It did not."]),
        ("Version 1.2 of node.js is out. Use it now.", ["Version 1.2 of node.js is out. ", "Use it now."]),
        ("1. Install the server. Start it.", ["1. Install the server. ", "Start it."]),
    ],
)
def test_cuts_between_sentences(text: str, sentences: list[str]) -> None:
    filler = "Some words of a line that stands before. "
    while TOKENIZER.count(filler + sentences[0]) <= 60:
        filler += "More of them. "
    body = filler + "\n\n" + text
    limit = TOKENIZER.count(filler + "\n\n" + sentences[0]) + 1
    ends = {len(filler) + 2, len(filler) + 2 + len(sentences[0]), len(body)}
    found = {chunk.end for chunk in chunks_of(body, max(16, limit))}
    assert found <= ends
    assert len(found) == 2


def test_overlap_repeats_whole_sentences_but_nothing_across_a_heading() -> None:
    sentences = [f"Service number {number} handles refunds. " for number in range(40)]
    chunks = chunks_of("".join(sentences), 60, 20)
    for before, after in pairwise(chunks):
        shared = before.body[after.start - before.start :]
        assert shared.count("Service") == 2
        assert shared.startswith("Service")
    section = "## One\n\n" + "".join(sentences[:7]) + "\n\n"
    first, second = chunks_of(section + section, 80, 40)
    assert first.end == second.start == len(section)


def test_headings_are_the_title_and_the_path_above_the_start() -> None:
    filler = "The service handles refunds for every shop. " * 9 + "\n\n"
    body = (
        f"# Guide\n\n{filler}## Setup\n\n{filler}### Linux **now** [x](u)\n\n{filler}{filler}Second\n======\n\n{filler}"
    )
    chunks = chunks_of(body, 100, title="guide")
    assert [(chunk.headings, chunk.body.split("\n")[0][:11]) for chunk in chunks] == [
        (("guide",), "# Guide"),
        (("guide",), "## Setup"),
        (("guide", "Setup"), "### Linux *"),
        (("guide", "Setup", "Linux now x"), "The service"),
        (("guide",), "Second"),
    ]
    assert chunks[3].model_text.startswith("guide\nSetup\nLinux now x\nThe service")
    assert [chunk.headings for chunk in chunks_of(body, 100)][1] == ("Guide",)
    assert chunks_of("Plain.", title="Notes")[0].headings == ("Notes",)


def test_code_has_no_headings_and_is_cut_at_lines() -> None:
    line = "# restart the payment service now\n"
    code = "```sh\n" + line * 30 + "```\n"
    chunks = chunks_of("# Top\n\n" + code + "\nEnd.\n", 60)
    assert all(chunk.headings in ((), ("Top",)) for chunk in chunks)
    assert all(chunk.body.endswith("\n") for chunk in chunks)
    assert len(chunks) > 3


def test_table_rows_are_whole() -> None:
    row = "| refund-service | Wei Zhang. Lead | Berlin |\n"
    assert all(len(body) % len(row) == 0 for body in bodies(row * 30, 60))


def test_a_long_sentence_is_cut_at_clauses_and_spaces() -> None:
    text = "支付平台在周二凌晨升级了数据库，" * 40
    assert all(body.endswith("，") for body in bodies(text, 50))
    assert all(body.endswith((" ", "end")) for body in bodies("refund service " * 100 + "end", 50))


def test_pages() -> None:
    sentence = "The service handles refunds for every shop. "
    body = sentence * 12
    starts = (0, len(sentence) * 3, len(sentence) * 8)
    chunks = chunks_of(body, 40, page_starts=starts)
    assert [chunk.page for chunk in chunks] == [sum(chunk.start >= start for start in starts) for chunk in chunks]
    assert {chunk.page for chunk in chunks} == {1, 2, 3}
    assert chunks_of(body)[0].page is None


def test_digest_changes_with_every_option() -> None:
    other = Tokenizer("cl100k_base")
    chunkers = [Chunker(TOKENIZER), Chunker(TOKENIZER, 600), Chunker(TOKENIZER, 1200, 50), Chunker(other)]
    assert len({chunker.digest for chunker in chunkers}) == 4
    assert Chunker(TOKENIZER, 1200, 100).digest == Chunker(Tokenizer()).digest


@pytest.mark.parametrize(("max_tokens", "overlap"), [(15, 0), (100, 51), (100, -1)])
def test_wrong_options(max_tokens: int, overlap: int) -> None:
    with pytest.raises(ConfigError):
        Chunker(TOKENIZER, max_tokens, overlap)


@pytest.mark.parametrize(
    ("text", "mime", "title"),
    [
        ("intro\n\n# C# and `F#` ##\n\n# Next", "text/markdown", "C# and F#"),
        ("Payments\n========\n", "text/markdown", "Payments"),
        ("## Only two\n", "text/markdown", ""),
        ("```\n# code\n```\n# Real\n", "text/markdown", "Real"),
        ("#tag is no heading\n    # code\n", "text/markdown", ""),
        ("====\nPay\n====\n\n~~~~\n\nTeam\n~~~~\n", RST, "Pay"),
        ("one\ntwo\n===\n", "text/markdown", ""),
    ],
)
def test_first_title(text: str, mime: str, title: str) -> None:
    assert first_title(text, mime) == title


@pytest.mark.parametrize(
    "body",
    [
        *("." * 200_000, "a" + " " * 200_000 + "b", "`" * 200_000 + "x`", "🇨" * 50_000, "a" + "\u0301" * 100_000),
        *("# a\n" * 50_000, "```x\n" * 40_000, "a\n---\n" * 30_000, "。”" * 100_000, "[" * 200_000, "中" * 200_000),
    ],
    ids=lambda body: f"{body[:4]!a}",
)
def test_hostile_text_takes_linear_time(body: str) -> None:
    begun = time.process_time()
    chunks_of(body, 1200, 100)
    assert time.process_time() - begun < 10  # a quadratic step takes minutes


# ---------------------------------------------------------------- a separator


def parts(body: str, separator: str, max_tokens: int = 1200, *, only: bool = False, **fields: object) -> list[Chunk]:
    """The chunks of a text split at a separator, after checking that they rebuild it without overlap."""
    chunker = Chunker(TOKENIZER, max_tokens, max_tokens // 2, split_by=separator, split_only=only)
    chunks = chunker.chunk(Document("u", body, **fields))  # type: ignore[arg-type]
    for ordinal, chunk in enumerate(chunks):
        assert chunk.ordinal == ordinal
        assert chunk.body == body[chunk.start : chunk.end]
        assert chunk.tokens == TOKENIZER.count(chunk.model_text)
    if body.strip() and all(TOKENIZER.count(chunk.body) < max_tokens // 2 for chunk in chunks):
        assert "".join(chunk.body for chunk in chunks) == body
    return chunks


def test_a_separator_ends_a_chunk_wherever_it_stands() -> None:
    found = parts("Acme failed. It was-- late.--Beta won.\n\n-- Gamma", "--")
    assert [chunk.body for chunk in found] == ["Acme failed. It was--", " late.--", "Beta won.\n\n--", " Gamma"]


def test_blank_parts_stay_with_the_one_before_and_at_the_start_with_the_one_after() -> None:
    assert [c.body for c in parts("\n\n \n\nOne.\n\n\n\n \n\nTwo.\n\n", "\n\n")] == [
        "\n\n \n\nOne.\n\n\n\n \n\n",
        "Two.\n\n",
    ]
    assert [c.body for c in parts("--", "--")] == ["--"]
    assert parts(" \n\n ", "\n\n") == []


def test_a_part_that_fits_is_one_chunk_whatever_it_holds_and_knows_its_headings() -> None:
    body = "# Top\n\nAcme failed.\n\n## Part\n\nBeta won.\n\n@@@\n\nGamma lost."
    first, second = parts(body, "@@@\n\n", 32, title="Book", mime="text/markdown")
    assert (first.body, second.body) == (body[:-11], "Gamma lost.")
    assert first.headings == ("Book",)
    assert second.headings == ("Book", "Top", "Part")


def test_a_longer_part_is_cut_as_any_text_unless_that_is_forbidden() -> None:
    body = "Short.|" + "Acme failed again today. " * 20 + "|Beta won."
    found = parts(body, "|", 32)
    assert len(found) > 5
    assert all(TOKENIZER.count(chunk.body) <= 32 for chunk in found)
    assert (found[0].body, found[-1].body) == ("Short.|", "Beta won.")
    assert found[1].start == 7, "nothing is repeated across a separator"
    assert found[2].start < found[1].end, "but within a part"
    with pytest.raises(DocumentError, match=r"has 121 tokens between two separators \(characters 7 to 508\)"):
        parts(body, "|", 32, only=True)
    assert [c.body for c in parts(body, "|", 121, only=True)] == ["Short.|", body[7:508], "Beta won."]


@given(st.lists(PIECES, max_size=60).map("".join), st.sampled_from(["\n", " ", "汉", "\r\n", "ed"]))
def test_any_text_and_separator(body: str, separator: str) -> None:
    covered = 0
    for chunk in parts(body, separator, 16):
        assert chunk.start <= covered < chunk.end
        assert TOKENIZER.count(chunk.body) <= 16
        assert sum(bool(part.strip()) for part in chunk.body.split(separator)) <= 1, "of two parts"
        covered = chunk.end
    assert covered == (len(body) if body.strip() else 0)


def test_the_digest_tells_every_option_and_is_the_old_one_without_a_separator() -> None:
    digests = {
        Chunker(TOKENIZER).digest,
        Chunker(TOKENIZER, split_by="\n").digest,
        Chunker(TOKENIZER, split_by="\\n").digest,
        Chunker(TOKENIZER, split_by="\n", split_only=True).digest,
    }
    assert len(digests) == 4
    assert Chunker(TOKENIZER).digest == "chunking 1 o200k_base 1200 100"
    with pytest.raises(ConfigError, match="split_by_character_only needs split_by_character"):
        Chunker(TOKENIZER, split_only=True)


# ---------------------------------------------------------------- a caller's own chunker


def own(function: object, body: str = "One two. Three four. One two.", **fields: object) -> list[Chunk]:
    return OwnChunker(function, TOKENIZER).chunk(Document("u", body, **fields))  # type: ignore[arg-type]


def test_texts_are_found_in_order_and_given_what_a_chunk_has() -> None:
    texts = ["One two.", "Three four.", "One two."]
    found = own(lambda document: texts, title="Book", page_starts=(0, 9))
    assert [(c.ordinal, c.start, c.end, c.page) for c in found] == [(0, 0, 8, 1), (1, 9, 20, 2), (2, 21, 29, 2)]
    assert [c.body for c in found] == texts
    assert all(c.headings == ("Book",) and c.tokens == TOKENIZER.count(c.model_text) for c in found)


def test_texts_may_overlap_and_leave_gaps() -> None:
    assert [(c.start, c.end) for c in own(lambda d: ("One two. Three", "Three four. One"))] == [(0, 14), (9, 24)]
    assert [(c.start, c.end) for c in own(lambda d: iter(["two", "four"]))] == [(4, 7), (15, 19)]
    assert [(c.start, c.end) for c in own(lambda d: ["ab ", "b"], "ab b")] == [(0, 3), (3, 4)]


def test_chunks_keep_their_headings_and_pages_and_are_counted_anew() -> None:
    given = [Chunk(7, "Three four.", 9, 20, 1, ("A\x00", "B"), 3), Chunk(7, "One", 0, 3, 99)]
    first, second = own(lambda d: given)
    assert (first.ordinal, first.headings, first.page) == (0, ("A", "B"), 3)
    assert first.tokens == TOKENIZER.count("A\nB\nThree four.")
    assert (second.ordinal, second.tokens, second.headings, second.page) == (1, 1, (), None)


def boom(document: Document) -> list[str]:
    raise KeyError("no such thing")


async def later(document: Document) -> list[str]:
    return ["One"]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda d: [Chunk(0, "One", 0, 3, 1), Chunk(1, "x", 28, 30, 1)], "chunk 1 of the chunker: 28 to 30 is no span"),
        (lambda d: [Chunk(0, "One", -3, 0, 1)], "chunk 0 of the chunker: -3 to 0 is no span of 29 characters"),
        (lambda d: [Chunk(0, "", 3, 3, 1)], "chunk 0 of the chunker: 3 to 3 is no span"),
        (lambda d: [Chunk(0, "Two", 0, 3, 1)], "chunk 0 of the chunker: its body is not what stands at 0 to 3"),
        (lambda d: [Chunk(0, " ", 8, 9, 1)], "chunk 0 of the chunker is empty"),
        (lambda d: ["One two.", "one two."], "chunk 1 of the chunker: its text does not follow in the document"),
        (lambda d: ["Three", "One two. Three"], "chunk 1 of the chunker: its text does not follow"),
        (lambda d: ["One", ""], "chunk 1 of the chunker is empty"),
        (lambda d: ["One", 2], "chunk 1 of the chunker is neither a Chunk nor a text: int"),
        (lambda d: [], "the chunker returned no chunks"),
        (lambda d: None, "the chunker returned NoneType, not a sequence"),
        (lambda d: "One two.", "the chunker returned str, not a sequence"),
        (later, "the chunker returned coroutine, not a sequence"),
        (boom, "the chunker failed: KeyError: 'no such thing'"),
    ],
)
def test_what_a_chunker_does_wrong_is_told(function: object, told: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(told)):
        own(function)


def test_a_blank_document_has_no_chunks_of_its_own() -> None:
    assert own(boom, " \n") == []


def test_the_digest_of_an_own_chunker_is_its_name_or_what_it_says() -> None:
    class Cutter:
        digest = ""

        def __call__(self, document: Document) -> list[str]:
            return [document.body]

    cutter = Cutter()
    assert OwnChunker(boom, TOKENIZER).digest == f"own chunker {__name__}.boom o200k_base"
    assert OwnChunker(cutter, TOKENIZER).digest.endswith("Cutter o200k_base")
    cutter.digest = "by paragraph, 2"
    assert OwnChunker(cutter, TOKENIZER).digest == "own chunker by paragraph, 2 o200k_base"
