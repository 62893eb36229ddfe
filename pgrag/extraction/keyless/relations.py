"""Which name of an English sentence acts on which: rules over the dependency tree that prefer silence to a guess."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgrag.extraction.keyless.names import Name

if TYPE_CHECKING:
    from spacy.tokens import Span, Token

SUBJECTS = ("nsubj", "nsubjpass")
OBJECTS = ("dobj", "attr", "oprd", "dative")
COPULAS = ("be", "become", "remain")


@dataclass(frozen=True, slots=True)
class Found:
    """A name and its tokens [start, end) in the document."""

    start: int
    end: int
    name: Name


@dataclass(frozen=True, slots=True)
class Relation:
    """`verbs` are the sentence's verbs; the first is the one between source and target, with its preposition."""

    source: str | None
    target: str | None
    verbs: tuple[str, ...]


def find_relation(sentence: Span, names: Sequence[Found]) -> Relation:
    """The first pair of names that one verb, or an apposition with "of", holds together."""
    finder = _Finder(sentence, names)
    verbs = [token for token in sentence if token.pos_ == "VERB" or (token.pos_ == "AUX" and finder.is_main(token))]
    lemmas = [_lemma(verb) for verb in verbs if _lemma(verb) not in (*COPULAS, "have", "do")]
    if len(names) > 1:
        for verb in sorted(verbs, key=lambda token: token.dep_ != "ROOT"):
            for source, target, word in finder.of_verb(verb):
                return Relation(source, target, (word, *(v for v in lemmas if v != word.split()[0])))
        for source, target, word in finder.appositions():
            return Relation(source, target, (word, *(v for v in lemmas if v != word.split()[0])))
    return Relation(None, None, tuple(lemmas))


def _lemma(token: Token) -> str:
    return token.lemma_.lower()


class _Finder:
    def __init__(self, sentence: Span, names: Sequence[Found]) -> None:
        self._sentence = sentence
        self._at: dict[int, str] = {}
        for found in sorted(names, key=lambda n: n.start - n.end):  # the longest name of a word counts
            for i in range(found.start, found.end):
                self._at.setdefault(i, found.name.text)

    def is_main(self, token: Token) -> bool:
        """Whether an auxiliary is the verb itself: it has a subject of its own."""
        return any(child.dep_ in SUBJECTS for child in token.children)

    def of_verb(self, verb: Token) -> Iterator[tuple[str, str, str]]:
        """(source, target, verb with preposition) of a verb, active or passive."""
        copula = _lemma(verb) in COPULAS
        subject = self._subject(verb)
        if subject is None:
            return
        passive = any(child.dep_ in ("nsubjpass", "auxpass") for child in verb.children)
        source = self._name(subject, copula)
        for target, word in self._objects(verb, copula):
            if source and target and source.casefold() != target.casefold():
                if passive and word == "by":
                    yield target, source, _lemma(verb)
                else:
                    yield source, target, f"{_lemma(verb)} {word}".strip()

    def appositions(self) -> Iterator[tuple[str, str, str]]:
        """ "Ines Moreau, head of Atlas": (Ines Moreau, Atlas, head)."""
        for token in self._sentence:
            if token.dep_ == "appos" and token.i not in self._at:
                source = self._name(token.head)
                target = self._name(token, described=True)
                if source and target and source.casefold() != target.casefold():
                    yield source, target, _lemma(token)

    def _subject(self, verb: Token) -> Token | None:
        for _ in range(4):  # "plans to move", "moved and renamed": the subject of the verb before
            for child in verb.children:
                if child.dep_ in SUBJECTS:
                    relative = child.tag_ in ("WP", "WDT") and verb.dep_ == "relcl"
                    return verb.head if relative else child
            if verb.dep_ == "acl" and verb.tag_ == "VBG":  # "a team running Atlas"
                return verb.head
            if verb.dep_ not in ("conj", "xcomp"):
                return None
            verb = verb.head
        return None

    def _objects(self, verb: Token, copula: bool) -> Iterator[tuple[str | None, str]]:
        """Names that the verb acts on with the preposition between, objects first."""
        for child in verb.children:
            if child.dep_ in OBJECTS:
                relative = child.tag_ in ("WP", "WDT") and verb.dep_ == "relcl"
                yield self._name(verb.head if relative else child, copula), ""
        for child in verb.children:
            if child.dep_ in ("prep", "agent"):
                for object_ in child.children:
                    if object_.dep_ == "pobj":
                        yield self._name(object_), _lemma(child)

    def _name(self, token: Token, described: bool = False) -> str | None:
        """The name at a noun: itself, or before it ("the Atlas service"); or, `described`, "the owner of Atlas"."""
        if token.i in self._at:
            return self._at[token.i]
        for child in token.lefts:
            if child.dep_ in ("compound", "nmod") and child.i in self._at:
                return self._at[child.i]
        if described:
            for child in token.rights:
                if child.dep_ == "prep" and _lemma(child) in ("of", "for", "at", "behind"):
                    for object_ in child.children:
                        if object_.dep_ == "pobj":
                            return self._name(object_)
        return None
