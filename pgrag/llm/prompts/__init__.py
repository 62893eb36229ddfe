"""What models are asked: Markdown files in English and Chinese, filled in by `string.Template`, and JSON schemas.

A file holds the system message and, after a line `<!-- user -->`, the user's. Texts from documents and users go in by
`enclose` only, between two lines with a code that the text cannot contain, and are declared to be data.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Any, Literal

from pgrag.config import ENTITY_TYPES
from pgrag.errors import UsageError
from pgrag.text.folding import name_key, words
from pgrag.text.scripts import HAN, HANGUL, KANA
from pgrag.text.tokens import Tokenizer

Language = Literal["en", "zh"]
Name = Literal["extract", "glean", "summarise", "keywords", "answer", "judge", "draft"]
Message = dict[str, str]

NAMES: tuple[Name, ...] = ("extract", "glean", "summarise", "keywords", "answer", "judge", "draft")
LANGUAGES: tuple[Language, ...] = ("en", "zh")
RESPONSE_TYPE = "Multiple Paragraphs"
MESSAGE_TOKENS = 8  # what a chat format adds to each message, at most

_USER = "<!-- user -->\n"
_JSON_BLOCK = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HAN = re.compile(f"[{HAN}]")
_KANA_HANGUL = re.compile(f"[{KANA}{HANGUL}]")
_SPACED_WORD = re.compile(r"[^\W\d_\u2e80-\U0003ffff]{2,}")
_OWN_LANGUAGE = {
    "passage": {"en": "the language of the passage", "zh": "文本的语言"},
    "notes": {"en": "the language of the notes", "zh": "笔记的语言"},
}
_DRAFT_PARTS: dict[Language, tuple[str, str]] = {
    "en": ("All of them speak of this:", "These questions were asked before; ask for something else:"),
    "zh": ("这些段落都谈到：", "以下问题已经问过，请问别的内容："),
}
_NONE: dict[Language, str] = {"en": "none", "zh": "无"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as its file has it. `digest` changes with every change of the file: it belongs in a cache key."""

    name: Name
    language: Language
    system: str
    user: str
    digest: str

    def messages(self, **fields: str) -> list[Message]:
        """The messages with every field filled in; the system message is left out where the file has none."""
        texts = (("system", self.system), ("user", self.user))
        return [{"role": role, "content": Template(text).substitute(fields)} for role, text in texts if text]


@cache
def load(name: Name, language: Language) -> Prompt:
    """One prompt in one language."""
    text = resources.files(__name__).joinpath(f"{name}.{language}.md").read_text("utf-8")
    system, _, user = text.partition(_USER)
    return Prompt(name, language, system.strip(), user.strip(), hashlib.sha256(text.encode()).hexdigest())


