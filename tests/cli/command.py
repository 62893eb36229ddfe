"""Runs `pgrag` as a process of its own, as a shell would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.limits import PROGRAM_SECONDS

COMMAND = [sys.executable, "-m", "pgrag"]
UNREACHABLE = "postgresql://ann:s3cret-word@127.0.0.1:1/x"


def environment(**settings: str) -> dict[str, str]:
    """The test's environment without settings of its own, wide enough that help is not wrapped."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PGRAG_")}
    return {**kept, "COLUMNS": "200", "NO_COLOR": "1", **settings}


def pgrag(
    *words: str, dsn: str | None = None, stdin: str = "", cwd: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run `pgrag` with `words`; settings are environment variables such as PGRAG_WORKSPACE."""
    if dsn is not None:
        settings["PGRAG_DSN"] = dsn
    return subprocess.run(
        [*COMMAND, *words],
        input=stdin,
        cwd=cwd,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )


def pgrag_json(*words: str, **details: Any) -> Any:
    """Run `pgrag --json`, which must succeed silently; return what it printed."""
    result = pgrag("--json", *words, **details)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr + result.stdout
    return json.loads(result.stdout)


def assert_error(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The command failed with `code`, no data, and one line on standard error that holds all `words`."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("pgrag: error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr
