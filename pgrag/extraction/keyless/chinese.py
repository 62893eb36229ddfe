"""Names, a relation and keywords of Chinese sentences, from the tags of LAC."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgrag.extraction.keyless.lac import Lac
from pgrag.extraction.keyless.names import MAX_SENTENCE, Name, Sentence, clean_name, distinct, find_codes, split_long
from pgrag.text.scripts import quoted
from pgrag.types import Keywords

TYPES = {
    "PER": "person",
    "nr": "person",
    "LOC": "location",
    "ns": "location",
    "ORG": "organization",
    "nt": "organization",
    "nw": "work",
    "nz": "other",
}
JOINING = frozenset({"n", "nz", "vn", "ORG", "nt", "LOC", "ns"})
NOUNS = frozenset({"n", "nz", "vn", "an", "s"})
# Verbs that say nothing about the kind of relation, and nouns that only make a question.
WEAK = frozenset(
    {
        "是",
        "有",
        "会",
        "能",
        "要",
        "可以",
        "可能",
        "应该",
        "需要",
        "进行",
        "请",
        "问",
        "请问",
        "告诉",
        "知道",
        "说",
        "让",
        "没有",
    }
)
QUESTION = frozenset(
    {
        "谁",
        "什么",
        "哪",
        "哪里",
        "哪儿",
        "哪个",
        "哪些",
        "哪位",
        "怎么",
        "怎样",
        "如何",
        "为什么",
        "为何",
        "多少",
        "几",
        "何时",
        "时候",
        "情况",
        "原因",
        "问题",
    }
)
# Nouns that end a name made of common words, which LAC does not see as one: 流云 + 引擎, 北风 + 货运.
ORGANIZATIONS = frozenset(
    {
        *("公司", "有限公司", "集团", "科技", "物流", "货运", "银行", "保险", "航空", "大学", "学院", "学校", "医院"),
        *("研究院", "研究所", "实验室", "基金会", "协会", "委员会", "部门", "团队", "小组"),
    }
)
PRODUCTS = frozenset(
    {
        *("系统", "平台", "引擎", "服务", "数据库", "网关", "手册", "项目", "计划", "协议", "框架", "集群", "模块"),
        *("组件", "接口", "应用", "软件", "工具", "报告", "规范", "节点"),
    }
)
LATIN_STOP = frozenset({"the", "and", "for", "from", "with", "this", "that", "are", "was", "not", "you", "com", "www"})
NAME_WORDS = 4  # of such a name at most
_TERMINATORS = re.compile("[^。！？!?；;\n]+(?:[。！？!?；;]+[”’」』）)》]*)?|[。！？!?；;]+")
_CLAUSE = frozenset("，,、：:；;（）()")
_TITLE = re.compile(quoted("《》", shortest=1, longest=100))
_QUOTED = re.compile(quoted("「」", "『』", "“”", '""', shortest=2, longest=40))
# Latin words in Chinese text are names; those with capitals join: "Blue Harbor"
_LATIN = re.compile(
    r"(?<![A-Za-z0-9])(?:[A-Z][A-Za-z0-9+#]{1,40}(?: [A-Z][A-Za-z0-9+#]{0,40}){0,5}|[a-z][A-Za-z0-9+#]{2,40})"
)
KEYWORDS = 8


@dataclass(frozen=True, slots=True)
class _Token:
    """A word or a name, and where it begins."""

    text: str
    tag: str
    start: int
    type: str = ""  # of a name


class ChineseTagger:
    """Sentences and keywords of Chinese text. Safe to share between threads."""

    def __init__(self) -> None:
        self._lac = Lac()

    def sentences(self, text: str, known: Sequence[str] = ()) -> list[Sentence]:
        """The sentences of one paragraph, with names known to be in it."""
        return [
            self._sentence(piece, known)
            for match in _TERMINATORS.finditer(text)
            for piece in split_long(match.group(), MAX_SENTENCE)
        ]

    def keywords(self, question: str) -> Keywords:
        """Low: names, quoted strings and runs of nouns. High: verbs and nouns."""
        tokens = self._tokens(question)
        quoted = (next(filter(None, match.groups())) for match in _QUOTED.finditer(question))
        names = (token.text for token in tokens if token.type)
        high = (t.text for t in tokens if not t.type and (t.tag in NOUNS or t.tag == "v") and _says_something(t.text))
        return Keywords(distinct([*names, *map(clean_name, quoted), *_noun_runs(tokens)]), distinct(high))

    def _sentence(self, text: str, known: Sequence[str]) -> Sentence:
        tokens = self._tokens(text, known)
        names = {t.text.casefold(): Name(t.text, t.type) for t in reversed(tokens) if t.type}
        source, target, verb = _relation(tokens)
        nouns = [t.text for t in tokens if not t.type and t.tag in NOUNS and _says_something(t.text)]
        verbs = [t.text for t in tokens if t.tag == "v" and not t.type and _says_something(t.text)]
        return Sentence(
            text,
            tuple(reversed(names.values())),
            source,
            target,
            distinct([verb, *verbs, *nouns])[:KEYWORDS],
            tuple(nouns),
        )

    def _tokens(self, text: str, known: Sequence[str] = ()) -> list[_Token]:
        """Words in order; those within a code, a Latin name or book marks give way to it."""
        spans = [(m.start(1), m.end(1), "work") for m in _TITLE.finditer(text)]
        for start, end, kind in [(a, b, "code") for a, b in find_codes(text, known)] + [
            (m.start(), m.end(), "other") for m in _LATIN.finditer(text)
        ]:
            function_word = kind == "other" and text[start:end].lower() in LATIN_STOP
            if not function_word and not any(a < end and start < b for a, b, _ in spans):
                spans.append((start, end, kind))
        tokens = [
            _Token(name, "nz", start, kind) for start, end, kind in spans if (name := clean_name(text[start:end]))
        ]
        covered = bytearray(len(text))
        for start, end, _ in spans:
            covered[start:end] = b"\1" * (end - start)
        at = 0
        for word, tag in self._lac.tag(text):
            if not any(covered[at : at + len(word)]):
                tokens.append(_token(word, tag, at))
            at += len(word)
        return _join_names(sorted(tokens, key=lambda token: token.start))


def _token(word: str, tag: str, start: int) -> _Token:
    name = clean_name(word) if tag in TYPES else ""
    named = len(name) > 1 and not name.isdigit()
    return _Token(name if named else word, tag, start, TYPES[tag] if named else "")


def _join_names(tokens: list[_Token]) -> list[_Token]:
    """Neighbouring nouns that end in a word like 引擎 become one name."""
    joined: list[_Token] = []
    for token in tokens:
        joined.append(token)
        kind = "organization" if token.text in ORGANIZATIONS else "other" if token.text in PRODUCTS else ""
        first = len(joined) - 1
        while kind and first and len(joined) - first < NAME_WORDS and _joins(joined[first - 1], joined[first]):
            first -= 1
        if first < len(joined) - 1:
            text = "".join(part.text for part in joined[first:])
            joined[first:] = [_Token(text, "nz", joined[first].start, kind)]
    return joined


def _joins(before: _Token, token: _Token) -> bool:
    touching = before.start + len(before.text) == token.start
    return touching and before.tag in JOINING and before.type not in ("code", "work") and not before.text.isascii()


def _says_something(word: str) -> bool:
    return len(word) > 1 and word not in WEAK and word not in QUESTION and any(c.isalnum() for c in word)


def _clauses(tokens: list[_Token]) -> Iterator[list[_Token]]:
    clause: list[_Token] = []
    for token in tokens:
        if token.tag == "w" and token.text.strip() in _CLAUSE:
            yield clause
            clause = []
        else:
            clause.append(token)
    yield clause


def _relation(tokens: list[_Token]) -> tuple[str | None, str | None, str]:
    """Source, target and verb of the first clause that has a name, a verb and another name in this order.

    A clause that begins with its verb goes on with the source of the clause before. 被 and 由 between the names
    turn the direction.
    """
    subject = ""
    for clause in _clauses(tokens):
        names = [i for i in range(len(clause)) if clause[i].type and not _modifies(clause, i)]
        verbs = [i for i, token in enumerate(clause) if token.tag in ("v", "vn") and not token.type]
        first = clause[names[0]].text if names and (not verbs or names[0] < verbs[0]) else ""
        if not first and verbs and verbs[0] == 0:
            first = subject
        subject = first or subject
        turned = next((i for i, t in enumerate(clause) if t.text in ("被", "由") and names and names[0] < i), None)
        if first and turned is not None:
            agents = [i for i in names if i > turned]
            done = [i for i in verbs if agents and i > agents[0]]
            if done and clause[agents[0]].text.casefold() != first.casefold():
                return clause[agents[0]].text, first, clause[done[0]].text
            continue
        start = names[0] if names and clause[names[0]].text == first else -1
        verb = next((i for i in verbs if i > start), None)
        if not first or verb is None:
            continue
        for i in names:
            if i > verb and clause[i].text.casefold() != first.casefold():
                before = [v for v in verbs if start < v < i]
                return first, clause[i].text, clause[before[-1]].text
    return None, None, ""


def _modifies(clause: list[_Token], i: int) -> bool:
    """Whether a place only describes the noun or the person after it: 香港 + 警方."""
    after = clause[i + 1] if i + 1 < len(clause) else None
    return clause[i].type == "location" and after is not None and (after.tag == "n" or after.type == "person")


def _noun_runs(tokens: list[_Token]) -> Iterator[str]:
    """Neighbouring nouns as one: 数据库 + 连接池."""
    run = ""
    for token in [*tokens, _Token("", "w", 0)]:
        if not token.type and token.tag in NOUNS and token.text.strip() and token.text not in QUESTION:
            run += token.text
        else:
            if len(run) > 1:
                yield run
            run = ""
