"""LightRAG's delimited records, as models really write them.

New form, one a line: `entity<|#|>name<|#|>type<|#|>description` and
`relation<|#|>source<|#|>target<|#|>keywords<|#|>description`.
Old form: `("entity"<|>"name"<|>"type"<|>"description")##`, relations with keywords after the description and a strength
at the end, `("content_keywords"<|>"a, b")`. Both end with `<|COMPLETE|>`. Delimiters, quotes, brackets, line breaks and
fields go wrong in every way; a record is read as long as its tag and its fields can be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pgrag.extraction.llm.collect import CUT_OFF, MISSING_FIELDS, TEMPLATE, Collector, as_number, is_template, unquoted

LONGEST_RECORD = 20_000  # characters

_MARK = re.compile(r"<?\s?\|\s{0,2}#?\s{0,2}complet(?:e|ed|ion)\s{0,2}#?\s{0,2}\|\s?>?", re.IGNORECASE)
_START = re.compile(
    r"(?P<open>[(（\[][ \t]{0,4})?(?P<quote>[\"'“”‘’`*]{0,3})(?<!\w)"
    r"(?P<tag>entity|entities|relation(?:ship)?s?|content[_ ]?keywords?|实体|关系|内容关键词)"
    r"[\"'“”‘’`*]{0,3}[ \t]{0,4}(?P<delimiter>[<|#>]{2,12}|\||[,，])",
    re.IGNORECASE,
)
# What may stand between the beginning of a line and a record.
_LINE_START = re.compile(r"(?:[-*+•>`\"'“#:：]|\d{1,4}[.)、．:]|[a-z_]{1,20}[.(]|[\s(\[,=+f])*", re.IGNORECASE)
_RECORD_END = re.compile(r"[)）\]][\"'`*]{0,3}[ \t.,;，；。]{0,3}(?:<\|[ \t]{0,3})?(?=##|[\r\n]|\Z|[(（][\"“'])")
_HASHES = re.compile(r"\s*#{2,}")

_STRICT = (re.compile(r"(?<![<|#>])<\|#\|>(?![<|>])"), re.compile(r"(?<![<|#>])<\|>(?![<|>])"))
_LENIENT = re.compile(r"(?=[<|#>]{2})(?:[<|#>]{0,12}\|[<|#>]{0,12}[|>]|[<|#>]{0,12}\|[<|#>]{0,12}|<#{1,3}>)")
_LOOSE = re.compile(r"[<|#>]{0,12}\|[<|#>]{0,12}")
_COMMA = re.compile(r"(?<=[\"”’])\s{0,4}[,，]\s{0,4}|\s{0,4}[,，]\s{0,4}(?=[\"“‘])")
_STRENGTH_GLUED = re.compile(r"(.*[\"”’])[\s,，<|#>]{0,8}(\d{1,2}(?:\.\d{1,6})?)\s{0,4}", re.DOTALL)
_LABELLED = re.compile(
    r"entity[_ ]name\W{1,4}(?P<name>.{1,512}?)\W{1,4}entity[_ ]type\W{1,4}(?P<type>.{1,100}?)\W{1,4}"
    r"entity[_ ]description\W{1,4}(?P<description>.*)",
    re.IGNORECASE | re.DOTALL,
)
_SENTENCE_END = tuple(".。!！?？")
_WIDE = str.maketrans("＜｜＃＞", "<|#>")


@dataclass(frozen=True, slots=True)
class _Segment:
    """One record as written: its tag, what follows it, and whether anything shows that it ends there."""

    tag: str
    body: str
    opened: bool
    ended: bool
    last: bool


def read_delimited(text: str, collector: Collector, *, truncated: bool) -> bool:
    """Collects the records of an answer without thinking and fences; True if its last record was cut off."""
    text, marked = _prepared(text, collector)
    cut = False
    for segment in _segments(text):
        unsure = segment.last and not marked and not segment.ended
        if unsure and _is_cut(segment, truncated):
            collector.dropped[CUT_OFF] += 1
            cut = True
        elif segment.tag == "keywords":
            collector.content_keywords(", ".join(map(unquoted, _LOOSE.split(segment.body))))
        else:
            _record(segment, collector)
    return cut


def says_nothing_found(text: str) -> bool:
    """Whether the answer has the completion mark and, besides prose, nothing that could be a record."""
    without = _MARK.sub("", text)
    return without != text and not re.search(r"<\||\|>|^\s*[(（]\s*[\"“]", without, re.MULTILINE)


def _prepared(text: str, collector: Collector) -> tuple[str, bool]:
    """The text with plain delimiters and without completion marks, and whether it ends with one."""
    plain = text
    if "&lt;|" in plain or "|&gt;" in plain:
        plain = plain.replace("&lt;", "<").replace("&gt;", ">")
    if "\\|" in plain:
        plain = plain.replace("\\|", "|").replace("\\#", "#")
    if "＜" in plain or "｜" in plain:
        plain = plain.translate(_WIDE)
    if plain != text:
        collector.mended["delimiter"] += 1
    marks = [match.end() for match in _MARK.finditer(plain)]
    marked = bool(marks) and len(plain) - marks[-1] < 1000 and not _START.search(plain, marks[-1])
    return _MARK.sub("\n", plain), marked


def _segments(text: str) -> Iterator[_Segment]:
    """The records in order; what stands between them is left out."""
    starts = [match for match in _START.finditer(text) if _begins_record(text, match)]
    for i, match in enumerate(starts):
        last = i + 1 == len(starts)
        end = min(len(text) if last else starts[i + 1].start(), match.end() + LONGEST_RECORD)
        rest = text[match.end() : end]
        opened = bool(match["open"])
        body, ended = _record_body(rest, match["tag"], opened)
        yield _Segment(_kind(match["tag"]), match["delimiter"] + body, opened, ended or not last, last)


def _begins_record(text: str, match: re.Match[str]) -> bool:
    """A tag begins a record at the start of a line, after a bracket, or after the end of another one."""
    delimiter, opened, quoted = match["delimiter"], match["open"], match["quote"]
    if not (len(delimiter) > 1 and ("|" in delimiter or "<" in delimiter)) and not (
        opened and (quoted or delimiter == "|")
    ):
        return False
    if opened:
        return True
    line = text[max(text.rfind("\n", 0, match.start()) + 1, match.start() - 200) : match.start()].rstrip()
    return line.endswith(("##", *")]}）】.。!！?？;；")) or bool(_LINE_START.fullmatch(line))


def _kind(tag: str) -> str:
    tag = tag.lower()
    if "keyword" in tag or "关键词" in tag:
        return "keywords"
    return "entity" if tag.startswith("entit") or tag == "实体" else tag.rstrip("s")


def _record_body(rest: str, tag: str, opened: bool) -> tuple[str, bool]:
    """The record's part of what follows its tag, and whether its end is there to be seen."""
    if opened:
        end = _RECORD_END.search(rest)
        if end is not None:
            return rest[: end.start()], True
        for closing in ('")', "')", "”)", '"）'):
            if closing in rest:
                return rest[: rest.rindex(closing) + 1], True
        body = _HASHES.split(rest, maxsplit=1)[0] if "##" in rest else rest.partition("\n\n")[0]
        return body.rstrip(), len(body) < len(rest)
    wanted = 1 if "keyword" in tag.lower() else 3
    body = ""
    for line in rest.splitlines(keepends=True):
        if body.strip() and (not line.strip() or len(_LENIENT.findall(body)) >= wanted - 1):
            break
        body += line
    ended = body.endswith("\n") or len(body) < len(rest)
    hashes = re.search(r"\s*##\s*\Z", body)
    return (body[: hashes.start()], True) if hashes else (body.strip(), ended)


