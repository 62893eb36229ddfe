"""From what an extractor says of a chunk to what the store holds: names become keys, records without a name go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgrag.database.rows import FactRecord, MentionRecord
from pgrag.text.folding import MAX_NAME, clean, display_name, name_key
from pgrag.text.tokens import Tokenizer
from pgrag.types import ExtractedFact, Extraction, Role

MAX_STRENGTH = 100.0  # of any extractor; one by an LLM keeps to the scale of its prompt


@dataclass(frozen=True, slots=True)
class Assembled:
    """Records of one chunk, and how many were dropped by reason."""

    mentions: tuple[MentionRecord, ...]
    facts: tuple[FactRecord, ...]
    keywords: tuple[str, ...]
    dropped: Counter[str]


def assemble(extraction: Extraction, tokenizer: Tokenizer) -> Assembled:
    """One mention a key (the longer description wins), facts with keyed entities, token counts.

    An entity that only a fact names gets a mention of its own, so that every entity of a fact has a source link.
    """
    dropped: Counter[str] = Counter(extraction.dropped)
    mentions: dict[str, MentionRecord] = {}
    for mention in extraction.mentions:
        key = _key(mention.name, dropped)
        if not key:
            continue
        description, type_ = clean(mention.description).strip(), clean(mention.type).strip()
        known = mentions.setdefault(key, MentionRecord(key, display_name(mention.name), type_, description, 0))
        longer = max(known.description, description, key=len)
        mentions[key] = replace(known, description=longer, type=known.type or type_)
    facts = [fact for f in extraction.facts if (fact := _fact(f, mentions, dropped))]
    ordered = list(mentions.values())
    mention_tokens = tokenizer.count_many([m.description for m in ordered])
    fact_tokens = tokenizer.count_many([f.text for f in facts])
    return Assembled(
        tuple(replace(m, tokens=n) for m, n in zip(ordered, mention_tokens, strict=True)),
        tuple(replace(f, tokens=n) for f, n in zip(facts, fact_tokens, strict=True)),
        _keywords(extraction.keywords),
        dropped,
    )


def _fact(fact: ExtractedFact, mentions: dict[str, MentionRecord], dropped: Counter[str]) -> FactRecord | None:
    text = clean(fact.text).strip()
    if not text:
        dropped["fact without a text"] += 1
        return None
    entities: dict[tuple[str, str], None] = {}
    taken: set[Role] = set()
    for entity in fact.entities:
        key = _key(entity.name, dropped)
        if not key:
            continue
        role = entity.role
        if role is not Role.NAMED:
            role = Role.NAMED if role in taken else role
            taken.add(entity.role)
        mentions.setdefault(key, MentionRecord(key, display_name(entity.name), "", "", 0))
        entities[key, role.value] = None
    strength = fact.strength if 0 < fact.strength <= MAX_STRENGTH else 1.0  # a NaN would spoil the sum of a relation
    parts = _without_repeats(list(entities))
    return FactRecord(text, _keywords(fact.keywords), strength, 0, parts, clean(fact.context).strip())


def _without_repeats(entities: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """An entity that is source or target need not be named as well."""
    ends = {key for key, role in entities if role != Role.NAMED.value}
    return tuple((key, role) for key, role in entities if role != Role.NAMED.value or key not in ends)


def _keywords(keywords: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(k for k in (clean(keyword).strip() for keyword in keywords) if k))


def _key(name: str, dropped: Counter[str]) -> str:
    if len(name.strip()) > MAX_NAME:
        dropped["name too long"] += 1
        return ""
    key = name_key(name)
    if not key:
        dropped["empty name"] += 1
    return key
