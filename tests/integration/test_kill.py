"""A process that is killed: the next one takes up where it was, and asks for nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from tests.support.limits import PROGRAM_SECONDS
from tests.support.rag import graph, ingest, value

PROJECT = Path(__file__).resolve().parents[2]
SMALL = {"chunk_tokens": 32, "chunk_overlap": 0, "claim_batch": 1, "workers": 1, "lease_seconds": 1.0}
BODY = "\n\n".join(
    f"Captain {name} sailed the long way round the cape with a cargo of tea and a crew of twenty men in year {i}."
    for i, name in enumerate(["Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gorse", "Hazel"])
)


def test_kill_9_in_the_middle(words_dsn: str, empty_dsn: str, tmp_path: Path) -> None:
    log = tmp_path / "asked.txt"
    code = f"""
        import pathlib, time
        from tests.support.rag import capitals, extractor, ingest
        log = pathlib.Path({str(log)!r}).open("a", encoding="utf-8", buffering=1)

        def slow(chunk):
            log.write(chunk.body.strip() + chr(10))
            time.sleep(.25)
            return capitals(chunk)

        ingest({words_dsn!r}, {{"a": {BODY!r}}}, extracts=extractor(slow), **{SMALL!r})
    """

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=PROJECT, stderr=subprocess.PIPE)

    first = start()
    done = "select count(*) from chunk where extracted_at is not null"
    deadline = time.monotonic() + 60
    while value(words_dsn, done) < 3:
        assert time.monotonic() < deadline
        assert first.poll() is None, first.communicate()[1].decode()
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    kept = value(words_dsn, done)
    assert 3 <= kept < 8

    second = start()
    _, errors = second.communicate(timeout=PROGRAM_SECONDS)
    assert second.returncode == 0, errors.decode()
    asked = log.read_text("utf-8").splitlines()
    assert len(asked) - len(set(asked)) <= 1, "what was in flight when the process died, and nothing else"
    assert len(set(asked)) == 8
    ingest(empty_dsn, {"a": BODY}, **SMALL)
    assert graph(words_dsn) == graph(empty_dsn)
