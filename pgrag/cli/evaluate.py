"""The command that measures how well the right passages are found."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgrag.cli.evaluation_tables import print_report, searches_progress
from pgrag.cli.ingest import LLMModel, MaxCost, Progress, failure_line, within_budget
from pgrag.cli.output import amount, emit, emit_json, note
from pgrag.cli.progress import ingest_progress
from pgrag.cli.session import Session, takes_session
from pgrag.errors import ExitCode, UsageError
from pgrag.types import Mode

if TYPE_CHECKING:
    from pgrag.config import Settings
    from pgrag.evaluate.layouts import EvaluationSet
    from pgrag.evaluate.results import EvaluationReport, Question
    from pgrag.rag import PgRAG
    from pgrag.types import IngestReport

GRID, QUESTIONS, REPORT = "What is compared", "Questions", "Report"
MOST_CHUNKS = 200  # that a search can return
_SHARES = ("mrr", "ndcg", "precision", "exact_match", "f1")

_EPILOG = """[bold]Examples[/bold]

pgrag eval questions.jsonl --html report.html

pgrag eval questions.jsonl --mode naive --mode mix --set chunk_ranking=vector,pagerank --set hops=1,2

pgrag eval questions.jsonl --mode mix --fail-under recall@5=.8

pgrag -w musique eval datasets/musique/ --ingest --limit 200 --out musique.json

pgrag eval questions.jsonl --answers --judge naive,mix --llm-model openai/gpt-4o-mini --max-cost 1

pgrag eval --make-questions 30 --out questions.jsonl --llm-model openai/gpt-4o-mini

