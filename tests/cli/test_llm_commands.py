"""The commands with a language model behind a scripted server: dry run, budget, retry, cost, answers and streams."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pgrag import cli
from pgrag.cli.query import _cited
from pgrag.types import IngestEstimate, IngestReport
from tests.cli.command import COMMAND, environment
from tests.cli.test_commands import names
from tests.support.limits import PROGRAM_SECONDS
from tests.support.llm import KEY, Brain, enclosed, record, think
from tests.support.openai_server import OpenAIServer, Reply, Request
from tests.support.rag import count, rows

SENTENCE = "{name} sailed the long way round the cape with a cargo of tea and a crew of twenty men."
VOYAGES = "\n\n".join(SENTENCE.format(name=name) for name in ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir"))
WORKSPACE = "voyages"  # vectors of the server's length, not of the template's


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def llm() -> Iterator[OpenAIServer]:
    with OpenAIServer(dimension=64) as running:
        yield running


@pytest.fixture
def settings(words_dsn: str, llm: OpenAIServer, tmp_path: Path) -> dict[str, str]:
    """Priced models behind the server, as environment variables."""
    return {
        "PGRAG_DSN": words_dsn, "PGRAG_WORKSPACE": WORKSPACE, "PGRAG_LLM_MODEL": "openai/gpt-4o-mini",
        "PGRAG_LLM_API_BASE": llm.url, "PGRAG_LLM_API_KEY": KEY, "PGRAG_LLM_RETRIES": "0",
        "PGRAG_EMBEDDING_MODEL": "openai/text-embedding-3-small", "PGRAG_EMBEDDING_API_BASE": llm.url,
        "PGRAG_EMBEDDING_API_KEY": KEY, "PGRAG_EMBEDDING_DIMENSION": "64", "PGRAG_CHUNK_TOKENS": "32",
        "PGRAG_CHUNK_OVERLAP": "0", "PGRAG_MAX_ATTEMPTS": "1",
    }  # fmt: skip


@pytest.fixture
def run(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Run]:
    """Runs a command line in this process, which has LiteLLM loaded already."""
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    logger = logging.getLogger("pgrag")
    before = (logger.handlers, logger.propagate, logger.level)

    def command(*words: str, **more: str) -> Result:
        with monkeypatch.context() as patch:
            for name, value in more.items():
                patch.setenv(name, value)
            code = cli.main(list(words))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    yield command
    logger.handlers, logger.propagate = before[0], before[1]
    logger.setLevel(before[2])


@pytest.fixture
def voyages(tmp_path: Path) -> str:
    (tmp_path / "voyages.txt").write_text(VOYAGES, "utf-8")
    return str(tmp_path / "voyages.txt")


# ---------------------------------------------------------------- what it will cost, and what it has


def test_a_dry_run_tells_the_cost_and_asks_nobody(run: Run, llm: OpenAIServer, voyages: str) -> None:
    told = run("ingest", voyages, "--dry-run")
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == "would add 1, update 0, skip 0, fail 0 documents: 6 chunks, 6 to extract"
    found = run("ingest", voyages, "--dry-run", "--json").json
    assert set(found) == names(IngestEstimate)
    assert (found["llm_calls"], found["extraction_model"]) == (12, "openai/gpt-4o-mini")
    assert lines[1] == (
        f"openai/gpt-4o-mini: 12 calls at most, about {found['prompt_tokens']:,} prompt "
        f"and {found['completion_tokens']:,} completion tokens"
    )
    assert lines[2] == f"openai/text-embedding-3-small: about {found['embedding_tokens']:,} tokens to embed"
    assert lines[3] == f"cost: about ${found['cost']:.6f}"
    assert 0.002 < found["cost"] < 0.01
    assert lines[4].startswith("assumed: answers of 1.2 tokens")
    unknown = run("ingest", voyages, "missing.md", "--dry-run", "--llm-model", "openai/my-own")
    assert unknown.code == 1
    assert "\nopenai/my-own: 12 calls at most" in unknown.out
    assert "\ncost: not known, a model has no price" in unknown.out
    assert "\nfailed: file://" in unknown.out
    assert llm.requests == []
    assert run("status").code == 3, "there is no workspace still"


def test_max_cost_stops_with_its_own_exit_code_and_the_same_command_goes_on(
    run: Run, llm: OpenAIServer, voyages: str, settings: dict[str, str]
) -> None:
    brain = think(llm)
    stopped = run("ingest", voyages, "--max-cost", "0.0015", PGRAG_LLM_CONCURRENCY="1", PGRAG_CLAIM_BATCH="1")
    assert (stopped.code, stopped.out) == (4, "")
    assert stopped.err.startswith("pgrag: error: stopped before a request to openai/gpt-4o-mini: $")
    assert "exceed max_cost $0.0015; what is done is kept" in stopped.err
    assert stopped.err.endswith("(--max-cost DOLLARS; each run may spend so much)\n")
    asked = brain.counts["extraction"]
    assert 0 < asked < 6
    done = run("ingest", voyages, "--max-cost", "1")
    assert (done.code, brain.counts["extraction"]) == (0, 6), "nothing is paid for twice"
    status = run("status", "--json").json
    assert {row["purpose"]: row["calls"] for row in status["usage"]}.items() >= {"extraction": 6, "gleaning": 6}.items()
    total = sum(row["cost"] for row in status["usage"])
    shown = [line.split(maxsplit=1)[1] for line in run("status").out.splitlines() if line.startswith("cost ")]
    assert shown[0].startswith(f"${total:.4f}, " if total >= 0.01 else f"${total:.6f}, ")
    assert any(line.startswith("extraction by openai/gpt-4o-mini: $0.00") for line in shown)
    assert any(", 6 calls, " in line and line.endswith(" tokens") for line in shown)


def test_status_names_calls_without_a_price(run: Run, llm: OpenAIServer, voyages: str) -> None:
    think(llm)
    assert run("ingest", voyages, "--llm-model", "openai/my-own").code == 0
    shown = [line.split(maxsplit=1)[1] for line in run("status").out.splitlines() if line.startswith("cost ")]
    [extraction] = [line for line in shown if line.startswith("extraction by openai/my-own: ")]
    assert extraction.startswith("extraction by openai/my-own: cost not known, 6 calls, ")
    assert "12 calls without a known price" in shown[0]


def test_retry_runs_what_failed(run: Run, llm: OpenAIServer, voyages: str) -> None:
    def refusing(request: Request) -> Reply:
        text = enclosed(request, "passage")
        return Reply("I cannot help with that.") if "Elm" in text else Reply(json.dumps(record(text)))

    brain = think(llm, extraction=refusing)
    failed = run("ingest", voyages)
    assert (failed.code, failed.out.count("failed: ")) == (1, 1)
    assert "(chunk 4): " in failed.out
    brain.replies.clear()
    brain.forget()
    again = run("retry")
    assert again.code == 0
    assert again.out.startswith("tried 1 chunk again in ")
    assert brain.counts["extraction"] == 1
    nothing = run("retry", "--json")
    assert (nothing.code, set(nothing.json), nothing.json["chunks"]) == (0, names(IngestReport), 0)


# ---------------------------------------------------------------- documents


def test_what_documents_are_given_and_how_they_are_cut(
    run: Run, llm: OpenAIServer, tmp_path: Path, settings: dict[str, str]
) -> None:
    think(llm)
    (tmp_path / "log.txt").write_text("Alder met Birch.\n\nCedar met Elm.\n\n\n\nFir met Gorse.", "utf-8")
    given = ["--metadata", "team=search", "--metadata", "note=a=b", "--published-at", "2024-05-31"]
    report = run("ingest", "log.txt", *given, "--split-by", r"\n\n", "--json").json
    assert (report["added"], report["chunks"]) == (1, 3)
    [document] = run("documents", "--json").json["documents"]
    assert document["metadata"] == {"team": "search", "note": "a=b"}
    assert document["published_at"] == "2024-05-31T00:00:00+00:00"
    bodies = rows(settings["PGRAG_DSN"], "select body from chunk order by ordinal", schema="pgrag_voyages")
    assert bodies == [("Alder met Birch.\n\n",), ("Cedar met Elm.\n\n\n\n",), ("Fir met Gorse.",)]
    (tmp_path / "long.txt").write_text(VOYAGES.replace("\n\n", " "), "utf-8")
    strict = run("ingest", "long.txt", "--split-by", r"\n\n", "--split-only")
    assert strict.code == 1
    assert "tokens between two separators" in strict.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ingest", "a.md", "--metadata", "team"], "--metadata 'team': write KEY=VALUE"),
        (["ingest", "a.md", "--published-at", "yesterday"], "--published-at 'yesterday' is no ISO 8601 date"),
        (["ingest", "a.md", "--split-only"], "split_by_character_only given as split_by_character_only: "),
        (["ingest", "a.md", "--max-cost", "-1"], "max_cost"),
        (["query", "why?", "--stream", "--json"], "--stream prints an answer as it is written"),
        (["query", "why?", "--only-context", "--only-prompt"], "not both"),
        (["query", "why?", "--history", "gone.json"], "cannot read --history gone.json: No such file"),
        (["query", "why?", "--history", "bad.json"], "--history bad.json is not JSON"),
        (["query", "why?", "--history", "object.json"], "--history object.json: not a list"),
        (["query", "why?", "--history", "strings.json"], "conversation_history is a list of turns"),
    ],
)
def test_wrong_use_is_told_before_anything_is_asked(
    run: Run, llm: OpenAIServer, tmp_path: Path, words: list[str], told: str
) -> None:
    for name, text in (("bad", "[{"), ("object", "{}"), ("strings", '["hello"]')):
        (tmp_path / f"{name}.json").write_text(text, "utf-8")
    result = run(*words)
    assert result.code == 2
    assert told in result.err
    assert llm.requests == []


# ---------------------------------------------------------------- answers


@pytest.fixture
def asked(run: Run, llm: OpenAIServer, voyages: str) -> Brain:
    """A workspace with the voyages; what was asked for it is forgotten."""
    brain = think(llm)
    assert run("ingest", voyages).code == 0
    brain.forget()
    return brain


def test_an_answer_names_the_references_it_cites_and_counts_the_others(run: Run, asked: Brain, tmp_path: Path) -> None:
    asked.replies["answer"] = Reply("They took tea [2]. And crews [1, 3].")
    (tmp_path / "turns.json").write_text('[{"role": "user", "content": "Tell me of ships."}]', "utf-8")
    words = ["--response-type", "one line", "--user-prompt", "Be brief.", "--history", "turns.json"]
    result = run("query", "What did Alder and Birch take?", *words)
    assert (result.code, result.err) == (0, "")
    answer, references, notice = result.out.strip().split("\n\n")
    assert answer == "They took tea [2]. And crews [1, 3]."
    lines = references.splitlines()
    assert [line[:3] for line in lines[:3]] == ["[1]", "[2]", "[3]"]
    assert lines[3:] == ["and 3 more passages in the context (--json shows them)"]
    assert notice == "answer by openai/gpt-4o-mini"
    [request] = asked.of("answer")
    system, turn = request.body["messages"][:2]
    assert "one line" in system["content"]
    assert "Be brief." in system["content"]
    assert turn == {"role": "user", "content": "Tell me of ships."}
    shown = run("query", "What did Alder and Birch take?", *words, "--json")
    assert len(shown.json["references"]) == 6
    assert asked.counts["answer"] == 1, "the second came from the cache"

    asked.replies["answer"] = Reply("Nobody knows.")
    assert "no citation; 6 passages in the context (--json shows them)" in run("query", "And what else?").out


def test_prompts_contexts_and_mode_bypass(run: Run, asked: Brain) -> None:
    prompt = run("query", "What did Alder take?", "--only-prompt").out
    assert prompt.startswith("--- system ---\nYou answer a question from the sources")
    assert "What did Alder take?" in prompt
    context = run("query", "What did Alder take?", "--only-context").out
    assert context.startswith("# Entities\n")
    assert context.strip() in prompt
    assert (asked.counts["keywords"], asked.counts["answer"]) == (1, 0)
    asked.replies["bypass"] = Reply("Hello to you.")
    assert run("query", "Hello", "--mode", "bypass").out == "Hello to you.\n\nanswer by openai/gpt-4o-mini\n"
    assert asked.of("bypass")[0].body["messages"] == [{"role": "user", "content": "Hello"}]
    none = run("query", "why?", "--only-prompt", PGRAG_LLM_MODEL="")
    assert (none.code, "no LLM is named" in none.err) == (2, True)


def test_streams(run: Run, asked: Brain) -> None:
    asked.replies["answer"] = Reply("They took\x1b[2J tea [1].\nMuch of it.")
    streamed = run("query", "What did Alder take?", "--stream")
    assert (streamed.code, streamed.err) == (0, "")
    assert streamed.out.startswith("They took\\u001b[2J tea [1].\nMuch of it.\n\n[1] file://")
    whole = run("query", "What did Alder take?", "--no-stream")
    assert whole.out == streamed.out
    assert asked.of("answer")[0].body["stream"] is True
    assert asked.counts["answer"] == 1
    asked.replies["answer"] = Reply("They took tea and then", piece_delay=0.01, cut=3)
    broken = run("query", "What did Birch take?", "--stream")
    assert broken.code == 1
    assert broken.out.startswith("They took")
    assert broken.out.endswith("\n")
    assert broken.err.startswith("pgrag: error: openai/gpt-4o-mini")


def test_at_a_terminal_an_llm_answer_is_streamed_by_itself(asked: Brain, settings: dict[str, str]) -> None:
    asked.replies["answer"] = Reply("They took tea [1] and sailed away.", piece_delay=0.05)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "query", "What did Cedar take?"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment(**settings),
    )
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        pieces.append(piece.decode())
    os.close(ours)
    _, err = process.communicate(timeout=PROGRAM_SECONDS)
    assert (process.returncode, err) == (0, b"")
    assert len(pieces) > 3, "in pieces"
    assert "".join(pieces).replace("\r\n", "\n").startswith("They took tea [1] and sailed away.\n\n[1] file://")


def test_citations_as_models_write_them() -> None:
    assert _cited("A [1]. B [2, 3][5]. C [7-9]. D 【11】, [12；13] [14、15] [17–18].") == {
        1, 2, 3, 5, 7, 8, 9, 11, 14, 15, 17, 18,
    }  # fmt: skip
    assert _cited("none [a] [-1] [] 4 [x1] [1999-999999999999]") >= {1999}
    assert len(_cited("[1-999999999999]")) < 2000


def test_nothing_of_all_this_touches_the_default_workspace(run: Run, asked: Brain, settings: dict[str, str]) -> None:
    assert count(settings["PGRAG_DSN"], "document") == 0
