"""`pgrag eval`: what it refuses before it asks anything, its tables, files and exit codes on a real database."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pgrag import cli
from tests.cli.command import COMMAND, UNREACHABLE, environment, pgrag
from tests.support import postgres
from tests.support.limits import PROGRAM_SECONDS
from tests.support.llm import KEY, think
from tests.support.openai_server import OpenAIServer, Reply, Request

PAGES = {
    "varnholm.md": "# Harbour lights\n\nThe lighthouse of Varnholm is kept by Ingrid Solberg, who came from Bergen.\n",
    "storm.md": "# Repairs\n\nIn March the Coastal Agency replaced the lamp of Varnholm after the storm Agathe.\n",
    "tea.md": "# Tea\n\nGreen tea is steeped for two minutes in water of eighty degrees.\n",
    "bread.md": "# Bread\n\nA sourdough loaf rises for twelve hours in a cool cellar.\n",
    "institute.txt": "王小明在上海的东方研究所工作。东方研究所由李华于一九九八年创立。\n",
}
QUESTIONS: list[dict[str, Any]] = [
    {"id": "keeper", "question": "Who keeps the lighthouse of Varnholm?", "kind": "single_fact",
     "answers": ["Ingrid Solberg"], "gold": [{"document": "docs/varnholm.md", "text": "kept by Ingrid Solberg"}]},
    {"id": "tea", "question": "How long is green tea steeped?", "kind": "single_fact", "answers": ["two minutes"],
     "gold": ["tea.md"]},
    {"id": "founder", "question": "东方研究所由谁创立？", "kind": "single_fact", "answers": ["李华"],
     "gold": [{"document": "institute.txt", "ordinal": 0}]},
    {"id": "both", "question": "Who kept the light of Varnholm, and what did the storm break there?",
     "kind": "multi_hop", "gold": ["varnholm.md", "storm.md"]},
    {"id": "gone", "question": "What does the brewery <b>sell</b>?", "kind": "multi_hop", "gold": ["brewery.md"]},
    {"id": "nothing", "question": "Who won the chess game?", "kind": "null"},
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document printed by a command that had nothing else to say."""
        assert (self.code, self.err) == (0, ""), self.err
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Runs a command line in this process, which has loaded the models' libraries already, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PGRAG_")]:
        monkeypatch.delenv(name)
    logger = logging.getLogger("pgrag")
    before = (logger.handlers, logger.propagate, logger.level)

    def command(*words: str, dsn: str, **settings: str) -> Result:
        with monkeypatch.context() as patch:
            for name, value in {"PGRAG_DSN": dsn, **settings}.items():
                patch.setenv(name, value)
            code = cli.main(list(words))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    yield command
    logger.handlers, logger.propagate = before[0], before[1]
    logger.setLevel(before[2])


def assert_refused(result: Result, code: int, *told: str) -> None:
    """Nothing but one line on standard error that tells all this."""
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1), result.err
    assert result.err.startswith("pgrag: error: ")
    for words in told:
        assert words in result.err


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def questions(tmp_path: Path) -> str:
    return str(written(tmp_path / "harbour.jsonl", QUESTIONS))


