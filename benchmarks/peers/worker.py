"""What runs inside a worker, a process of either comparison: its commands, its files, its memory, the time of models.

It is imported in the peers' environments as in pgrag's, and needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Timed:
    """Models that answer at once: the `seconds` spent in them are nobody's own.

    `processor` is how many of them the processor worked.
    """

    seconds = processor = 0.0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Counts the time as that of models."""
        wall, processor = time.perf_counter(), time.thread_time()
        yield
        self.seconds += time.perf_counter() - wall
        self.processor += time.thread_time() - processor


async def serve(make: Callable[[Path, str], object]) -> None:
    """Makes a side of the two arguments of the command line, and does what the lines on standard input say: {do, ...}.

    `do` names a method, and the rest is given to it. Each is answered by a line; a failure ends the process. What
    libraries print goes to standard error.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        side = make(Path(sys.argv[1]), sys.argv[2])
        while line := await asyncio.to_thread(sys.stdin.readline):
            details = json.loads(line)
            answer = await getattr(side, details.pop("do"))(**details)
            print(json.dumps(answer or {}), file=answers, flush=True)


def read_lines(file: Path) -> list[Any]:
    """The values of a file of JSON lines."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_lines(file: Path, values: Iterable[Any]) -> None:
    """Writes a file of JSON lines."""
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(value) + "\n" for value in values)


def peak_megabytes() -> float:
    """The most memory this process has held."""
    try:  # a process begins with its parent's figure in getrusage
        status = Path("/proc/self/status").read_text("utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        unit = 1024 if sys.platform != "darwin" else 1024**2
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
