"""From an extraction to records: keys, one mention a key, facts whose entities all have a source link."""

from __future__ import annotations

import math

import pytest

from pgrag.extraction.assemble import MAX_STRENGTH, assemble
from pgrag.text.tokens import Tokenizer
from pgrag.types import ExtractedFact, ExtractedMention, Extraction, FactEntity, Role

TOKENIZER = Tokenizer()
S, T, N = Role.SOURCE, Role.TARGET, Role.NAMED


def fact(text: str, *entities: tuple[str, Role], strength: float = 1.0) -> ExtractedFact:
    return ExtractedFact(text, tuple(FactEntity(name, role) for name, role in entities), strength=strength)


def test_an_empty_extraction_gives_nothing() -> None:
    made = assemble(Extraction(), TOKENIZER)
    assert (made.mentions, made.facts, made.keywords, dict(made.dropped)) == ((), (), (), {})


def test_spellings_become_one_mention_with_the_longer_description_and_the_first_type() -> None:
    given = [
        ExtractedMention("ACME", "", "A firm."),
        ExtractedMention("acme", "organisation", "Short."),
        ExtractedMention("the Acme", "person", "A firm in Varnholm."),
    ]
    [mention] = assemble(Extraction(tuple(given)), TOKENIZER).mentions
    assert (mention.key, mention.name, mention.type) == ("acme", "ACME", "organisation")
    assert mention.description == "A firm in Varnholm."
    assert mention.tokens == TOKENIZER.count("A firm in Varnholm.")


def test_an_entity_that_only_a_fact_names_is_mentioned_too() -> None:
    made = assemble(
        Extraction((ExtractedMention("Alder", "tree"),), (fact("Alder sees Birch.", ("alder", S), ("Birch", T)),)),
        TOKENIZER,
    )
    assert [(m.key, m.name, m.type, m.tokens) for m in made.mentions] == [
        ("alder", "Alder", "tree", 0),
        ("birch", "Birch", "", 0),
    ]
    [found] = made.facts
    assert found.entities == (("alder", "source"), ("birch", "target"))
    assert found.tokens == TOKENIZER.count("Alder sees Birch.")


def test_a_second_source_or_target_is_only_named_and_nobody_is_named_twice() -> None:
    ends = (("A1", S), ("B1", T), ("C1", S), ("D1", T), ("A1", N), ("E1", N), ("e1", N))
    [found] = assemble(Extraction(facts=(fact("x", *ends),)), TOKENIZER).facts
    assert found.entities == (("a1", "source"), ("b1", "target"), ("c1", "named"), ("d1", "named"), ("e1", "named"))


def test_a_self_loop_keeps_both_ends() -> None:
    [found] = assemble(Extraction(facts=(fact("x", ("A1", S), ("a1", T)),)), TOKENIZER).facts
    assert found.entities == (("a1", "source"), ("a1", "target"))


def test_what_cannot_be_used_is_dropped_and_counted() -> None:
    given = Extraction(
        (ExtractedMention("x" * 513), ExtractedMention("...", "", "no name"), ExtractedMention("y" * 512)),
        (fact(" \n\0", ("A1", S)), fact("stays", ("z" * 5000, S), ("B1", T), ("", N))),
        dropped={"too many": 2, "empty name": 1},
    )
    made = assemble(given, TOKENIZER)
    assert dict(made.dropped) == {"too many": 2, "empty name": 3, "name too long": 2, "fact without a text": 1}
    assert [m.key for m in made.mentions] == ["y" * 512, "b1"]
    assert [(f.text, f.entities) for f in made.facts] == [("stays", (("b1", "target"),))]
    assert dict(given.dropped) == {"too many": 2, "empty name": 1}, "the extraction itself is not changed"


def test_texts_are_cleaned_and_keywords_are_distinct() -> None:
    given = Extraction(
        (ExtractedMention(" A\0lder ", " ty\0pe ", " x\ud800y "),),
        (ExtractedFact(" a\0b ", (), (" k ", "k", "\0", "l\ud800")),),
        ("one", " one ", "\0", "", "two"),
    )
    made = assemble(given, TOKENIZER)
    assert [(m.key, m.name, m.type, m.description) for m in made.mentions] == [("alder", "Alder", "type", "xy")]
    assert [(f.text, f.keywords) for f in made.facts] == [("ab", ("k", "l"))]
    assert made.keywords == ("one", "two")


@pytest.mark.parametrize(
    ("strength", "expected"),
    [(2.5, 2.5), (MAX_STRENGTH, MAX_STRENGTH), (0.0, 1.0), (-3.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1e30, 1.0)],
)
def test_a_strength_that_is_no_weight_counts_as_one(strength: float, expected: float) -> None:
    [found] = assemble(Extraction(facts=(fact("x", strength=strength),)), TOKENIZER).facts
    assert found.strength == expected
