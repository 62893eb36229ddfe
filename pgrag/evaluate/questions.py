"""Questions from JSON lines: what is asked, of which kind, the passages it needs and the answers that are right."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pgrag.errors import UsageError
from pgrag.evaluate.results import Gold, Kind, Question
from pgrag.text.folding import clean_json

TEXT_FIELDS = ("question", "query", "text")
KIND_FIELDS = ("kind", "type")
ANSWER_FIELDS = ("answers", "answer")
GOLD_FIELDS = ("gold", "gold_ids", "gold_documents", "gold_chunks")


def load_questions(path: Path) -> tuple[list[Question], list[str]]:
    """The questions of a file of JSON lines, and warnings.

    Fields of a line (other ones are ignored):

    - `question` (or `query`, `text`), and `id`: without one it is the number of the line;
    - `kind` (or `type`): single_fact, aggregation, multi_hop, thematic, null, or a word of the set's own;
    - `answers` (or `answer`): a text or a list of them;
    - `gold`: a document uri, or a list of uris and objects {document, ordinal, text}; `gold_ids`, `gold_documents`:
      uris; `gold_chunks`: objects {document, ordinal}. All of them together are the gold of the question;
    - `evidence`: a text, or a list of texts and of objects with a `fact` or `text`; gold only where none of the fields
      above is there: an empty list says that no passage is needed.

    Raises UsageError, naming file and line, for everything that cannot be read as such, and for ids that come twice.
    """
    questions: list[Question] = []
    lines: dict[str, int] = {}
    for number, row in json_lines(path):
        question = question_of(row, f"{path}:{number}", str(number))
        if question.id in lines:
            raise UsageError(f"{path}:{number}: the id {question.id!r} is that of line {lines[question.id]} already")
        lines[question.id] = number
        questions.append(question)
    if not questions:
        raise UsageError(f"{path} holds no question")
    return questions, without_gold(questions)


def without_gold(questions: list[Question]) -> list[str]:
    """The warning about questions that need passages and name none; empty where there are none."""
    bare = [question.id for question in questions if not question.gold and question.kind != Kind.NULL]
    if not bare:
        return []
    return [f"{len(bare)} of {amount(len(questions), 'question')} without gold (first: {bare[0]}): for answers only"]


def amount(n: int, noun: str) -> str:
    """`1 query`, `1,200 queries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def question_of(row: Mapping[str, Any], place: str, identifier: str) -> Question:
    """The question of one object; `identifier` where it has no id. Raises UsageError that begins with `place`."""
    text = _first_text(row, TEXT_FIELDS, place).strip()
    if not text:
        raise UsageError(f'{place}: there is no "question"')
    return Question(
        id=identifier_of(row.get("id"), place) or identifier,
        text=text,
        gold=tuple(dict.fromkeys(_gold(row, place))),
        answers=answers_of(row, place),
        kind=_first_text(row, KIND_FIELDS, place).strip(),
    )


def identifier_of(value: Any, place: str) -> str:
    """An id as text, empty for none. Raises UsageError that begins with `place`."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f"{place}: an id is a text or a whole number, not {_shown(value)}")
    return str(value).strip()


def answers_of(row: Mapping[str, Any], place: str, fields: tuple[str, ...] = ANSWER_FIELDS) -> tuple[str, ...]:
    """The distinct answers of these fields together, each a text (or number, yes or no), or a list of them."""
    found: list[str] = []
    for name in fields:
        value = row.get(name)
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(item, str | int | float):
                raise UsageError(f'{place}: "{name}" is a text or a list of texts, not {_shown(value)}')
            found.append(({True: "yes", False: "no"}[item] if isinstance(item, bool) else str(item)).strip())
    return tuple(answer for answer in dict.fromkeys(found) if answer)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object) of each line of a UTF-8 file; empty lines are passed over. Raises UsageError as `json_value`."""
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.removeprefix(codecs.BOM_UTF8).strip():
                    continue
                if line.strip() == b"[":
                    raise UsageError(f"{path}:{number}: is a JSON list: write JSON lines, an object on each line")
                row = json_value(line, f"{path}:{number}")
                if not isinstance(row, dict):
                    raise UsageError(f"{path}:{number}: a line is a JSON object, not {_shown(row)}")
                yield number, row
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def json_value(data: bytes, place: str) -> Any:
    """A JSON value from UTF-8. Raises UsageError that begins with `place`."""
    try:
        return clean_json(json.loads(data.decode("utf-8-sig"), parse_constant=_refuse))
    except UnicodeDecodeError:
        raise UsageError(f"{place}: is not UTF-8 text") from None
    except RecursionError:
        raise UsageError(f"{place}: JSON that is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{place}: is not valid JSON: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _gold(row: Mapping[str, Any], place: str) -> Iterator[Gold]:
    given = [name for name in GOLD_FIELDS if row.get(name) is not None]
    for name in given:
        for item in [row[name]] if isinstance(row[name], str) else _list(row, name, place):
            yield _gold_item(item, name, place)
    if given or row.get("evidence") is None:
        return
    evidence = row["evidence"]
    for item in [evidence] if isinstance(evidence, str) else _list(row, "evidence", place):
        fact = item.get("fact", item.get("text")) if isinstance(item, dict) else item
        if not isinstance(fact, str):
            raise UsageError(f'{place}: "evidence" is texts, or objects with a "fact" or "text", not {_shown(item)}')
        if fact.strip():
            yield Gold(text=fact.strip())


def _gold_item(item: Any, name: str, place: str) -> Gold:
    if name != "gold_chunks" and isinstance(item, str | int) and not isinstance(item, bool):
        if uri := str(item).strip():
            return Gold(document=uri)
        raise UsageError(f'{place}: "{name}" holds an empty uri')
    if name in ("gold_ids", "gold_documents") or not isinstance(item, dict):
        form = {"gold": "uris and objects {document, ordinal, text}", "gold_chunks": "objects {document, ordinal}"}
        raise UsageError(f'{place}: "{name}" is a list of {form.get(name, "uris")}, not {_shown(item)}')
    document, text = (_text(item, field, f'{place}: "{name}"').strip() for field in ("document", "text"))
    ordinal = item.get("ordinal")
    if ordinal is not None and (isinstance(ordinal, bool) or not isinstance(ordinal, int) or ordinal < 0):
        raise UsageError(f'{place}: "{name}" has an "ordinal" that is no whole number from 0: {_shown(ordinal)}')
    if ordinal is None and name == "gold_chunks":
        raise UsageError(f'{place}: "{name}" has an object without "ordinal"')
    if not document and (ordinal is not None or not text):
        raise UsageError(f'{place}: "{name}" has an object without "document"' + (' and "text"' if not text else ""))
    return Gold(document, ordinal, text)


def _list(row: Mapping[str, Any], name: str, place: str) -> list[Any]:
    value = row[name]
    if not isinstance(value, list):
        raise UsageError(f'{place}: "{name}" is a list, not {_shown(value)}')
    return value


def _first_text(row: Mapping[str, Any], names: tuple[str, ...], place: str) -> str:
    name = next((name for name in names if row.get(name) is not None), names[0])
    return _text(row, name, place)


def _text(row: Mapping[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    if not isinstance(value, str | None):
        raise UsageError(f'{place}: "{name}" is a text, not {_shown(value)}')
    return value or ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else text[:57] + "..."
