"""What README promises first: the demo runs, without a key and without a PostgreSQL of the user's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.support.limits import PROGRAM_SECONDS

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path that the server's own account can reach, as /tmp's."""
    path = Path(tempfile.mkdtemp(prefix="pgrag-", dir="/tmp"))
    path.chmod(0o711)
    yield path / "home"
    subprocess.run(
        [sys.executable, "-m", "pgrag", "server", "stop"],
        env=environment(PGRAG_HOME=str(path / "home")),
        check=True,
        capture_output=True,
    )
    shutil.rmtree(path)


def demo(home: Path) -> str:
    result = subprocess.run(
        [sys.executable, "examples/demo.py"],
        cwd=PROJECT,
        env=environment(PGRAG_HOME=str(home)),
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.models
@pytest.mark.slow
def test_the_demo_answers_with_references_and_skips_everything_the_second_time(home: Path) -> None:
    first = demo(home)
    counts = re.search(
        r"ingested (\d+) documents, skipped 0 .*: (\d+) chunks, (\d+) entities, (\d+) relations, (\d+) facts", first
    )
    assert counts is not None, first
    assert all(int(count) >= 12 for count in counts.groups())
    assert "no LLM: names and sentences" in first
    for kind in ("single_fact", "aggregation", "multi_hop", "thematic"):
        [part] = re.findall(rf"── {kind}: [^─]*", first)
        answer, *rest = re.split(r"\n  \[1\] ", part)
        assert re.search(r"\[\d\]\n", answer + "\n"), "the answer cites"
        assert len(rest) == 1, "and the references follow"
        assert re.search(r"characters \d+-\d+", part)
        assert re.search(r"found: \d+ entities, \d+ relations, 8 passages", part)
        found, needed = re.findall(r"among the references: (\d+) of (\d+)", part)[0]
        assert found == needed
    assert "MISSING" not in first
    assert "plain vector search misses one of 1 multi-hop question(s)" in first

    second = demo(home)
    assert f"ingested 0 documents, skipped {counts[1]} unchanged ones" in second
    timeless = [re.sub(r"in [\d.]+ s", "", text).split("no LLM", 1)[1] for text in (first, second)]
    assert timeless[0] == timeless[1], "the same answers"


def test_the_commands_of_the_readme_are_targets() -> None:
    readme = (PROJECT / "README.md").read_text("utf-8")
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    named = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join(re.findall(r"(?m)^\$ .*$|`[^`\n]+`", readme))))
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"(?m)^{target}:", makefile), target
