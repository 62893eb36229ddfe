"""Which of the chunks found hold which gold, and at which rank."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrag.evaluate.matching import Matches, match, missing_documents, names
from pgrag.evaluate.results import Gold
from pgrag.types import RetrievedChunk

BODY = "Alder hired Birch in spring.\nBirch owns the Cedar, a ship. Elm sold tea."


def chunk(uri: str, ordinal: int = 0, body: str = "", start: int = 0) -> RetrievedChunk:
    key = sum(map(ord, uri))  # one id a document
    return RetrievedChunk(
        0, 0, key, uri, "", ordinal, (), None, start, start + len(body), body, len(body.split()), None, ""
    )


def cut(*spans: tuple[int, int]) -> list[RetrievedChunk]:
    """Chunks of one document, BODY, in the order given; ordinals are those of the text."""
    places = sorted(spans)
    return [chunk("crew", places.index((a, b)), BODY[a:b], a) for a, b in spans]


# ---------------------------------------------------------------- documents and chunks


@pytest.mark.parametrize(
    ("document", "uri", "same"),
    [
        ("file:///docs/crew.md", "file:///docs/crew.md", True),
        ("crew.md", "file:///docs/crew.md", True),
        ("docs/crew.md", "file:///docs/crew.md", True),
        ("/docs/crew.md", "file:///docs/crew.md", True),
        ("rew.md", "file:///docs/crew.md", False),
        ("crew", "file:///docs/crew.md", False),
        ("file:///docs/crew.md", "crew.md", False),
        ("d-1", "file:///set/corpus.jsonl#d-1", True),
        ("1", "file:///set/corpus.jsonl#d-1", False),
        ("our crew.md", "file:///docs/our%20crew.md", True),
        ("船员.md", "file:///docs/%E8%88%B9%E5%91%98.md", True),
    ],
)
def test_a_document_is_its_uri_or_the_end_of_it(document: str, uri: str, same: bool) -> None:
    assert names(document, uri) is same
    assert missing_documents([Gold(document), Gold(document, 3), Gold(text="x")], [uri]) == ([] if same else [document])


def test_documents_are_ranked_where_gold_names_documents_only() -> None:
    found = [chunk("a", 0), chunk("a", 1), chunk("a", 2), chunk("b", 5), chunk("a", 3), chunk("c", 0)]
    assert match([Gold("b"), Gold("c"), Gold("d")], found) == Matches((2, 3, None), (False, True, True))


def test_chunks_are_ranked_where_gold_names_a_chunk() -> None:
    found = [chunk("a", 0), chunk("a", 1), chunk("b", 5), chunk("a", 0), chunk("b", 6)]
    assert match([Gold("a", 1), Gold("b"), Gold("a", 7)], found) == Matches((2, 3, None), (False, True, True, True))


def test_with_one_chunk_a_document_ranks_are_places_among_distinct_uris() -> None:
    found = [chunk("d"), chunk("b"), chunk("a"), chunk("c")]
    uris = [c.uri for c in found]
    assert match([Gold("a"), Gold("d")], found).ranks == (uris.index("a") + 1, uris.index("d") + 1)
    assert match([Gold("a", 0), Gold("d", 0)], found).ranks == (3, 1)


def test_nothing_found_and_no_gold() -> None:
    assert match([Gold("a"), Gold(text="b")], []) == Matches((None, None), ())
    assert match([], [chunk("a")]) == Matches((), (False,))


# ---------------------------------------------------------------- evidence


@pytest.mark.parametrize(
    "text", ["Birch owns the Cedar", "spring. Birch  OWNS\nthe cedar,", "ｂｉｒｃｈ　owns", "spring.Birch"]
)
def test_white_space_case_and_width_make_no_difference(text: str) -> None:
    assert match([Gold(text=text)], [chunk("x", body="Dogwood."), chunk("crew", body=BODY)]).ranks == (2,)


def test_chinese_evidence_across_a_line_end() -> None:
    body = "宁波枢纽的截单时间是每天\n下午四点半，Ｂ区除外。"
    assert match([Gold(text="每天下午四点半，b区除外")], [chunk("x", body=body)]).ranks == (1,)


def test_evidence_is_sought_in_the_document_and_chunk_that_are_named() -> None:
    found = [chunk("a", 0, "It is so."), chunk("a", 1, "It is so."), chunk("b", 0, "It is so.")]
    gold = [Gold("b", None, "It is so."), Gold("a", 1, "It is so."), Gold("c", None, "It is so.")]
    assert match(gold, found).ranks == (3, 2, None)
    assert match(gold[:1], found).relevant == (False, False, True)
    assert match([Gold(text="It is so.")], found) == Matches((1,), (True, True, True))


def test_evidence_across_chunks_is_found_where_they_hold_it_together() -> None:
    text = Gold(text="Birch owns the Cedar, a ship.")
    before, after = cut((0, 40), (40, len(BODY)))
    assert match([text], [before]) == Matches((None,), (False,))
    assert match([text], [after]) == Matches((None,), (False,))
    assert match([text], [after, chunk("x", body="Fir."), before]) == Matches((3,), (True, False, True))


def test_chunks_that_overlap_make_one_stretch_and_three_may_be_needed() -> None:
    text = Gold(text="Alder hired Birch in spring. Birch owns the Cedar")
    found = cut((20, 40), (0, 25), (60, len(BODY)), (33, 55))
    assert match([text], found) == Matches((4,), (True, True, False, True))


def test_chunks_with_a_gap_between_them_hold_nothing_together() -> None:
    text = Gold(text="Birch owns the Cedar, a ship.")
    assert match([text], cut((0, 40), (41, len(BODY)))).ranks == (None,)


def test_chunks_of_different_documents_hold_nothing_together() -> None:
    found = [chunk("a", 0, BODY[:40], 0), chunk("b", 1, BODY[40:], 40)]
    assert match([Gold(text="Birch owns the Cedar, a ship.")], found).ranks == (None,)


def test_a_later_chunk_that_holds_all_by_itself_is_relevant_too() -> None:
    found = cut((0, 40), (40, 60), (10, len(BODY)))
    assert match([Gold(text="owns the Cedar, a ship")], found) == Matches((2,), (True, True, True))


@given(st.lists(st.integers(1, len(BODY) - 1), max_size=6, unique=True), st.randoms(use_true_random=False))
def test_all_chunks_of_a_text_hold_all_of_it_in_any_order(ends: list[int], random: object) -> None:
    bounds = [0, *sorted(ends), len(BODY)]
    found = cut(*pairwise(bounds))
    random.shuffle(found)  # type: ignore[attr-defined]
    matches = match([Gold(text=BODY)], found)
    assert matches == Matches((len(found),), (True,) * len(found))