@cache
def schema(name: Literal["extraction", "keywords", "judge", "draft"]) -> Mapping[str, Any]:
    """The JSON schema of an answer, in the subset that strict structured output takes everywhere; not to be changed."""
    text = resources.files(__name__).joinpath(f"{name}.schema.json").read_text("utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


def language_of(text: str) -> Language:
    """The language to ask in: Chinese for a text that is mostly Chinese, else English."""
    sample = text[:20_000]
    han = len(_HAN.findall(sample))
    return "zh" if han > 2 * len(_SPACED_WORD.findall(sample)) + 10 * len(_KANA_HANGUL.findall(sample)) else "en"


def enclose(text: str, label: str) -> str:
    """The text between two lines that carry a code made from it, so that no text can hold its own closing line."""
    code = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"<<< {label} {code}\n{text}\n{label} {code} >>>"


def example_names(language: Language, text: str) -> frozenset[str]:
    """Normal forms of the names and themes of the extraction prompt's examples that `text` does not hold.

    What a model writes of these it has not read in the text (`parse_extraction` drops them).
    """
    held = _spaced(text)
    return frozenset(key for key, spaced in _names_of_examples(language).items() if spaced not in held)


@cache
def _names_of_examples(language: Language) -> dict[str, str]:
    """Normal form -> folded words."""
    names: set[str] = set()
    for block in _JSON_BLOCK.findall(load("extract", language).system):
        example = json.loads(block)
        names.update(entity["name"] for entity in example["entities"])
        names.update(end for relation in example["relations"] for end in (relation["source"], relation["target"]))
        names.update(example["keywords"])
    return {name_key(name): _spaced(name) for name in names}


def _spaced(text: str) -> str:
    return f" {' '.join(words(text))} "


# ---------------------------------------------------------------- the messages of each call


def extraction_messages(
    text: str, *, language: Language, entity_types: Sequence[str] = ENTITY_TYPES, output_language: str | None = None
) -> list[Message]:
    """Asks for the entities, relations and keywords of a chunk; `output_language` None: that of the text."""
    return load("extract", language).messages(
        passage=enclose(text, "passage"),
        entity_types=", ".join(entity_types),
        language=output_language or _OWN_LANGUAGE["passage"][language],
    )


def gleaning_messages(asked: Sequence[Message], answer: str, *, language: Language) -> list[Message]:
    """Asks what `answer`, the model's to `asked`, has left out."""
    return [*asked, {"role": "assistant", "content": answer}, *load("glean", language).messages()]


def summary_messages(
    subject: str, fragments: Iterable[str], *, language: Language, max_tokens: int, output_language: str | None = None
) -> list[Message]:
    """Asks for one description of an entity or a pair from fragments, old to new, each dated where its source is."""
    return load("summarise", language).messages(
        subject=enclose(subject, "subject"),
        notes=enclose("\n".join(f"- {' '.join(fragment.split())}" for fragment in fragments), "notes"),
        max_tokens=str(max_tokens),
        language=output_language or _OWN_LANGUAGE["notes"][language],
    )


def keyword_messages(question: str, *, language: Language, history: Sequence[Message] = ()) -> list[Message]:
    """Asks for the keywords of a question. Raises UsageError for a wrong history."""
    turns = "\n".join(f"{turn['role']}: {turn['content']}" for turn in checked_history(history))
    conversation = f"{enclose(turns, 'conversation')}\n\n" if turns else ""
    return load("keywords", language).messages(conversation=conversation, question=enclose(question, "question"))


def answer_messages(
    question: str,
    context: str,
    *,
    language: Language,
    response_type: str = RESPONSE_TYPE,
    user_prompt: str = "",
    history: Sequence[Message] = (),
) -> list[Message]:
    """Asks for the answer from a rendered context with numbered passages; earlier turns stand before the question.

    `response_type` and `user_prompt` are the caller's own words and trusted. Raises UsageError for a wrong history.
    """
    system, user = load("answer", language).messages(
        context=enclose(context, "sources"),
        question=question,
        response_type=response_type,
        user_prompt=user_prompt.strip() or _NONE[language],
    )
    return [system, *checked_history(history), user]


def judge_messages(question: str, answer1: str, answer2: str, *, language: Language) -> list[Message]:
    """Asks which of two answers is better, by each criterion."""
    return load("judge", language).messages(
        question=enclose(question, "question"),
        answer1=enclose(answer1, "answer 1"),
        answer2=enclose(answer2, "answer 2"),
    )


def draft_messages(
    kind: str, chunks: Sequence[str], *, language: Language, subject: str = "", asked: Sequence[str] = ()
) -> list[Message]:
    """Asks for a question of a kind from passages, about the `subject` they share, other than those `asked` before."""
    shared, before = _DRAFT_PARTS[language]
    lines = "\n".join(f"- {' '.join(question.split())}" for question in asked)
    return load("draft", language).messages(
        kind=kind,
        passages="\n\n".join(enclose(text, f"passage {number}") for number, text in enumerate(chunks, 1)),
        subject=f"{shared}\n\n{enclose(subject, 'subject')}\n\n" if subject else "",
        asked=f"{before}\n\n{enclose(lines, 'asked')}\n\n" if asked else "",
    )


def checked_history(history: Sequence[Message]) -> list[Message]:
    """The turns of a conversation. Raises UsageError for one without the role user or assistant, or without text."""
    turns: list[Message] = []
    for number, turn in enumerate(history, 1):
        role, content = turn.get("role"), turn.get("content")
        if role not in ("user", "assistant") or not isinstance(content, str):
            raise UsageError(
                f'conversation_history: turn {number} must have a "role" (user or assistant) and a "content"'
            )
        turns.append({"role": role, "content": content})
    return turns


def prompt_tokens(messages: Sequence[Message], tokenizer: Tokenizer) -> int:
    """Tokens of a prompt, at most."""
    return sum(tokenizer.count_many(m["content"] for m in messages)) + MESSAGE_TOKENS * len(messages)


def as_text(messages: Iterable[Message]) -> str:
    """All messages as one text, for people to read."""
    return "\n\n".join(f"--- {message['role']} ---\n{message['content']}" for message in messages)