def _is_cut(segment: _Segment, truncated: bool) -> bool:
    """For the last record of an answer without any sign of its end."""
    if truncated:
        return True
    if segment.tag == "keywords":
        return False
    fields = _fields(segment)
    if len(fields) < 3:
        return True
    return segment.opened and fields[-1].lstrip()[:1] in ('"', "“") and fields[-1].rstrip()[-1:] not in ('"', "”")


# ---------------------------------------------------------------- fields


def _fields(segment: _Segment) -> list[str]:
    """The fields after the tag, by the strictest delimiter that gives a usual number of them."""
    best: list[str] = []
    for pattern in (*_STRICT, _LENIENT, _LOOSE, _COMMA):
        fields = [field.strip() for field in pattern.split(segment.body)][1:]
        while fields and not fields[-1].strip("\"' <>|#)"):
            fields.pop()
        if _is_usual(segment.tag, fields):
            return fields
        if len(best) < 2 < len(fields) or (len(fields) > len(best) and len(best) < _least(segment.tag)):
            best = fields
    return best


def _least(tag: str) -> int:
    return 2 if tag == "entity" else 3


def _is_usual(tag: str, fields: list[str]) -> bool:
    if tag == "entity":
        return len(fields) == 3
    return len(fields) in (4, 5) or (len(fields) == 3 and as_number(fields[-1]) is not None)