@pytest.fixture(scope="module")
def filled(server: postgres.Postgresql, template: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The DSN of a database with the pages in it."""
    folder = tmp_path_factory.mktemp("set") / "docs"
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / name).write_text(text, "utf-8")
    postgres.create_database(server.url(), "evaluate_command", template=template)
    dsn: str = server.url(database="evaluate_command")
    assert pgrag("ingest", str(folder), dsn=dsn).returncode == 0
    return dsn


def lines_of(output: str) -> dict[str, list[list[str]]]:
    """The tables of an output that is no terminal's, by the line above them."""
    tables: dict[str, list[list[str]]] = {}
    title = ""
    for line in output.splitlines():
        if "\t" in line:
            tables.setdefault(title, []).append(line.split("\t"))
        else:
            title = line
    return tables


# ---------------------------------------------------------------- before anything is asked


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ("QUESTIONS", "--make-questions")),
        (["missing.jsonl"], ("missing.jsonl", "No such file")),
        (["Q", "--k", "5,many"], ("--k '5,many'", "2,5,10")),
        (["Q", "--k", "0"], ("--k '0'",)),
        (["Q", "--set", "top_k"], ("--set 'top_k'", "NAME=VALUE")),
        (["Q", "--set", "top_k="], ("--set 'top_k='",)),
        (["Q", "--set", "top_k=1", "--set", "top-k=2"], ("--set top_k", "twice")),
        (["Q", "--fail-under", "recall@7=.5"], ("recall@7", "recall@5", "mrr")),
        (["Q", "--fail-under", "mrr"], ("METRIC=VALUE", "mrr=.8")),
        (["Q", "--fail-under", "mrr=7"], ("from 0 to 1",)),
        (["Q", "--fail-under", "mrr=nan"], ("from 0 to 1",)),
        (["Q", "--fail-under", "seconds=.1"], ("unknown metric 'seconds'",)),
        (["Q", "--kind", "riddle"], ("riddle", "multi_hop, null, single_fact")),
        (["Q", "--limit", "0"], ("--limit",)),
        (["Q", "--judge", "naive"], ("--judge 'naive'", "naive,mix")),
        (["Q", "--judge", "mix,mix"], ("two variants",)),
        (["Q", "--judge", "naive,mix"], ("--judge", "PGRAG_LLM_MODEL")),
        (["Q", "--ingest"], ("--ingest", "pgrag ingest")),
        (["Q", "--html", "/no/such/folder/r.html"], ("--html", "/no/such/folder")),
        (["Q", "--out", "."], ("--out .",)),
        (["Q", "--mode", "psychic"], ("'psychic'", "'mix'")),
        (["Q", "--make-questions", "5", "--out", "new.jsonl"], ("--make-questions", "no QUESTIONS")),
        (["--make-questions", "5"], ("--out FILE",)),
        (["--make-questions", "5", "--out", "new.jsonl"], ("PGRAG_LLM_MODEL",)),
        (["."], ("no evaluation set", "corpus.jsonl")),
        (["list.json"], ("list.json:1", "JSON lines")),
    ],
)
def test_wrong_words_are_one_clear_line_before_any_connection(
    run: Run, words: list[str], told: tuple[str, ...], questions: str, tmp_path: Path
) -> None:
    (tmp_path / "list.json").write_text('[\n{"question": "why?"}\n]', "utf-8")
    given = [questions if word == "Q" else word for word in words]
    assert_refused(run("eval", *given, dsn=UNREACHABLE), 2, *told)
    assert not (tmp_path / "new.jsonl").exists()


