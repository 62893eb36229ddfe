"""A model's extraction answer, in whatever form it came, as an Extraction; what was mended or dropped is counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgrag.errors import UnreadableAnswerError
from pgrag.extraction.llm.collect import CUT_OFF, MALFORMED, Collector
from pgrag.extraction.llm.delimited import read_delimited, says_nothing_found
from pgrag.llm.repair import JsonValue, Mended, mend
from pgrag.text.folding import name_key
from pgrag.types import ExtractedFact, Extraction

CUT = frozenset({"length", "max_tokens", "content_filter"})  # finish reasons of an answer that is not whole
MAX_DEPTH = 5

_ENTITIES = ("entities", "entity", "nodes", "实体")
_RELATIONS = ("relations", "relationships", "relation", "relationship", "edges", "triples", "关系")
_CONTENT = ("keywords", "content_keywords", "high_level_keywords", "themes", "关键词")
_NAME = ("name", "entity_name", "entity", "title", "id", "名称", "实体", "实体名称")
_TYPE = ("type", "entity_type", "category", "label", "类型", "实体类型")
_DESCRIPTION = ("description", "entity_description", "relationship_description", "desc", "summary", "描述", "说明")
_SOURCE = ("source", "source_entity", "src", "src_id", "subject", "head", "from", "entity1", "源实体", "源", "主体")
_TARGET = ("target", "target_entity", "tgt", "tgt_id", "object", "tail", "to", "entity2", "目标实体", "目标", "客体")
_KEYWORDS = (
    "keywords",
    "relationship_keywords",
    "keyword",
    "relation",
    "relationship",
    "predicate",
    "type",
    "关键词",
    "关系",
)
_STRENGTH = ("strength", "relationship_strength", "weight", "score", "强度")


@dataclass(frozen=True, slots=True)
class ParsedExtraction:
    """What one answer holds. `mended` counts by reason; `complete` is False when the answer was cut off."""

    extraction: Extraction
    mended: Mapping[str, int]
    complete: bool


def parse_extraction(answer: str, *, finish_reason: str | None, names_in_prompt: frozenset[str]) -> ParsedExtraction:
    """Reads the JSON that the prompt asks for, LightRAG's JSON, and its delimited records, new and old, broken too.

    `names_in_prompt` are normal forms (`name_key`) of names of the prompt's examples that the chunk does not hold: they
    are dropped. A model that finds nothing and says so, by empty lists or by the completion mark alone, gives an empty
    extraction. Raises UnreadableAnswerError when there is no usable record: nothing, only thinking, or only prose.
    """
    truncated = finish_reason in CUT
    mended = mend(answer, truncated=truncated)
    collector = Collector(names_in_prompt)
    said_none = _read_json(mended.values, collector)
    cut = truncated or any(found.cut for found in mended.values)
    reasons = Counter(mended.mended)
    if not collector.records:
        delimited = Collector(names_in_prompt)
        records_cut = read_delimited(mended.text, delimited, truncated=truncated)
        if delimited.records or not said_none:
            reasons = Counter({k: n for k, n in reasons.items() if "JSON" not in k})
            collector, cut = delimited, truncated or records_cut
    extraction = collector.extraction()
    reasons += collector.mended
    if not collector.records and not (_is_empty(mended, extraction, said_none) and not cut):
        raise UnreadableAnswerError(_why_nothing(answer, mended, finish_reason, collector.dropped))
    return ParsedExtraction(extraction, dict(reasons), not cut)


def merge_gleaned(first: Extraction, second: Extraction) -> Extraction:
    """Both answers of one chunk: what is new is added; of one pair the facts with the longest text win.

    Several mentions of an entity are made one when they are assembled.
    """
    pairs = _by_pair(first.facts)
    for pair, facts in _by_pair(second.facts).items():
        known_facts = pairs.get(pair)
        if known_facts is None or max(len(f.text) for f in facts) > max(len(f.text) for f in known_facts):
            pairs[pair] = facts
    dropped = Counter(first.dropped) + Counter(second.dropped)
    keywords = tuple(dict.fromkeys((*first.keywords, *second.keywords)))
    mentions = tuple(dict.fromkeys((*first.mentions, *second.mentions)))
    return Extraction(mentions, tuple(f for facts in pairs.values() for f in facts), keywords, dict(dropped))


def _by_pair(facts: Sequence[ExtractedFact]) -> dict[frozenset[str], list[ExtractedFact]]:
    """The facts by the entities they tie together, in either direction."""
    pairs: dict[frozenset[str], list[ExtractedFact]] = {}
    for fact in facts:
        pairs.setdefault(frozenset(name_key(entity.name) for entity in fact.entities), []).append(fact)
    return pairs


# ---------------------------------------------------------------- JSON


def _read_json(values: Sequence[JsonValue], collector: Collector) -> bool:
    """Collects the records of the values; True if one of them is an answer by form, empty or not."""
    answers = [_walk(found.value, found.cut, collector, 0) for found in values]
    return any(answers)


def _walk(value: Any, cut: bool, collector: Collector, depth: int) -> bool:
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, list):
        answers = [_walk(item, cut, collector, depth + 1) for item in value if isinstance(item, dict | list)]
        return any(answers)
    if not isinstance(value, dict):
        return False
    fields = _fields(value)
    if _is_record(fields):
        if cut and depth == 0:  # a record on a line of its own: nothing tells which of its fields are whole
            collector.dropped[CUT_OFF] += 1
        else:
            _record(fields, collector)
        return False
    entities, relations = (_first(fields, names) for names in (_ENTITIES, _RELATIONS))
    if isinstance(entities, list | dict) or isinstance(relations, list | dict):
        for item in _items(entities):
            _entity(item, collector)
        for item in _items(relations):
            _relation(item, collector)
        collector.content_keywords(_first(fields, _CONTENT) or ())
        return True
    answers = [_walk(item, cut, collector, depth + 1) for item in value.values() if isinstance(item, dict | list)]
    return any(answers)


def _fields(value: Mapping[Any, Any]) -> dict[str, Any]:
    """With keys as names of fields: `Source Entity` is source_entity."""
    return {re.sub(r"[\s-]+", "_", str(key)[:60].strip().casefold()): item for key, item in value.items()}


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _is_record(fields: Mapping[str, Any]) -> bool:
    if _is_text(_first(fields, _SOURCE)) and _is_text(_first(fields, _TARGET)):
        return True
    return _is_text(_first(fields, _NAME)) and _is_text(_first(fields, (*_TYPE, *_DESCRIPTION)))


def _is_text(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _items(value: Any) -> list[Any]:
    """The records of a list; an object is one record, or one a key."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return []
    if _is_record(_fields(value)):
        return [value]
    return [
        {"name": key, **item} if isinstance(item, dict) else {"name": key, "description": item}
        for key, item in value.items()
    ]


