"""Extraction answers in every form that models give them."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrag.errors import ExtractionError
from pgrag.extraction.assemble import assemble
from pgrag.extraction.llm.parse import ParsedExtraction, merge_gleaned, parse_extraction
from pgrag.text.tokens import Tokenizer
from pgrag.types import ExtractedFact, ExtractedMention, Extraction, FactEntity, Role

VAEL = ("Odrun Vael", "person", "Odrun Vael is a captain.")
OWL = ("Night Owl", "artifact", "The Night Owl is a ferry (built 1999).")
COMMANDS = ("Odrun Vael", "Night Owl", ("command", "seafaring"), 8.0, "Odrun Vael commands the Night Owl.")


def parse(
    answer: str, finish_reason: str | None = "stop", names_in_prompt: frozenset[str] = frozenset()
) -> ParsedExtraction:
    return parse_extraction(answer, finish_reason=finish_reason, names_in_prompt=names_in_prompt)


def entities(parsed: ParsedExtraction) -> list[tuple[str, str, str]]:
    return [(m.name, m.type, m.description) for m in parsed.extraction.mentions]


def relations(parsed: ParsedExtraction) -> list[tuple[Any, ...]]:
    found = []
    for fact in parsed.extraction.facts:
        assert [e.role for e in fact.entities] == [Role.SOURCE, Role.TARGET]
        found.append((*(e.name for e in fact.entities), fact.keywords, fact.strength, fact.text))
    return found


def names(parsed: ParsedExtraction) -> list[str]:
    return [m.name for m in parsed.extraction.mentions]


# ---------------------------------------------------------------- JSON

RECORDS: dict[str, Any] = {
    "entities": [dict(zip(("name", "type", "description"), e, strict=True)) for e in (VAEL, OWL)],
    "relations": [
        {
            "source": "Odrun Vael",
            "target": "Night Owl",
            "keywords": ["command", "seafaring"],
            "strength": 8,
            "description": "Odrun Vael commands the Night Owl.",
        }
    ],
    "keywords": ["ferries", "crew"],
}
RELATIONS = {"relations": RECORDS["relations"]}
LIGHTRAG = {
    "entities": RECORDS["entities"],
    "relationships": [{**RECORDS["relations"][0], "keywords": "command, seafaring"}],
}
LOOSE = {
    "Entities": [{"entity_name": n, "Entity Type": t, "entity_description": d} for n, t, d in (VAEL, OWL)],
    "Relationships": [
        {
            "source_entity": "Odrun Vael",
            "target_entity": "Night Owl",
            "relationship_strength": "8/10",
            "relationship_keywords": "command；seafaring",
            "relationship_description": COMMANDS[4],
        }
    ],
}


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(RECORDS),
        json.dumps(LIGHTRAG),
        json.dumps(LOOSE),
        json.dumps({"result": {"graph": RECORDS}}),
        json.dumps([*RECORDS["entities"], *RECORDS["relations"]]),
        "\n".join(map(json.dumps, [*RECORDS["entities"], *RECORDS["relations"]])),
        json.dumps({"entities": {n: {"type": t, "description": d} for n, t, d in (VAEL, OWL)}, **RELATIONS}),
        f"<think>Is {{it}} a ferry?</think>\nHere you are:\n```json\n{json.dumps(RECORDS, indent=2)}\n```\nDone.",
        json.dumps(RECORDS).replace('"', "'"),
        json.dumps(RECORDS).replace('"type"', "type").replace("}, {", "},, {"),
        "```\n" + json.dumps({"entities": RECORDS["entities"]}) + "\n```\n```\n" + json.dumps(RELATIONS) + "\n```",
    ],
)
def test_json_in_many_forms_gives_the_same_records(answer: str) -> None:
    parsed = parse(answer)
    assert entities(parsed) == [VAEL, OWL]
    assert relations(parsed) == [COMMANDS]
    assert parsed.complete
    assert not parsed.extraction.dropped


def test_content_keywords_come_along() -> None:
    assert parse(json.dumps(RECORDS)).extraction.keywords == ("ferries", "crew")
    assert parse(json.dumps({**RECORDS, "keywords": "ferries、crew"})).extraction.keywords == ("ferries", "crew")


@pytest.mark.parametrize(
    "name", ["42", "1.2.3", "TCP/IP", "O'Hara", 'List "big \\ plan"', "x'); drop table chunk; --", "C++"]
)
def test_names_and_types_stay_as_written(name: str) -> None:
    parsed = parse(json.dumps({"entities": [{"name": name, "type": "law/rule's", "description": "costs $$$ (RM200)"}]}))
    assert entities(parsed) == [(name, "law/rule's", "costs $$$ (RM200)")]


def test_numbers_are_names_and_strange_values_are_counted() -> None:
    answer = {
        "entities": [
            {"name": 42, "type": ["data", "x"], "description": ["One.", "Two."]},
            "Tessaly",
            None,
            [1],
            {"name": None},
            {"name": "  "},
            {"name": {"a": 1}},
        ]
    }
    parsed = parse(json.dumps(answer))
    assert entities(parsed) == [("42", "data", "One. Two."), ("Tessaly", "", "")]
    assert parsed.extraction.dropped == {"malformed record": 2, "empty name": 3}


@pytest.mark.parametrize(
    ("written", "strength"),
    [
        ("8", 8.0),
        ('"8"', 8.0),
        ('"8/10"', 8.0),
        ("0.5", 0.5),
        ("99", 10.0),
        ("-3", 0.0),
        ('"-3"', 0.0),
        ("NaN", 1.0),
        ("Infinity", 10.0),
        ("1e999", 10.0),
        ("true", 1.0),
        ("null", 1.0),
        ('"high"', 1.0),
        ("[]", 1.0),
        ("9" * 400, 10.0),
    ],
)
def test_strength_is_a_number_from_0_to_10(written: str, strength: float) -> None:
    (fact,) = parse(
        f'{{"relations": [{{"source": "A1", "target": "B2", "description": "d", "strength": {written}}}]}}'
    ).extraction.facts
    assert fact.strength == strength
    assert math.isfinite(fact.strength)


def test_a_relation_without_description_says_its_keywords_and_one_without_both_goes() -> None:
    answer = {
        "relations": [{"source": "A1", "target": "B2", "keywords": "owns, runs"}, {"source": "A1", "target": "C3"}]
    }
    parsed = parse(json.dumps(answer))
    assert relations(parsed) == [("A1", "B2", ("owns", "runs"), 1.0, "A1 owns, runs B2")]
    assert parsed.extraction.dropped == {"missing fields": 1}


def test_loops_long_names_and_repeats_are_dropped_and_counted() -> None:
    answer = {
        "entities": [
            {"name": "Acme", "description": "A firm."},
            {"name": "ACME", "description": "A firm."},
            {"name": "n" * 513},
        ],
        "relations": [
            {"source": "Acme", "target": "ＡＣＭＥ ", "description": "is itself"},
            {"source": "Acme", "target": "Tessaly", "description": "is in"},
            {"source": "Tessaly", "target": "acme", "description": "is in"},
            {"source": "n" * 300, "target": "m" * 300, "description": "long but allowed"},
            {"source": "Acme", "target": "n" * 5000, "description": "too long"},
        ],
    }
    parsed = parse(json.dumps(answer))
    assert names(parsed) == ["Acme"]
    assert [f.text for f in parsed.extraction.facts] == ["is in", "long but allowed"]
    assert parsed.extraction.dropped == {"repeated record": 2, "self loop": 1, "name too long": 2}


def test_names_of_the_prompts_examples_do_not_leak() -> None:
    answer = json.dumps({**RECORDS, "keywords": ["ferries", "ferry grounding"]})
    parsed = parse(answer, names_in_prompt=frozenset({"night owl", "ferry grounding"}))
    assert names(parsed) == ["Odrun Vael"]
    assert parsed.extraction.facts == ()
    assert parsed.extraction.keywords == ("ferries",)
    assert parsed.extraction.dropped == {"from the prompt's example": 3}
    with pytest.raises(ExtractionError, match="2 from the prompt's example"):
        parse(
            '("entity"<|>"Odrun Vael"<|>"person"<|>"x")##\n("entity"<|>"NIGHT owl"<|>"x"<|>"y")',
            names_in_prompt=frozenset({"odrun vael", "night owl"}),
        )


# ---------------------------------------------------------------- delimited records

NEW = """entity<|#|>Odrun Vael<|#|>person<|#|>Odrun Vael is a captain.
entity<|#|>Night Owl<|#|>artifact<|#|>The Night Owl is a ferry (built 1999).
relation<|#|>Odrun Vael<|#|>Night Owl<|#|>command, seafaring<|#|>Odrun Vael commands the Night Owl.
<|COMPLETE|>"""
OLD = """("entity"<|>"Odrun Vael"<|>"person"<|>"Odrun Vael is a captain.")##
("entity"<|>"Night Owl"<|>"artifact"<|>"The Night Owl is a ferry (built 1999).")##
("relationship"<|>"Odrun Vael"<|>"Night Owl"<|>"Odrun Vael commands the Night Owl."<|>"command, seafaring"<|>8)##
("content_keywords"<|>"ferries, crew")<|COMPLETE|>"""


@pytest.mark.parametrize(
    "answer",
    [
        NEW,
        NEW.removesuffix("<|COMPLETE|>"),
        NEW.replace("\n", " "),
        NEW.replace("<|#|>", "<|#>"),
        NEW.replace("<|#|>", "<#|>"),
        NEW.replace("<|#|>", "|#|"),
        NEW.replace("<|#|>", "<|##|>"),
        NEW.replace("<|#|>", "<#>"),
        NEW.replace("<|#|>", " <|#|> "),
        NEW.replace("<|#|>", "＜｜＃｜＞"),
        NEW.replace("<|#|>", "&lt;|#|&gt;"),
        NEW.replace("<|#|>", "<\\|#\\|>"),
        NEW.replace("Vael<|#|>", "Vael<|#>", 1),
        NEW.replace("relation<", "relationship<"),
        NEW.replace("relation<", "**Relation**<"),
        NEW.replace("entity<", "- entity<").replace("relation<", "3. relation<"),
        NEW.replace("entity<", "(entity<").replace(".\n", ".)\n"),
        NEW.replace("command, seafaring", "command，seafaring"),
        NEW.replace("<|COMPLETE|>", "That is all I found.\n<|complete|>"),
        "```\n" + NEW.replace("\n<|COMPLETE|>", "\n```\n<|COMPLETE|>"),
        "<think>\nentity<|#|>Draft<|#|>x<|#|>y\n</think>\nEntities:\n\n" + NEW,
        NEW.replace("person<|#|>", "person\n<|#|>"),
    ],
)
def test_new_form_with_everything_that_goes_wrong(answer: str) -> None:
    parsed = parse(answer, finish_reason=None)
    assert entities(parsed) == [VAEL, OWL]
    assert relations(parsed) == [(*COMMANDS[:3], 1.0, COMMANDS[4])]
    assert parsed.complete
    assert not parsed.extraction.dropped


@pytest.mark.parametrize(
    "answer",
    [
        OLD,
        OLD.removesuffix("<|COMPLETE|>"),
        OLD.replace("##\n", "##"),
        OLD.replace("##\n", ""),
        OLD.replace("##\n", "\n"),
        OLD.replace("##\n", "\n##\n"),
        OLD.replace('"<|>', '"|>'),
        OLD.replace("<|>", "<|>|>"),
        OLD.replace("<|>", "|"),
        OLD.replace("<|>8", "<|8"),
        OLD.replace("<|>8", "8"),
        OLD.replace("<|>8", '<|>"8"'),
        OLD.replace('"', ""),
        OLD.replace('"', "'"),
        OLD.replace('("', "(“").replace('"<', "”<").replace('>"', ">“").replace('")', "”)"),
        OLD.replace('("', '（"').replace(")##", "）##"),
        OLD.replace(")##", "##"),
        OLD.replace('("', '"'),
        OLD.replace("<|>", ", "),
        OLD.replace('("entity"', '1. ("entity"').replace('("rel', '* ("rel'),
        'Steps: write ("entity"<|><entity_name><|><entity_type><|><entity_description>)\n\n' + OLD,
        OLD + "\n\nI hope this helps (really).",
        OLD.replace('artifact"<|>', 'artifact"<|>').replace('1999).")', '1999)."<|>7)'),
    ],
)
def test_old_form_with_everything_that_goes_wrong(answer: str) -> None:
    parsed = parse(answer, finish_reason=None)
    assert entities(parsed) == [VAEL, OWL]
    assert relations(parsed) == [COMMANDS]
    assert parsed.extraction.keywords == ("ferries", "crew")
    assert parsed.complete
    assert set(parsed.extraction.dropped) <= {"template of the format"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ('("relationship"<|>"A1"<|>"B2"<|>"A1 owns B2."<|>9)', ("A1", "B2", (), 9.0, "A1 owns B2.")),
        ('("relationship"<|>"A1"<|>"B2"<|>"A1 owns B2.")', ("A1", "B2", (), 1.0, "A1 owns B2.")),
        ('("relationship"<|>"A1"<|>"B2"<|>"A1 owns B2."<|>"owning")', ("A1", "B2", ("owning",), 1.0, "A1 owns B2.")),
        (
            '("relationship"<|>"A1"<|>"B2"<|>"owning"<|>"A1 owns B2."<|>0.5)',
            ("A1", "B2", ("owning",), 0.5, "A1 owns B2."),
        ),
        ("relation<|#|>A1<|#|>B2<|#|>ownership<|#|>A1 owns B2", ("A1", "B2", ("ownership",), 1.0, "A1 owns B2")),
        ("relation<|#|>A1<|#|>B2<|#|>ownership<|#|>A1 owns B2<|#|>7", ("A1", "B2", ("ownership",), 7.0, "A1 owns B2")),
        ("relation<|#|>A1<|#|>B2<|#|>year<|#|>2023", ("A1", "B2", ("year",), 1.0, "2023")),
        ("relation<|#|>A1<|#|>B2<|#|>ownership", ("A1", "B2", ("ownership",), 1.0, "A1 ownership B2")),
        ("relation<|#|>A1<|#|>B2<|#|>A1 owns B2.", ("A1", "B2", (), 1.0, "A1 owns B2.")),
    ],
)
def test_fields_of_a_relation_are_told_apart(record: str, expected: tuple[Any, ...]) -> None:
    assert relations(parse(record + "\n<|COMPLETE|>")) == [expected]


def test_a_word_that_is_a_tag_may_be_a_name_a_type_or_text() -> None:
    answer = (
        "entity<|#|>entity<|#|>concept<|#|>An entity is a thing.\n"
        "entity<|#|>Legal entity<|#|>relation<|#|>A legal entity has a relation to law.\n"
        "relation<|#|>entity<|#|>Legal entity<|#|>kind<|#|>A legal entity is an entity.\n<|COMPLETE|>"
    )
    parsed = parse(answer)
    assert entities(parsed) == [
        ("entity", "concept", "An entity is a thing."),
        ("Legal entity", "relation", "A legal entity has a relation to law."),
    ]
    assert [f.text for f in parsed.extraction.facts] == ["A legal entity is an entity."]


def test_signs_of_delimiters_in_a_text_stay() -> None:
    answer = "entity<|#|>#Owl||2<|#|>data<|#|>Use a || b, x |> f and #Owl.\n<|COMPLETE|>"
    assert entities(parse(answer)) == [("#Owl||2", "data", "Use a || b, x |> f and #Owl.")]


def test_labels_in_a_record_are_read_and_code_is_not() -> None:
    answer = (
        '("entity"<|>"owl" - entity_name: Night Owl, entity_type: artifact, entity_description: a ferry)\n<|COMPLETE|>'
    )
    assert entities(parse(answer)) == [("Night Owl", "artifact", "a ferry")]
    with pytest.raises(ExtractionError, match="template of the format"):
        parse(
            '```python\nprint(f\'("entity"<|>"{name}"<|>"{kind}"<|>"{text}")\')\nx = ("entity"<|>entity_name<|>x)\n```'
        )


# ---------------------------------------------------------------- cut off


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(RECORDS)[: json.dumps(RECORDS).index("a ferry")],
        NEW[: NEW.index("a ferry")],
        NEW[: NEW.index("artifact")],
        OLD[: OLD.index("a ferry")],
        OLD[: OLD.index("artifact") + 3],
    ],
)
def test_of_an_answer_cut_off_whole_records_are_kept(answer: str) -> None:
    parsed = parse(answer, finish_reason="length")
    assert entities(parsed) == [VAEL]
    assert parsed.extraction.facts == ()
    assert not parsed.complete


def test_a_cut_is_seen_without_being_told() -> None:
    assert not parse(OLD[: OLD.index("a ferry")], finish_reason=None).complete
    assert not parse(json.dumps(RECORDS)[:-40], finish_reason=None).complete
    assert parse(OLD[: OLD.index("a ferry")], finish_reason=None).extraction.dropped == {"cut off": 1}


def test_an_answer_that_ends_with_a_whole_record_loses_none_but_counts_as_cut() -> None:
    parsed = parse(OLD[: OLD.index('("content')], finish_reason="length")
    assert len(parsed.extraction.facts) == 1
    assert not parsed.complete


# ---------------------------------------------------------------- nothing


@pytest.mark.parametrize(
    "answer",
    [
        '{"entities": [], "relations": []}',
        '```json\n{"entities": [], "relationships": [], "keywords": []}\n```',
        "<|COMPLETE|>",
        "<think>nothing here</think>\n<|COMPLETE|>",
        "The text is a table of contents; there is nothing to extract.\n\nOutput: <|COMPLETE|>",
    ],
)
def test_a_model_may_find_nothing(answer: str) -> None:
    assert parse(answer) == ParsedExtraction(Extraction(dropped={}), parse(answer).mended, True)
    with pytest.raises(ExtractionError, match="cut off: length"):
        parse('{"entities": [], "relations": [', "length")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "answer is empty"),
        (" \n\x0c", "answer is empty"),
        ("<think>Let me see: entity<|#|>A<|#|>b<|#|>c\n</think>", "only thinking"),
        ("<think>Let me see", "only thinking"),
        ("```\n```", "answer is empty"),
        ("I cannot help with that.", "no record; it begins 'I cannot help with that.'"),
        ("{}", "no record"),
        ("[]", "no record"),
        ('{"error": "rate limit"}', "no record"),
        ('("Night Owl", "Ship")\n<|COMPLETE|>', "no record"),
        ('{"entities": [{"name": "..."}]}', "1 empty name"),
    ],
)
def test_an_answer_without_records_is_an_error(answer: str, message: str) -> None:
    with pytest.raises(ExtractionError) as caught:
        parse(answer)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- gleaning


def fact(source: str, target: str, text: str, *keywords: str) -> ExtractedFact:
    return ExtractedFact(text, (FactEntity(source, Role.SOURCE), FactEntity(target, Role.TARGET)), keywords)


def test_gleaning_adds_what_is_new_and_keeps_the_longer() -> None:
    first = Extraction(
        (ExtractedMention("Acme", "", "A firm."), ExtractedMention("Tessaly", "location", "A long description.")),
        (fact("Acme", "Tessaly", "Acme is in Tessaly.", "place"), fact("Acme", "Vael", "Short.", "x")),
        ("firms",),
        {"self loop": 1},
    )
    second = Extraction(
        (
            ExtractedMention("ACME", "organization", "A firm of two."),
            ExtractedMention("Tessaly", "x", "Short."),
            ExtractedMention("Owl"),
        ),
        (
            fact("Tessaly", "acme", "Acme."),
            fact("Vael", "Acme", "Vael founded Acme."),
            fact("Owl", "Vael", "Vael has an owl."),
        ),
        ("firms", "owls"),
        {"self loop": 2, "cut off": 1},
    )
    merged = merge_gleaned(first, second)
    assembled = assemble(merged, Tokenizer())
    assert [(m.name, m.type, m.description) for m in assembled.mentions if m.key != "vael"] == [
        ("Acme", "organization", "A firm of two."),
        ("Tessaly", "location", "A long description."),
        ("Owl", "", ""),
    ]
    assert [f.text for f in merged.facts] == ["Acme is in Tessaly.", "Vael founded Acme.", "Vael has an owl."]
    assert merged.keywords == ("firms", "owls")
    assert merged.dropped == {"self loop": 3, "cut off": 1}


def test_gleaning_the_same_again_changes_nothing() -> None:
    first = parse(json.dumps(RECORDS)).extraction
    assert merge_gleaned(first, first) == first
    assert merge_gleaned(first, Extraction()) == first
    assert merge_gleaned(Extraction(), first) == first


# ---------------------------------------------------------------- hostile

PIECES = [
    *("entity", "relation", "relationship", "content_keywords", "<|#|>", "<|>", "<|", "|>", "##", "<|COMPLETE|>"),
    *("(", ")", '"', "'", "\n", " ", "Vael", "Owl", "8", ",", ".", "，", "（", "“", "\x00", "\ud800"),
    *('("entity"<|>', "entity_name: ", '{"entities": [', '{"name": "A"}', "]}", "<think>", "</think>", "```"),
]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), st.sampled_from([None, "stop", "length", "odd"]))
def test_only_extraction_errors_are_raised(answer: str, finish_reason: str | None) -> None:
    try:
        parsed = parse(answer, finish_reason)
    except ExtractionError:
        return
    for mention in parsed.extraction.mentions:
        assert 0 < len(mention.name) <= 512
    for found in parsed.extraction.facts:
        assert found.text
        assert 0 <= found.strength <= 10
    assert merge_gleaned(parsed.extraction, parsed.extraction).keywords == parsed.extraction.keywords


WORDS = st.text(st.characters(whitelist_categories=("Lu", "Ll", "Lo", "Nd")), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=6, unique_by=lambda r: r[0].casefold()), st.booleans()
)
def test_records_written_right_are_read_right(records: list[tuple[str, str, str]], old: bool) -> None:
    records = [(f"N{i} {n}", f"t{t}", f"D {d}.") for i, (n, t, d) in enumerate(records)]
    lines = [
        f'("entity"<|>"{n}"<|>"{t}"<|>"{d}")##' if old else f"entity<|#|>{n}<|#|>{t}<|#|>{d}" for n, t, d in records
    ]
    assert entities(parse("\n".join([*lines, "<|COMPLETE|>"]))) == records
    answer = {"entities": [{"name": n, "type": t, "description": d} for n, t, d in records]}
    assert entities(parse(json.dumps(answer))) == records


@pytest.mark.parametrize(
    "piece",
    ["[", '{"a":', '("entity"<|>', "entity<|#|>", "entity<|#|>a<|#|>b<|#|>c\n", "<|", "(", "| ", "entity_name: "],
)
def test_a_megabyte_takes_seconds_at_most(piece: str) -> None:
    started = time.perf_counter()
    with contextlib.suppress(ExtractionError):
        parse(piece * (1_000_000 // len(piece)))
    assert time.perf_counter() - started < 15  # one to three seconds when nothing else runs