def test_a_broken_line_is_named_by_file_and_number(run: Run, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "why?", "gold": ["a"]}\n{"question": \n', "utf-8")
    assert_refused(run("eval", "q.jsonl", dsn=UNREACHABLE), 2, "q.jsonl:2", "JSON")


def test_questions_without_a_corpus_are_to_be_given_themselves(run: Run, tmp_path: Path) -> None:
    written(tmp_path / "questions.jsonl", QUESTIONS)
    assert_refused(run("eval", ".", dsn=UNREACHABLE), 2, "no evaluation set", "give questions.jsonl itself")


def test_wrong_options_of_a_search_are_told_with_what_is_allowed(run: Run, filled: str, questions: str) -> None:
    assert_refused(run("eval", questions, "--set", "depth=3", dsn=filled), 2, "depth", "chunk_ranking")
    assert_refused(run("eval", questions, "--set", "top_k=many", dsn=filled), 2, "top_k")
    assert_refused(run("eval", questions, "--baseline", "nobody", dsn=filled), 2, "'nobody'")


def test_without_a_workspace_there_is_advice(run: Run, empty_dsn: str, questions: str) -> None:
    assert_refused(run("eval", questions, dsn=empty_dsn), 3, "pgrag init")


# ---------------------------------------------------------------- what is printed


@pytest.mark.models
def test_tables_by_kind_of_question_with_gains_and_the_best(run: Run, filled: str, questions: str) -> None:
    result = run("eval", questions, "--set", "chunk_ranking=vector,pagerank", "--answers", dsn=filled)
    assert (result.code, result.err) == (0, "")
    tables = lines_of(result.out)
    first, second = "mix chunk_ranking=vector", "mix chunk_ranking=pagerank"
    single, multi, null, every = (
        tables[f"{kind} (± half of the 95 % interval)"]
        for kind in (
            "single fact: 3 questions",
            "multi hop: 2 questions",
            "null: 1 question",
            "all: 6 questions",
        )
    )
    found = ["recall@2", "recall@5", "recall@10", "all@5", "MRR", "nDCG", "precision"]
    assert single[0] == ["variant", *found, "EM", "F1", "tokens", "ms"], "nothing was paid for: no LLM tokens, no cost"
    assert null[0] == ["variant", "EM", "tokens", "ms"]
    assert [row[0] for row in every[1:]] == ["naive", first, second]
    assert [row[2] for row in single[1:]] == ["1.000"] * 3, "five pages in all: nothing can be missed"
    assert [row[2] for row in multi[1:]] == [".500 ±.500"] * 3, "there is no brewery"
    assert [row[2][:4] for row in every[1:]] == [".800"] * 3, "of the five questions that need a passage"
    gains = tables["gain over naive [95 % interval] (* leaves out 0)"]
    assert gains[0] == [title for title in single[0][:-2] if title not in ("nDCG", "precision")]
    assert [row[0] for row in gains] == ["variant", first, second] * (len(gains) // 3)
    assert [row[2] for row in gains[1:3]] == [".000", ".000"]
    said = result.out.splitlines()
    said = said[said.index("best by recall@5 (share of the needed passages among the first 5):") + 1 :]
    assert all(word in said[0] for word in ("single fact", "naive 1.000", first, second, "3 questions"))
    assert all(word in said[2] for word in ("all questions", "naive .800"))
    assert "F1" in said[3]
    assert "brewery.md" in said[-1]


@pytest.mark.models
def test_the_report_as_json_page_and_file_say_the_same(run: Run, filled: str, questions: str, tmp_path: Path) -> None:
    page, file = tmp_path / "report.html", tmp_path / "report.json"
    told = run("--json", "eval", questions, "--html", str(page), "--out", str(file), "--k", "1,3", dsn=filled).json
    whole = json.loads(file.read_text("utf-8"))
    assert {key: whole[key] for key in told} == told
    assert set(whole) - set(told) == {"questions", "outcomes"}
    assert (told["format"], told["name"], told["ks"], told["baseline"]) == (1, "harbour", [1, 3], "naive")
    assert [row["kind"] for row in told["rows"]] == ["", "", *["single_fact"] * 2, *["multi_hop"] * 2, *["null"] * 2]
    assert {row["variant"] for row in told["rows"]} == {"naive", "mix"}
    tea = next(o for o in whole["outcomes"] if (o["question"], o["variant"]) == ("tea", "naive"))
    assert tea["found"][0].endswith("docs/tea.md:0")
    assert (tea["recall"], tea["mrr"], tea["answer"]) == ({"1": 1, "3": 1}, 1, None)
    assert tea["seconds"]["search"] > 0
    gone = next(o for o in whole["outcomes"] if (o["question"], o["variant"]) == ("gone", "mix"))
    assert (gone["recall"], gone["mrr"]) == ({"1": 0, "3": 0}, 0)
    assert "东方研究所由谁创立？" in file.read_text("utf-8"), "as it is, not as escapes"
    text = page.read_text("utf-8")
    root = ElementTree.fromstring(text)  # noqa: S314 - our own page
    assert len(root.findall(".//{http://www.w3.org/2000/svg}svg")) >= 4
    assert "东方研究所由谁创立？" in text
    assert "brewery &lt;b&gt;sell&lt;/b&gt;" in text


@pytest.mark.models
def test_a_file_that_cannot_be_written_is_named_after_the_tables(run: Run, filled: str, questions: str) -> None:
    result = run("eval", questions, "--mode", "naive", "--html", "/dev/full", dsn=filled)
    assert result.code == 2
    assert "recall@5" in result.out
    assert result.err == "pgrag: error: cannot write /dev/full: No space left on device\n"


@pytest.mark.models
def test_a_part_of_the_questions_in_one_mode_against_a_baseline(run: Run, filled: str, questions: str) -> None:
    told = run(
        "--json", "eval", questions, "--kind", "multi_hop", "--kind", "null", "--mode", "hybrid", dsn=filled
    ).json
    assert told["variants"] == ["naive", "hybrid"], "the baseline comes along"
    assert {row["questions"] for row in told["rows"] if row["kind"] == ""} == {3}
    told = run(
        "--json",
        "eval",
        questions,
        "--limit",
        "2",
        "--mode",
        "local",
        "--baseline",
        "local",
        "--fail-under",
        "mrr=.01",
        dsn=filled,
    ).json
    assert told["variants"] == ["local"]
    assert {row["questions"] for row in told["rows"]} == {2}


@pytest.mark.models
def test_fail_under_is_exit_code_1_with_the_report(run: Run, filled: str, questions: str) -> None:
    words = ["eval", questions, "--mode", "mix", "--json"]
    passed = run(*words, "--fail-under", "recall@5=.8", "--fail-under", "all_gold@10=0.8", dsn=filled)
    assert (passed.code, passed.err) == (0, "")
    missed = run(*words, "--fail-under", "recall@5=.81", "--fail-under", "f1=.1", dsn=filled)
    assert missed.code == 1
    assert missed.err == ("pgrag: --fail-under recall@5=0.81: mix has 0.8\npgrag: --fail-under f1=0.1: mix has no f1\n")
    assert json.loads(missed.out)["format"] == 1


@pytest.mark.models
def test_a_data_set_is_ingested_once_and_asked(run: Run, dsn: str, tmp_path: Path) -> None:
    written(tmp_path / "corpus.jsonl", [{"id": name, "text": text} for name, text in PAGES.items()])
    asked = [{**row, "gold": ["tea.md"]} for row in QUESTIONS if row["id"] == "tea"]
    written(tmp_path / "questions.jsonl", asked)
    told = run("--json", "eval", str(tmp_path), "--ingest", "--mode", "naive", dsn=dsn).json
    assert (told["name"], told["rows"][0]["metrics"]["mrr"]["mean"]) == (tmp_path.name, 1.0)
    assert len(run("--json", "documents", dsn=dsn).json["documents"]) == len(PAGES)
    again = run("eval", str(tmp_path), "--ingest", "--mode", "naive", "--progress", dsn=dsn)
    assert again.code == 0
    assert "0/0 chunks" in again.err, "nothing was ingested again"
    assert re.search(r"^1/1 questions asked$", again.err, re.MULTILINE)


@pytest.mark.models
def test_a_set_is_found_by_any_of_its_two_files(run: Run, dsn: str, tmp_path: Path) -> None:
    passages = [{"title": name, "text": text} for name, text in PAGES.items()]
    (tmp_path / "harbour_corpus.json").write_text(json.dumps(passages), "utf-8")
    needed = {"title": "tea.md", "paragraph_text": PAGES["tea.md"], "is_supporting": True}
    asked = [
        {"id": "tea", "question": "How long is green tea steeped?", "answer": "two minutes", "paragraphs": [needed]}
    ]
    (tmp_path / "harbour.json").write_text(json.dumps(asked), "utf-8")
    for file, ingest in (("harbour_corpus.json", ["--ingest"]), ("harbour.json", [])):
        told = run("--json", "eval", file, *ingest, "--mode", "naive", dsn=dsn).json
        assert (told["name"], told["rows"][0]["metrics"]["mrr"]["mean"]) == ("harbour", 1.0)


def at_terminal(dsn: str, *words: str, stream: str, columns: int = 200) -> tuple[str, str]:
    """What a command writes on that stream, which is a terminal, and on the other one, which is none."""
    first, second = pty.openpty()
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: second}
    settings = environment(PGRAG_DSN=dsn, TERM="xterm", COLUMNS=str(columns))
    process = subprocess.Popen(
        [*COMMAND, *words], text=True, env=settings, stdout=ends["stdout"], stderr=ends["stderr"]
    )
    os.close(second)
    shown = b""
    try:
        while piece := os.read(first, 4096):
            shown += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    output, errors = process.communicate(timeout=PROGRAM_SECONDS)
    os.close(first)
    assert process.returncode == 0
    return shown.decode(), output or errors or ""


def screen(dsn: str, *words: str, columns: int) -> list[str]:
    """The lines on a terminal of this width, without bold letters; nothing but them is written."""
    shown, other = at_terminal(dsn, *words, stream="stdout", columns=columns)
    assert other == ""
    return re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()


@pytest.mark.models
def test_a_table_too_wide_for_the_terminal_loses_what_is_needed_least(filled: str, questions: str) -> None:
    words = ["eval", questions, "--set", "chunk_ranking=vector,pagerank", "--kind", "multi_hop", "--no-progress"]
    wide = screen(filled, *words, columns=250)
    assert wide[0] == "multi hop: 2 questions (± half of the 95 % interval)"
    assert "nDCG" in wide[1]
    narrow = screen(filled, *words, columns=100)
    table = narrow[: narrow.index("gain over naive [95 % interval] (* leaves out 0)")]
    assert table[0] == "multi hop: 2 questions", "half of the interval is left out first"
    assert table[1].split() == [
        "variant", "recall@2", "recall@5", "recall@10", "all@5", "MRR", "nDCG", "precision", "tokens", "ms",
    ]  # fmt: skip
    assert max(map(len, table)) <= 100
    small = screen(filled, *words, columns=60)
    assert small[1].split() == ["variant", "recall@5", "all@5", "MRR", "tokens", "ms"]
    assert "(left out, for a wider terminal: precision, nDCG, recall@2, recall@10)" in small


@pytest.mark.models
def test_progress_is_shown_at_a_terminal_only_and_on_standard_error(filled: str, questions: str) -> None:
    shown, output = at_terminal(filled, "eval", questions, "--mode", "naive", stream="stderr")
    assert "questions asked" in shown
    assert "questions asked" not in output
    assert "recall@5" in output


# ---------------------------------------------------------------- with a language model


SENTENCE = "{name} sailed the long way round the cape with a cargo of {cargo} and a crew of twenty men."
VOYAGES = {"Alder": "tea", "Birch": "silk", "Cedar": "salt", "Dogwood": "tin"}


@dataclass(frozen=True, slots=True)
class Model:
    """The server of the models, and the settings that name them."""

    server: OpenAIServer
    settings: dict[str, str]


@pytest.fixture
def model(run: Run, words_dsn: str, tmp_path: Path) -> Iterator[Model]:
    """Priced models over a workspace with four voyages in it, and `voyages.jsonl` with a question for each."""
    folder = tmp_path / "voyages"
    folder.mkdir()
    for name, cargo in VOYAGES.items():
        (folder / f"{name}.txt").write_text(SENTENCE.format(name=name, cargo=cargo), "utf-8")
    asked = [
        {
            "id": name,
            "question": f"What did {name} carry?",
            "kind": "single_fact",
            "gold": [f"{name}.txt"],
            "answer": cargo,
        }
        for name, cargo in VOYAGES.items()
    ]
    written(tmp_path / "voyages.jsonl", asked)
    with OpenAIServer(dimension=64) as server:
        settings = {
            "PGRAG_WORKSPACE": "voyages", "PGRAG_LLM_MODEL": "openai/gpt-4o-mini", "PGRAG_LLM_API_BASE": server.url,
            "PGRAG_LLM_API_KEY": KEY, "PGRAG_LLM_RETRIES": "0", "PGRAG_EMBEDDING_DIMENSION": "64",
            "PGRAG_EMBEDDING_MODEL": "openai/text-embedding-3-small", "PGRAG_EMBEDDING_API_BASE": server.url,
            "PGRAG_EMBEDDING_API_KEY": KEY,
        }  # fmt: skip
        think(server)
        ingested = run("ingest", str(folder), dsn=words_dsn, **settings)
        assert (ingested.code, ingested.err) == (0, "")
        yield Model(server, {"dsn": words_dsn, **settings})


def text_of(request: Request) -> str:
    text: str = "\n".join(message["content"] for message in request.body["messages"])
    return text


def long_or_short(request: Request) -> Reply:
    """An answer that tells whether the sources had entities: those of mode mix do."""
    return Reply("They sailed with tea and silk [1]." if '"entity"' in text_of(request) else "They sailed [1].")


def prefers_tea(request: Request) -> Reply:
    text = text_of(request)
    assert "four verdicts" in text
    silk, short = text.index("They sailed with tea"), text.index("They sailed [1]")
    winner = "1" if silk < short else "2"
    criteria = ("comprehensiveness", "diversity", "empowerment", "overall")
    return Reply(json.dumps({name: {"reason": "It says more.", "winner": winner} for name in criteria}))


def test_answers_are_paid_measured_and_judged_in_both_orders(run: Run, model: Model, tmp_path: Path) -> None:
    brain = think(model.server, answer=long_or_short, bypass=prefers_tea)
    words = ["eval", "voyages.jsonl", "--judge", "naive,mix"]
    result = run(*words, "--html", "report.html", **model.settings)
    assert (result.code, result.err) == (0, "")
    assert brain.counts["bypass"] == 8, "four questions, two orders"
    judged = lines_of(result.out)["judged by a model, share of the questions"]
    assert judged[0] == ["criterion", "kind", "questions", "first", "wins", "second", "wins", "tie"]
    assert judged[1] == ["comprehensiveness", "all questions", "4", "naive", ".000", "mix", "1.000", ".000"]
    tables = lines_of(result.out)["single fact: 4 questions (± half of the 95 % interval)"]
    assert tables[0][-4:] == ["tokens", "LLM tokens", "cost", "ms"]
    assert tables[1][-2].startswith("$0.0000")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "Cost a question" in page
    assert "Answers compared by a model" in page
    assert "They sailed with tea and silk [1]." in page


def test_a_question_that_fails_is_exit_code_1_and_the_others_count(run: Run, model: Model) -> None:
    def fails_for_cedar(request: Request) -> Reply:
        return Reply(status=400, error="no") if "What did Cedar carry?" in text_of(request) else Reply("Tea [1].")

    think(model.server, answer=fails_for_cedar)
    result = run("eval", "voyages.jsonl", "--answers", "--mode", "naive", **model.settings)
    assert (result.code, result.err) == (1, "")
    table = lines_of(result.out)["single fact: 4 questions (± half of the 95 % interval)"]
    assert table[0][:2] == ["variant", "failed"]
    assert table[1][:2] == ["naive", "1"]
    assert re.search(r"^warning: 1 .*Cedar.*", result.out, re.MULTILINE)


def test_the_budget_stops_an_evaluation_with_exit_code_4(run: Run, model: Model) -> None:
    think(model.server)
    assert_refused(run("eval", "voyages.jsonl", "--max-cost", "0", **model.settings), 4, "max_cost", "--max-cost")
    priced = Reply("Tea [1].", usage=(1000, 1000))  # 0.00075 dollars a piece
    think(model.server, answer=priced)
    words = ["eval", "voyages.jsonl", "--answers", "--mode", "naive", "--json"]
    stopped = run(
        *words, "--max-cost", "0.0108", PGRAG_LLM_CONCURRENCY="1", PGRAG_MAX_OUTPUT_TOKENS="16000", **model.settings
    )
    assert stopped.code == 4
    assert stopped.err.startswith("pgrag: error: stopped before a request to openai/gpt-4o-mini")
    report = json.loads(stopped.out)
    assert 0 < report["rows"][0]["questions"] < 4
    assert "max_cost" in report["settings"]["stopped"]


def drafts(request: Request) -> Reply:
    """A question of what the first passage says; no other kind than single facts and null."""
    text = text_of(request)
    kind = re.search(r"question of the kind `(\w+)`", text)
    sentence = re.search(r"(\w+) sailed the long way round the cape with a cargo of (\w+) and .*?men\.", text)
    assert kind
    assert sentence
    question, answers, evidence = "", [sentence[2]], [{"passage": 1, "text": sentence[0]}]
    if kind[1] == "single_fact":
        question = f"Which cargo did {sentence[1]} carry round the cape?"
    elif kind[1] == "null":
        question, answers, evidence = f"Where was {sentence[1]} born?", [], []
    return Reply(json.dumps({"question": question, "answers": answers, "evidence": evidence}))


def test_questions_are_drafted_into_a_file_that_can_be_asked(run: Run, model: Model, tmp_path: Path) -> None:
    think(model.server, bypass=drafts)
    made = run("eval", "--make-questions", "4", "--out", "drafted.jsonl", **model.settings)
    assert (made.code, made.err) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "drafted.jsonl").read_text("utf-8").splitlines()]
    kinds = [row["kind"] for row in rows]
    assert set(kinds) == {"single_fact", "null"}
    fact, null = f"{kinds.count('single_fact')} single_fact", f"{kinds.count('null')} null"
    assert made.out.splitlines()[0] == f"wrote {len(rows)} questions to drafted.jsonl ({fact}, {null})"
    report = run("--json", "eval", "drafted.jsonl", "--mode", "naive", **model.settings).json
    assert report["rows"][0]["metrics"]["recall@10"]["mean"] == 1
    again = run("eval", "--make-questions", "4", "--out", "drafted.jsonl", **model.settings)
    assert_refused(again, 2, "drafted.jsonl exists: give another name")
    told = run("--json", "eval", "--make-questions", "4", "--out", "more.jsonl", **model.settings).json
    assert set(told) == {"questions", "kinds", "attempts", "dropped", "warnings"}
    assert sum(told["kinds"].values()) == told["questions"] == len(rows)