def _record(segment: _Segment, collector: Collector) -> None:
    fields = _fields(segment)
    labelled = _LABELLED.search(segment.body) if segment.tag == "entity" and len(fields) != 3 else None
    if labelled is not None:
        fields = [labelled["name"], labelled["type"], labelled["description"]]
    if any(map(is_template, map(unquoted, fields[:2]))):
        collector.dropped[TEMPLATE] += 1
        return
    if len(fields) < _least(segment.tag):
        collector.dropped[MISSING_FIELDS] += 1
        return
    if not any(pattern.search(segment.body) for pattern in _STRICT) or not _is_usual(segment.tag, fields):
        collector.mended["delimiter or fields"] += 1
    fields = [_bare(field) for field in fields]
    if segment.tag == "entity":
        _entity(fields, collector)
    else:
        _relation(fields, segment, collector)


def _bare(field: str) -> str:
    """A field without its quotes, and without a bracket of the record."""
    field = field.strip()
    for _ in range(3):
        if field.endswith(")") and field.count(")") > field.count("("):
            field = field[:-1].rstrip()
    if field.count("(") > field.count(")"):
        field = field[1:].lstrip() if field.startswith("(") else field + ")"
    return unquoted(field)


def _entity(fields: list[str], collector: Collector) -> None:
    name, type_, *rest = fields
    if not rest and (len(type_) > 40 or type_.endswith(_SENTENCE_END)):  # the type was left out
        type_, rest = "", [type_]
    if len(rest) > 1 and as_number(rest[-1]) is not None:  # a strength that entities do not have
        rest = rest[:-1]
    collector.entity(name, type_, " ".join(rest))


def _relation(fields: list[str], segment: _Segment, collector: Collector) -> None:
    source, target, *rest = fields
    new_form = not segment.opened and segment.tag == "relation"
    strength: float | None = None
    glued = _STRENGTH_GLUED.fullmatch(rest[-1])
    if glued is not None:
        rest[-1:] = [unquoted(glued[1]), glued[2]]
    if len(rest) > 1 and not (new_form and len(rest) == 2):
        strength = as_number(rest[-1])
        rest = rest[:-1] if strength is not None else rest
    if len(rest) == 1:
        only_keywords = new_form and len(rest[0]) < 60 and not rest[0].endswith(_SENTENCE_END)
        keywords, description = (rest[0], "") if only_keywords else ("", rest[0])
    elif _keywords_come_first(rest, new_form):
        keywords, description = rest[0], " ".join(rest[1:])
    else:
        keywords, description = rest[-1], " ".join(rest[:-1])
    collector.relation(source, target, keywords, description, strength)


def _keywords_come_first(rest: list[str], new_form: bool) -> bool:
    """The order of the form, unless only one of the two is a sentence."""
    first, last = rest[0].endswith(_SENTENCE_END), rest[-1].endswith(_SENTENCE_END)
    return last if first != last else new_form