[bold]A question[/bold] is a line of JSON, such as {"question": "Who keeps the lamp?", "kind": "single_fact", \
"answers": ["Ingrid"], "gold": [{"document": "docs/lamp.md", "text": "Ingrid keeps it."}]}. A passage that it needs is \
named by its document, by document and chunk ("ordinal", from 0), or by its text. Usual kinds are single_fact, \
aggregation, multi_hop, thematic and null (the documents do not answer it). A data set is a directory in the layout of \
BEIR or HippoRAG, or with corpus.jsonl and questions.jsonl; of several in one, name NAME.json or qrels/SPLIT.tsv."""


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("eval", rich_help_panel="Look", epilog=_EPILOG)(evaluate)


@takes_session
def evaluate(
    session: Session,
    questions: Annotated[
        Path | None, typer.Argument(metavar="QUESTIONS", help="JSON lines file, or data set with a corpus.")
    ] = None,
    mode: Annotated[
        list[Mode] | None,
        typer.Option(help="Mode to compare; repeatable (default naive and mix).", rich_help_panel=GRID),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=V1,V2",
            help="Query option and its values, each tried in every mode that has it; repeatable.", rich_help_panel=GRID,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="VARIANT", help="What the others are compared to (default naive).",
                     rich_help_panel=GRID),
    ] = None,
    k: Annotated[
        str, typer.Option("--k", metavar="K,K", help="How many passages to look at.", rich_help_panel=GRID)
    ] = "2,5,10",
    answers: Annotated[
        bool,
        typer.Option("--answers", help="Answer the questions, too, and measure the answers.", rich_help_panel=GRID),
    ] = False,
    judge: Annotated[
        str | None,
        typer.Option(metavar="VARIANT,VARIANT", help="Let the LLM judge the answers of two variants.",
                     rich_help_panel=GRID),
    ] = None,
    ingest: Annotated[
        bool,
        typer.Option("--ingest", help="First ingest the directory's documents; skips what is unchanged.",
                     rich_help_panel=QUESTIONS),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Ask the first N questions only.", rich_help_panel=QUESTIONS)
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Ask questions of this kind only; repeatable.", rich_help_panel=QUESTIONS),
    ] = None,
    make_questions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Draft N questions from your documents with the LLM, and stop.",
                     rich_help_panel=QUESTIONS),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with plots and every question.",
                                  rich_help_panel=REPORT)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the whole report as JSON; the questions with --make-questions.",
                     rich_help_panel=REPORT),
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=VALUE", help="Exit code 1 if a variant (not the baseline) has less; repeatable.",
                     rich_help_panel=REPORT),
    ] = None,
    llm_model: LLMModel = None,
    max_cost: MaxCost = None,
    progress: Progress = None,
) -> int:  # fmt: skip
    """Ask questions whose needed passages are known, in several ways, and compare what is found.

    Prints a table for each kind of question: recall@k (share of the needed passages among the first k), all@k (share
    of questions with all of them), MRR, nDCG, precision, EM and F1 of the answers, tokens, cost and milliseconds, with
    95 % intervals; then gains over the baseline on the same questions, with * where they are more than chance; then in
    words which variant is best for what, and how many questions it would take to tell where these are too few.
    """
    settings = session.settings(llm_model=llm_model, max_cost=max_cost)
    for file, option in ((html, "--html"), (out, "--out")):
        _check_writable(file, option)
    if make_questions is not None:
        if questions is not None or out is None:
            raise UsageError("--make-questions drafts from the workspace's documents: give --out FILE, no QUESTIONS")
        return _draft(session, settings, make_questions, out)
    if questions is None:
        raise UsageError("give QUESTIONS, a JSON lines file or a directory, or --make-questions N to draft some")
    ks = _ks(k)
    least = [_least(text, ks) for text in fail_under or ()]
    grid = _grid(options or ())
    judged = None if judge is None else _pair(judge)
    if judged is not None:
        _require_llm(settings, "--judge")
    given = _load(questions, ingest)
    asked = _chosen(given.questions, kind or (), limit)

    async def work(rag: PgRAG) -> tuple[EvaluationReport, IngestReport | None]:
        ingested = None
        if ingest:
            with ingest_progress(progress, verbose=session.verbose) as show:
                ingested = await rag.ingest(given.documents, progress=show)
        with searches_progress(progress, verbose=session.verbose) as count:
            report = await rag.evaluate(
                asked, modes=mode or (Mode.NAIVE, Mode.MIX), options=grid, baseline=baseline or "", ks=ks,
                answers=answers or judged is not None, judge=judged, progress=count,
            )  # fmt: skip
        return replace(report, name=given.name, warnings=(*given.warnings, *report.warnings)), ingested

    report, ingested = within_budget(session, settings, work)
    missed = _missed(report, least)
    if session.json:
        from pgrag.evaluate.export import to_json

        emit_json(to_json(report, details=False))
    else:
        print_report(report)
    _write_files(report, html, out)
    for line in missed:
        note(f"pgrag: {line}")
    failures = [] if ingested is None else ingested.failures
    for failure in failures:
        note(f"pgrag: not ingested: {failure_line(failure)}")
    if stopped := report.settings.get("stopped"):  # the report is of the questions before
        note(f"pgrag: error: {stopped}")
        return ExitCode.BUDGET if "max_cost" in stopped else ExitCode.SOME_FAILED
    failed = bool(missed or failures) or any(row.errors for row in report.rows)
    return ExitCode.SOME_FAILED if failed else ExitCode.OK


# ---------------------------------------------------------------- what is given


def _ks(given: str) -> tuple[int, ...]:
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_CHUNKS for part in parts):
        raise UsageError(f"--k {given!r}: write numbers from 1 to {MOST_CHUNKS} with commas between, as 2,5,10")
    return tuple(sorted(set(map(int, parts))))


def _grid(given: Sequence[str]) -> dict[str, list[str]]:
    """Values by option name; their types are checked where they are used."""
    grid: dict[str, list[str]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        name, listed = name.strip().replace("-", "_"), [value.strip() for value in values.split(",")]
        if not name or not equals or not all(listed):
            raise UsageError(f"--set {text!r}: write NAME=VALUE or NAME=VALUE,VALUE, as chunk_ranking=vector,pagerank")
        if name in grid:
            raise UsageError(f"--set {name} is given twice: write all its values in one, as {name}=A,B")
        grid[name] = list(dict.fromkeys(listed))
    return grid


def _pair(given: str) -> tuple[str, str]:
    parts = [" ".join(part.split()) for part in given.split(",")]
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise UsageError(f"--judge {given!r}: name two variants with a comma between, as naive,mix")
    return parts[0], parts[1]


def _least(given: str, ks: Sequence[int]) -> tuple[str, float]:
    name, equals, number = (part.strip() for part in given.partition("="))
    known = [f"{metric}@{k}" for metric in ("recall", "all_gold") for k in ks] + list(_SHARES)
    if name not in known:
        raise UsageError(f"--fail-under {given!r}: unknown metric {name!r}: use {', '.join(known)}")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not 0 <= value <= 1:
        raise UsageError(f"--fail-under {given!r}: write METRIC=VALUE with a value from 0 to 1, as {name}=.8")
    return name, value


def _check_writable(file: Path | None, option: str) -> None:
    """Before anything is asked or paid for."""
    if file is None:
        return
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise UsageError(f"{option} {file}: not a file in a directory that exists")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise UsageError(f"{option} {file}: cannot be written to by this user")


def _load(path: Path, ingest: bool) -> EvaluationSet:
    """The set at the path: a directory, one set's file in it (NAME.json of HippoRAG, qrels/SPLIT.tsv of BEIR), or a
    file of questions alone."""
    from pgrag.evaluate.layouts import CORPUS, EvaluationSet, load_layout
    from pgrag.evaluate.questions import load_questions

    if path.is_dir():
        return load_layout(path)
    name = path.name.removesuffix(CORPUS).removesuffix(".json")
    if path.suffix == ".json" and path.with_name(name + CORPUS).is_file():
        return load_layout(path.parent, name=name)
    if path.suffix == ".tsv" and path.parent.name == "qrels":
        return load_layout(path.parent.parent, split=path.stem)
    if ingest:
        raise UsageError(f"--ingest: {path} is no set with a corpus; use pgrag ingest for your documents")
    questions, warnings = load_questions(path)
    return EvaluationSet(path.stem, (), tuple(questions), tuple(warnings))


def _chosen(questions: Sequence[Question], kinds: Sequence[str], limit: int | None) -> list[Question]:
    chosen = [question for question in questions if not kinds or question.kind in kinds][:limit]
    if not chosen and questions:
        there = sorted({question.kind for question in questions if question.kind})
        raise UsageError(f"no question is of kind {', '.join(kinds)}: use {', '.join(there) or 'no --kind'}")
    return chosen


# ---------------------------------------------------------------- what comes of it


def _missed(report: EvaluationReport, least: Sequence[tuple[str, float]]) -> list[str]:
    """What --fail-under found: of all variants but the baseline, or of the baseline where it is alone."""
    rows = [row for row in report.rows if row.kind == ""]
    compared = [row for row in rows if row.variant != report.baseline] or rows
    missed = []
    for name, value in least:
        for row in compared:
            found = row.metrics.get(name)
            if found is None:
                missed.append(f"--fail-under {name}={value:g}: {row.variant} has no {name}")
            elif found.mean < value:
                missed.append(f"--fail-under {name}={value:g}: {row.variant} has {found.mean:.4g}")
    return missed


def _write_files(report: EvaluationReport, html: Path | None, out: Path | None) -> None:
    if out is not None:
        from pgrag.evaluate.export import to_json

        _write(out, json.dumps(to_json(report), ensure_ascii=False, indent=1) + "\n")
    if html is not None:
        from pgrag.evaluate.page import to_html

        _write(html, to_html(report))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, "utf-8", "backslashreplace")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None


def _draft(session: Session, settings: Settings, count: int, out: Path) -> int:
    from pgrag.evaluate.drafting import check_target, write_questions

    _require_llm(settings, "--make-questions")
    check_target(out)
    drafted = within_budget(session, settings, lambda rag: rag.draft_questions(count))
    if drafted.questions:
        write_questions(out, drafted.questions)
    by_kind = Counter(question.kind for question in drafted.questions)
    if session.json:
        emit_json(
            {"questions": len(drafted.questions), "kinds": by_kind, "attempts": drafted.attempts,
             "dropped": drafted.dropped, "warnings": drafted.warnings}
        )  # fmt: skip
    else:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in by_kind.items())
        made = f"wrote {amount(len(drafted.questions), 'question')} to {out} ({kinds})" if by_kind else "no questions"
        emit("\n".join([made, *(f"warning: {warning}" for warning in drafted.warnings)]))
    return ExitCode.OK if drafted.questions else ExitCode.SOME_FAILED


def _require_llm(settings: Settings, option: str) -> None:
    if (settings.evaluate_model or settings.llm_model) is None:
        raise UsageError(f"{option}: no LLM is named; set --llm-model or PGRAG_LLM_MODEL")
