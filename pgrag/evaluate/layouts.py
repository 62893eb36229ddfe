"""Evaluation sets as they are published: passages to ingest and the questions about them, told apart by their files."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgrag.errors import UsageError
from pgrag.evaluate.matching import compact
from pgrag.evaluate.questions import (
    amount,
    answers_of,
    identifier_of,
    json_lines,
    json_value,
    load_questions,
    without_gold,
)
from pgrag.evaluate.results import Gold, Kind, Question
from pgrag.types import Document

CORPUS = "_corpus.json"
HIPPO_ANSWERS = ("answer", "answers", "gold_ans", "reference", "answer_aliases")


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Passages, whose uris are their ids, and the questions about them; `warnings` tell what was left out and why."""

    name: str
    documents: tuple[Document, ...]
    questions: tuple[Question, ...]
    warnings: tuple[str, ...] = ()


def load_layout(directory: Path, *, split: str = "", name: str = "") -> EvaluationSet:
    """The set in a directory, in one of three layouts:

    - BEIR: `corpus.jsonl` {_id, title, text}, `queries.jsonl` {_id, text}, `qrels/<split>.tsv`: scores above 0 are
      gold. `split` is test, or else the only one;
    - HippoRAG: `<name>_corpus.json` ([{title, text}] or {title: text or sentences}) and `<name>.json`, whose questions
      bring their paragraphs (MuSiQue), or context and supporting_facts (HotpotQA, 2WikiMultiHopQA);
    - JSON lines: `corpus.jsonl` {id, title, text} and `questions.jsonl` as `load_questions` takes it. Questions with
      a `missing_evidence` are left out.

    A question with gold that is no passage of the set cannot be answered in full and is left out. Raises UsageError for
    other directories and for what cannot be read, with file and line.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory")
    if (directory / "corpus.jsonl").is_file() and (directory / "queries.jsonl").is_file():
        return _complete(_beir(directory, split))
    if (directory / "corpus.jsonl").is_file() and (directory / "questions.jsonl").is_file():
        return _complete(_json_lines(directory))
    found = [path.name.removesuffix(CORPUS) for path in sorted(directory.glob(f"*{CORPUS}"))]
    pairs = [stem for stem in found if (directory / f"{stem}.json").is_file()]
    if name and name not in pairs:
        raise UsageError(f"{directory} has no {name}.json with {name}{CORPUS}; it has: {', '.join(pairs) or 'none'}")
    if len(pairs) > 1 and not name:
        raise UsageError(f"{directory} holds several sets, name one: {', '.join(pairs)}")
    if pairs:
        return _complete(_hipporag(directory, name or pairs[0]))
    alone = ", or give questions.jsonl itself if its documents are ingested already"
    raise UsageError(
        f"{directory} is no evaluation set: it needs corpus.jsonl with questions.jsonl, or corpus.jsonl with "
        "queries.jsonl and qrels/ (BEIR), or NAME_corpus.json with NAME.json (HippoRAG)"
        + (alone if (directory / "questions.jsonl").is_file() else "")
    )


def _complete(found: EvaluationSet) -> EvaluationSet:
    """The set without questions that need passages it does not have."""
    known = {document.uri for document in found.documents}
    questions = [q for q in found.questions if all(not gold.document or gold.document in known for gold in q.gold)]
    if not questions:
        raise UsageError(f"{found.name}: no question is left: their gold is not in the corpus, or there are none")
    gone = len(found.questions) - len(questions)
    lost = [f"{amount(gone, 'question')} left out: not all passages needed are in the corpus"] if gone else []
    return replace(found, questions=tuple(questions), warnings=(*found.warnings, *lost, *without_gold(questions)))


# ---------------------------------------------------------------- JSON lines and BEIR


def _json_lines(directory: Path) -> EvaluationSet:
    documents, warnings = _corpus(directory / "corpus.jsonl", "id")
    questions, _ = load_questions(directory / "questions.jsonl")
    rows = json_lines(directory / "questions.jsonl")
    kept = [q for q, (_, row) in zip(questions, rows, strict=True) if not row.get("missing_evidence")]
    if len(kept) < len(questions):
        warnings.append(f"{amount(len(questions) - len(kept), 'question')} left out: missing_evidence")
    return EvaluationSet(directory.name, documents, tuple(kept), tuple(warnings))


def _beir(directory: Path, split: str) -> EvaluationSet:
    documents, warnings = _corpus(directory / "corpus.jsonl", "_id")
    texts: dict[str, str] = {}
    for number, row in json_lines(directory / "queries.jsonl"):
        place = f"{directory / 'queries.jsonl'}:{number}"
        texts[_identifier(row, "_id", place)] = _string(row, "text", place).strip()
    gold = _judgements(directory, split)
    unknown = [query for query in gold if not texts.get(query)]
    if unknown:
        warnings.append(
            f"{amount(len(unknown), 'judged query')} left out: no text in queries.jsonl (first: {unknown[0]})"
        )
    bare = [query for query, needed in gold.items() if not needed]
    if bare:
        warnings.append(f"{amount(len(bare), 'query')} left out: no passage has a score above 0")
    questions = tuple(
        Question(query, texts[query], tuple(map(Gold, needed)))
        for query, needed in gold.items()
        if needed and texts.get(query)
    )
    return EvaluationSet(directory.name, documents, questions, tuple(warnings))


def _judgements(directory: Path, split: str) -> dict[str, list[str]]:
    """Ids of the passages that each query needs."""
    files = {path.stem: path for path in sorted((directory / "qrels").glob("*.tsv"))}
    chosen = split or ("test" if "test" in files or len(files) != 1 else next(iter(files)))
    if chosen not in files:
        raise UsageError(f"{directory} has no qrels/{chosen}.tsv; splits there: {', '.join(files) or 'none'}")
    gold: dict[str, list[str]] = defaultdict(list)
    try:
        with files[chosen].open(encoding="utf-8-sig", newline="") as stream:
            for number, row in enumerate(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE), 1):
                score = _number(row[2]) if len(row) == 3 else None
                if score is not None:
                    needed = gold[row[0]]
                    if score > 0 and row[1] not in needed:
                        needed.append(row[1])
                elif row and (number > 1 or len(row) != 3):  # the first line names the columns
                    raise UsageError(f"{files[chosen]}:{number}: a line is query-id, corpus-id and score, by tabs")
    except OSError as error:
        raise UsageError(f"cannot read {files[chosen]}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{files[chosen]}: is no UTF-8 table: {error}") from None
    return dict(gold)


def _corpus(file: Path, key: str) -> tuple[tuple[Document, ...], list[str]]:
    documents: dict[str, Document] = {}
    empty = 0
    for number, row in json_lines(file):
        place = f"{file}:{number}"
        uri = _identifier(row, key, place)
        if uri in documents:
            raise UsageError(f"{file}:{number}: the id {uri!r} is that of another passage already")
        title, text = _string(row, "title", place), _string(row, "text", place)
        if text.strip() or title.strip():
            documents[uri] = Document(uri, text if text.strip() else title, " ".join(title.split()))
        else:
            empty += 1
    if not documents:
        raise UsageError(f"{file} holds no passage")
    return tuple(documents.values()), [f"{amount(empty, 'passage')} left out: no text"] if empty else []


# ---------------------------------------------------------------- HippoRAG


def _hipporag(directory: Path, name: str) -> EvaluationSet:
    file = directory / f"{name}{CORPUS}"
    passages = dict.fromkeys(_passages(_json(file), str(file)))
    by_text = {(compact(title), compact(text)): f"{name}-{n:05}" for n, (title, text) in enumerate(passages)}
    by_title: dict[str, set[str]] = defaultdict(set)
    for (title, _), uri in by_text.items():
        by_title[title].add(uri)
    documents = tuple(
        Document(f"{name}-{n:05}", text if text.strip() else title, title)
        for n, (title, text) in enumerate(passages)
        if text.strip() or title.strip()
    )
    rows = _json(directory / f"{name}.json")
    if not isinstance(rows, list):
        raise UsageError(f"{directory / f'{name}.json'}: is no list of questions")
    questions: dict[str, Question] = {}
    for number, row in enumerate(rows, 1):
        place = f"{directory / f'{name}.json'}: question {number}"
        if not isinstance(row, dict):
            raise UsageError(f"{place}: is no object")
        text = _string(row, "question", place).strip()
        if not text:
            raise UsageError(f'{place}: there is no "question"')
        identifier = identifier_of(row.get("id", row.get("_id")), place) or str(number)
        if identifier in questions:
            raise UsageError(f"{place}: the id {identifier!r} is that of another question already")
        answerable = row.get("answerable") is not False
        gold = [_known(passage, by_text, by_title) for passage in _needed(row, place)] if answerable else []
        kind = _string(row, "type", place) if answerable else str(Kind.NULL)
        questions[identifier] = Question(
            identifier, text, tuple(dict.fromkeys(map(Gold, gold))), answers_of(row, place, HIPPO_ANSWERS), kind
        )
    return EvaluationSet(name, documents, tuple(questions.values()))


def _passages(corpus: Any, place: str) -> Iterable[tuple[str, str]]:
    if isinstance(corpus, dict):
        corpus = [{"title": title, "text": text} for title, text in corpus.items()]
    if not isinstance(corpus, list) or not corpus:
        raise UsageError(f"{place}: is neither a list of passages nor an object of texts by title")
    for number, item in enumerate(corpus, 1):
        yield _passage(item, f"{place}: passage {number}")


def _passage(item: Any, place: str) -> tuple[str, str]:
    """Title and text of {title, text or paragraph_text} or [title, sentences]."""
    if isinstance(item, list) and len(item) == 2:
        item = {"title": item[0], "text": item[1]}
    if not isinstance(item, dict):
        raise UsageError(f"{place}: is no object with title and text")
    title = _string(item, "title", place)
    text = item.get("text", item.get("paragraph_text"))
    if isinstance(text, list) and all(isinstance(sentence, str) for sentence in text):
        own_spaces = any(sentence[:1].isspace() for sentence in text[1:])
        text = ("" if own_spaces else " ").join(text)
    if not isinstance(text, str):
        raise UsageError(f"{place}: has no text")
    return " ".join(title.split()), text


def _needed(row: Mapping[str, Any], place: str) -> list[tuple[str, str]]:
    """Titles and texts of the passages that a question needs."""
    facts, context = row.get("supporting_facts"), row.get("context")
    if facts is not None:
        if isinstance(facts, dict) and isinstance(context, dict):  # columns instead of rows
            facts = [[title] for title in _sequence(facts.get("title"), "supporting_facts", place)]
            columns = (_sequence(context.get(c), "context", place) for c in ("title", "sentences"))
            context = [list(pair) for pair in zip(*columns, strict=False)]
        titles = {
            " ".join(fact[0].split())
            for fact in _sequence(facts, "supporting_facts", place)
            if isinstance(fact, list) and fact and isinstance(fact[0], str)
        }
        found = [_passage(item, f"{place}: context") for item in _sequence(context, "context", place)]
        told = {title for title, _ in found}
        return [p for p in found if p[0] in titles] + [(title, "") for title in sorted(titles - told)]
    for name in ("paragraphs", "contexts"):
        if row.get(name) is not None:
            items = _sequence(row[name], name, place)
            needed = [i for i in items if not isinstance(i, dict) or i.get("is_supporting", True)]
            return [_passage(item, f"{place}: {name}") for item in needed]
    return []


def _known(passage: tuple[str, str], by_text: Mapping[tuple[str, str], str], by_title: Mapping[str, set[str]]) -> str:
    """The uri of a passage: that of its title and text, else of its title where only one has it, else none's."""
    title, text = map(compact, passage)
    alike = by_title.get(title, set())
    return by_text.get((title, text)) or (next(iter(alike)) if len(alike) == 1 else f"not in the corpus: {passage[0]}")


# ---------------------------------------------------------------- fields


def _json(file: Path) -> Any:
    try:
        return json_value(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None


def _identifier(row: Mapping[str, Any], key: str, place: str) -> str:
    found = identifier_of(row.get(key), place)
    if not found:
        raise UsageError(f'{place}: there is no "{key}"')
    return found


def _string(row: Mapping[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    if not isinstance(value, str | None):
        raise UsageError(f'{place}: "{name}" is no text')
    return value or ""


def _sequence(value: Any, name: str, place: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise UsageError(f'{place}: "{name}" is no list')
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
