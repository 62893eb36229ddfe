"""The context's text: what a line is, where a passage stands, which layers are left out."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pgrag.search.context import chunk_block, chunk_place, references, render
from pgrag.text.lines import entity_line, relation_line
from pgrag.text.tokens import Tokenizer
from pgrag.types import Keywords, Mode, Retrieval, RetrievedChunk, RetrievedEntity, RetrievedRelation


def chunk(
    number: int = 1, body: str = "Alder knows Birch.\n", page: int | None = None, uri: str = "a.md"
) -> RetrievedChunk:
    return RetrievedChunk(
        number,
        number,
        7,
        uri,
        "A title",
        number - 1,
        ("A title", "Trees"),
        page,
        5,
        5 + len(body),
        body,
        9,
        0.5,
        "vector",
    )


ENTITY = RetrievedEntity(1, 1, 'Al"der', "tree", "It stands.\nIt grows.", 9, 0.9, "vector")
RELATION = RetrievedRelation(1, 1, "Alder", "Birch", ("knows",), "They met.", 2.0, 9, 0.8, "hop")


def retrieval(*, entities: bool = True, relations: bool = True, chunks: int = 2) -> Retrieval:
    return Retrieval(
        "Who?",
        Mode.MIX,
        Keywords(),
        (ENTITY,) * entities,
        (RELATION,) * relations,
        tuple(chunk(n) for n in range(1, chunks + 1)),
    )


def test_three_layers_in_their_order() -> None:
    assert render(retrieval()) == (
        "# Entities\n"
        '{"entity": "Al\\"der", "type": "tree", "description": "It stands.\\nIt grows."}\n'
        "\n# Relations\n"
        '{"entity1": "Alder", "entity2": "Birch", "description": "They met."}\n'
        "\n# Passages\n"
        "[1] a.md, characters 5-24\nA title\nTrees\nAlder knows Birch.\n\n"
        "[2] a.md, characters 5-24\nA title\nTrees\nAlder knows Birch."
    )


def test_empty_layers_are_left_out() -> None:
    assert render(retrieval(entities=False, relations=False, chunks=0)) == ""
    assert render(retrieval(entities=False, relations=False, chunks=1)).startswith("# Passages\n[1] a.md")
    assert "Relations" not in render(retrieval(relations=False))


def test_a_place_names_the_page_where_there_is_one_and_is_one_line() -> None:
    assert chunk_place(chunk(page=3)) == "a.md, page 3, characters 5-24"
    assert chunk_place(chunk(uri="a\n[9] b\tc")) == "a [9] b c, characters 5-24"
    assert chunk_block(4, chunk()).startswith("[4] a.md, characters 5-24\n")


def test_references_have_the_numbers_of_the_context() -> None:
    first, second = references([chunk(1, page=2), chunk(2)])
    assert (first.number, second.number) == (1, 2)
    assert (first.document_id, first.chunk_id, first.ordinal, first.page) == (7, 1, 0, 2)
    assert (first.uri, first.title, first.headings, first.start, first.end) == (
        "a.md",
        "A title",
        ("A title", "Trees"),
        5,
        24,
    )


text = st.text(st.characters(codec="utf-8"), max_size=60)


@given(text, text, text)
def test_a_line_is_one_line_of_json_whatever_it_says(one: str, two: str, three: str) -> None:
    for line, fields in (
        (entity_line(one, two, three), ("entity", "type", "description")),
        (relation_line(one, two, three), ("entity1", "entity2", "description")),
    ):
        assert line.endswith("}\n")
        assert line.count("\n") == 1
        assert tuple(json.loads(line).values()) == (one, two, three)
        assert tuple(json.loads(line)) == fields


TOKENIZER = Tokenizer()


@given(st.lists(st.tuples(text, text, text), max_size=6))
def test_lines_together_take_no_more_tokens_than_one_by_one(rows: list[tuple[str, str, str]]) -> None:
    lines = [entity_line(*row) for row in rows]
    assert TOKENIZER.count("".join(lines)) <= sum(map(TOKENIZER.count, lines))