def _record(fields: Mapping[str, Any], collector: Collector) -> None:
    if _first(fields, _SOURCE) is not None and _first(fields, _TARGET) is not None:
        _relation(fields, collector)
    else:
        _entity(fields, collector)


def _entity(item: Any, collector: Collector) -> None:
    if isinstance(item, str | int | float):
        collector.entity(item)
    elif isinstance(item, dict):
        fields = _fields(item)
        collector.entity(_first(fields, _NAME), _first(fields, _TYPE), _first(fields, _DESCRIPTION))
    else:
        collector.dropped[MALFORMED] += 1


def _relation(item: Any, collector: Collector) -> None:
    if isinstance(item, list) and len(item) >= 3:  # a bare triple
        collector.relation(item[0], item[2], item[1])
        return
    if not isinstance(item, dict):
        collector.dropped[MALFORMED] += 1
        return
    fields = _fields(item)
    keywords, strength = _first(fields, _KEYWORDS), _first(fields, _STRENGTH)
    collector.relation(
        _first(fields, _SOURCE), _first(fields, _TARGET), keywords or (), _first(fields, _DESCRIPTION), strength
    )


# ---------------------------------------------------------------- nothing usable


def _is_empty(mended: Mended, extraction: Extraction, said_none: bool) -> bool:
    """Whether the model says that there is nothing: empty lists, themes alone, or the mark with prose at most."""
    if extraction.dropped:
        return False
    return said_none or bool(extraction.keywords) or says_nothing_found(mended.text)


def _why_nothing(answer: str, mended: Mended, finish_reason: str | None, dropped: Mapping[str, int]) -> str:
    if not mended.text:
        what = "the model's answer " + ("holds only thinking" if "think block" in mended.mended else "is empty")
    elif dropped:
        what = "no record of the model's answer is usable: " + ", ".join(
            f"{n} {reason}" for reason, n in dropped.items()
        )
    else:
        what = f"the model's answer holds no record; it begins {' '.join(mended.text.split())[:80]!r}"
    if finish_reason in CUT:
        what += f" (it was cut off: {finish_reason}); allow longer answers or use smaller chunks"
    return what
