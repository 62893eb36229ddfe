"""Names without a model: identifiers and codes, and what is stripped from a name; and a tagged sentence."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgrag.text.scripts import QUOTE_SIGNS

MAX_SENTENCE = 1000  # characters of one fact's text

_NOT_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SPACE = re.compile(r"\s+")

_EXTENSIONS = (
    "bash|bat|c|cc|cfg|conf|cpp|cs|css|csv|db|doc|docx|env|exe|go|gz|h|html|ini|ipynb|jar|java|js|json|jsonl|jsx|log|"
    "lua|md|pdf|php|pl|png|ppt|pptx|properties|proto|ps1|py|rb|rs|rst|scala|service|sh|sql|sqlite|svg|tar|tf|toml|ts|"
    "tsx|txt|vue|war|whl|xls|xlsx|xml|yaml|yml|zip"
)
_DOMAINS = "ai|app|cloud|cn|co|com|de|dev|edu|eu|gov|internal|intranet|io|lan|local|net|org|svc|uk"
# Parts that make a lower-case hyphenated word an identifier: "ledger-worker" is one, "well-known" is not.
_PARTS = (
    "api|app|auth|backend|batch|bot|cache|cdn|cli|cluster|cron|daemon|dev|frontend|gateway|host|job|lambda|lib|node|pod|"
    "prod|proxy|queue|redis|repo|sdk|server|service|staging|ui|web|worker"
)
_W = "A-Za-z0-9"  # ASCII on purpose: a Han character next to a code ends it
_START, _END = f"(?<![{_W}_])", f"(?![{_W}_])"
_CODES = re.compile(
    "|".join(
        (
            rf"(?<![{_W}_/:])(?:/[{_W}_.\-]{{1,80}}){{2,12}}",  # /etc/ledger/app.conf
            rf"{_START}\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d{{1,5}})?{_END}",  # 10.0.3.7:5432
            rf"{_START}[{_W}_][{_W}_.\-]{{0,120}}\.(?:{_EXTENSIONS}|{_DOMAINS}){_END}",  # app.conf, db01.prod.internal
            rf"{_START}[{_W}]{{0,60}}(?:_[{_W}]{{1,60}}){{1,12}}_{{0,2}}{_END}",  # max_connections, MAX_RETRIES
            rf"{_START}[A-Z][A-Za-z]{{0,15}}(?:-[A-Z]{{1,10}})?(?:-\d{{1,12}}[a-z]?){{1,5}}{_END}",  # ORA-01555
            rf"{_START}v\d{{1,5}}(?:\.\d{{1,8}}){{0,4}}(?:-[a-z0-9.]{{1,20}})?{_END}",  # v2.3, v2.3-rc1
            rf"{_START}0x[0-9A-Fa-f]{{2,16}}{_END}",
            rf"{_START}(?!Q[1-4]{_END})[A-Z]{{1,8}}\d[A-Z0-9]{{0,20}}{_END}",  # E1234, S3
            rf"{_START}[a-z][a-z0-9]{{0,40}}(?:-[a-z0-9]{{1,40}}){{1,8}}{_END}",  # svc-payments, see _is_identifier
        )
    )
)
_CAMEL = re.compile(rf"{_START}[A-Za-z]{{0,40}}[a-z][A-Z][{_W}]{{0,60}}{_END}")  # PostgreSQL, OrderRouter, eBay

_PAIRS = {"(": ")", "[": "]", "{": "}", "（": "）", "【": "】", "《": "》", "「": "」", "『": "』", "〈": "〉"}
_OUTER = " \t\n*_~|#<>,;:!?…·•。，、；：！？-–—=+\\" + "".join(set(QUOTE_SIGNS) - {*_PAIRS, *_PAIRS.values()})
_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)", re.IGNORECASE)
_GENITIVE = re.compile(r"['’]s?$")


@dataclass(frozen=True, slots=True)
class Name:
    """A name as written in a sentence, cleaned, and its type in lower case."""

    text: str
    type: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A tagged sentence. `source` and `target` are two of its names, or both None; `nouns` are dictionary forms."""

    text: str
    names: tuple[Name, ...] = ()
    source: str | None = None
    target: str | None = None
    keywords: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()


def plain_text(text: str) -> str:
    """Without control characters, lone surrogates and invisible marks; line ends are newlines."""
    text = re.sub(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]", "\n", text)
    return _INVISIBLE.sub("", _NOT_TEXT.sub(" ", text))


def clean_name(text: str) -> str:
    """Without article, genitive, quotes, outer punctuation, stray brackets and line ends; "" if nothing is left."""
    text = _SPACE.sub(" ", text).strip(_OUTER)
    for _ in range(4):  # "the 'Ledger's'": one layer at a time
        before = text
        text = _GENITIVE.sub("", _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text)
        text = _strip_brackets(text).strip(_OUTER)
        if text[-1:] == "." and text.count(".") == 1:  # a full stop; "U.S." and "Inc. No." keep theirs
            text = text[:-1]
        if text == before:
            break
    return text if any(c.isalnum() for c in text) else ""


def _strip_brackets(text: str) -> str:
    """Outer brackets that pair, and brackets without a partner, go."""
    for opening, closing in _PAIRS.items():
        if text.startswith(opening) and text.endswith(closing) and text.count(opening) == 1:
            text = text[1:-1]
        if text.count(opening) != text.count(closing):
            text = text.replace(opening, " ").replace(closing, " ")
    return _SPACE.sub(" ", text)


def find_codes(text: str, known: Iterable[str] = (), camel_case: bool = True) -> list[tuple[int, int]]:
    """Spans of `known` names, identifiers, error codes, versions, files, hosts, paths; in order, without overlap."""
    found: list[tuple[int, int]] = []

    def add(matches: Iterable[re.Match[str]]) -> None:
        spans = [match.span() for match in matches if _is_identifier(match.group())]
        taken = sorted(found)
        found.extend(span for span in spans if not _overlaps(span, taken))

    if names := sorted(set(known), key=lambda name: (-len(name), name)):
        pattern = rf"{_START}(?:{'|'.join(map(re.escape, names))}){_END}"
        found += [match.span() for match in re.finditer(pattern, text)]
    add(_CODES.finditer(text))
    if camel_case:
        add(_CAMEL.finditer(text))
    return sorted(found)


def _overlaps(span: tuple[int, int], taken: Sequence[tuple[int, int]]) -> bool:
    """Whether a span shares a character with one of `taken`, which are in order and apart."""
    i = bisect_left(taken, span)
    return (i < len(taken) and taken[i][0] < span[1]) or (i > 0 and taken[i - 1][1] > span[0])


def _is_identifier(code: str) -> bool:
    if not re.fullmatch("[a-z0-9-]+", code) or "-" not in code:
        return any(c.isalpha() for c in code) or code.count(".") == 3
    parts = code.split("-")
    return any(
        re.fullmatch(_PARTS, part)
        or (len(part) > 1 and part.isalpha() and not re.search("[aeiouy]", part))  # svc, db, tmp
        or (part[:1].isalpha() and part[-1:].isdigit())
        for part in parts
    )


def distinct(items: Iterable[str]) -> tuple[str, ...]:
    """In order, without those that differ in case only, and without empty ones."""
    seen: dict[str, str] = {}
    for item in items:
        if item:
            seen.setdefault(item.casefold(), item)
    return tuple(seen.values())


def split_long(text: str, limit: int) -> list[str]:
    """Pieces of at most `limit` characters, cut at the last space or clause mark of each where there is one."""
    pieces = []
    while len(text) > limit:
        cut = max(text.rfind(mark, limit // 2, limit) for mark in " ,;，；、") + 1 or limit
        pieces.append(text[:cut].strip())
        text = text[cut:]
    pieces.append(text.strip())
    return [piece for piece in pieces if piece]
