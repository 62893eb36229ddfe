"""A scripted model server that speaks OpenAI's protocol over real HTTP on 127.0.0.1."""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from pgrag.text.folding import words

Kind = Literal["chat", "embeddings", "models", "other"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came: `path`, lower-case `headers`, decoded `body` (None if there was none)."""

    kind: Kind
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer. Without anything said: 200, "ok", word counts as usage, vectors made of the input's words."""

    text: str | None = "ok"
    finish_reason: str = "stop"
    usage: tuple[int, int] | None = None
    """(prompt, completion) tokens; none: the words of each."""
    vectors: Sequence[Sequence[float | None]] | None = None
    status: int = 200
    error: str = ""
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before the first byte."""
    piece_delay: float = 0.0
    """Seconds before each further word of a stream."""
    body: bytes | None = None
    """Sent as it is, instead of JSON."""
    cut: int | None = None
    """Bytes of the body after which the connection is reset; of a stream: words."""


Answer = Reply | Callable[[Request], Reply]


def rate_limited(retry_after: str | None = None) -> Reply:
    """429, with a Retry-After header if given."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Reply(status=429, error="Rate limit reached", headers=headers)


def failing(status: int, error: str = "it broke", code: str | None = None) -> Reply:
    """An error in OpenAI's form."""
    return Reply(status=status, error=error, code=code)


def malformed() -> Reply:
    """200 with a body that is not JSON."""
    return Reply(body=b'{"choices": [')


def reset() -> Reply:
    """The connection is reset in the middle of the body."""
    return Reply(cut=20)


def word_vector(text: str, dimension: int) -> list[float]:
    """A unit vector: each word adds 1 at the place of its checksum. Texts that share words are near each other."""
    vector = [0.0] * dimension
    for word in words(text) or [text]:
        vector[zlib.crc32(word.encode()) % dimension] += 1.0
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


class OpenAIServer:
    """`with OpenAIServer() as server:` - `server.url` is the api_base; replies are scripted at any time.

    `script` queues replies, each used once; `respond` sets what answers when nothing is queued. `requests` are all
    that came, `counts` their number by kind, `busiest` the most that were answered at one time, by kind, and `aborted`
    how many the client gave up while the server was still waiting to answer.
    """

    def __init__(self, dimension: int = 64) -> None:
        self.dimension = dimension
        self.requests: list[Request] = []
        self.aborted = 0
        self.busiest: Counter[str] = Counter()
        self._busy: Counter[str] = Counter()
        self._queues: dict[str, deque[Answer]] = {"chat": deque(), "embeddings": deque()}
        self._otherwise: dict[str, Answer] = {"chat": Reply(), "embeddings": Reply()}
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._stopping = threading.Event()
        self._http = _Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._http.shutdown()
        with self._lock:
            for connection in self._connections:
                connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()  # joins the threads of the connections
        self._thread.join()

    @property
    def url(self) -> str:
        """The api_base of this server."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def counts(self) -> Counter[str]:
        """Requests by kind."""
        with self._lock:
            return Counter(request.kind for request in self.requests)

    def of(self, kind: Kind) -> list[Request]:
        """The requests of one kind, in the order they came."""
        with self._lock:
            return [request for request in self.requests if request.kind == kind]

    def script(self, *answers: Answer, kind: Kind = "chat") -> None:
        """Queues answers: each is used once, in order."""
        with self._lock:
            self._queues[kind].extend(answers)

    def respond(self, answer: Answer, kind: Kind = "chat") -> None:
        """Answers this way whenever nothing is queued."""
        with self._lock:
            self._otherwise[kind] = answer

    # ------------------------------------------------------------ for the handler

    def enter(self, request: Request) -> Reply:
        """Records a request and picks its reply."""
        with self._lock:
            self.requests.append(request)
            self._busy[request.kind] += 1
            self.busiest[request.kind] = max(self.busiest[request.kind], self._busy[request.kind])
            queue = self._queues.get(request.kind)
            answer = queue.popleft() if queue else self._otherwise.get(request.kind, Reply())
        return answer(request) if callable(answer) else answer

    def leave(self, request: Request) -> None:
        """The reply is out, or the client is gone."""
        with self._lock:
            self._busy[request.kind] -= 1

    def wait(self, seconds: float, connection: socket.socket) -> bool:
        """Waits; false as soon as the client has gone or the server stops."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            readable, _, _ = select.select([connection], [], [], min(left, 0.05))
            if readable and not connection.recv(1, socket.MSG_PEEK):
                with self._lock:
                    self.aborted += 1
                return False
        return not self._stopping.is_set()

    def connected(self, connection: socket.socket, now: bool) -> None:
        """Keeps the open connections."""
        with self._lock:
            (self._connections.add if now else self._connections.discard)(connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], owner: OpenAIServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests; anything else is shown."""
        import sys

        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm: ClassVar[bool] = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def setup(self) -> None:
        super().setup()
        self.server.owner.connected(self.connection, True)

    def finish(self) -> None:
        self.server.owner.connected(self.connection, False)
        super().finish()

    def do_GET(self) -> None:
        self._handle(None)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._handle(json.loads(raw) if raw else None)

    def _handle(self, body: Any) -> None:
        owner = self.server.owner
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(_kind_of(self.path), self.path, headers, body)
        reply = owner.enter(request)
        try:
            if reply.delay and not owner.wait(reply.delay, self.connection):
                self.close_connection = True
                return
            if request.kind == "chat" and reply.status == 200 and reply.body is None and body.get("stream"):
                self._stream(request, reply)
            else:
                self._send(reply, _body(request, reply, owner.dimension))
        finally:
            owner.leave(request)

    def _send(self, reply: Reply, body: bytes) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: reply.cut])
        if reply.cut is not None:
            self._reset()

    def _stream(self, request: Request, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number, event in enumerate(_events(request, reply)):
            if reply.cut == number:
                self._reset()
                return
            if number and reply.piece_delay and not self.server.owner.wait(reply.piece_delay, self.connection):
                return
            self.wfile.write(f"data: {event}\n\n".encode())

    def _reset(self) -> None:
        """Ends the connection by RST."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


def _kind_of(path: str) -> Kind:
    ends: tuple[tuple[str, Kind], ...] = (
        ("/chat/completions", "chat"),
        ("/embeddings", "embeddings"),
        ("/models", "models"),
    )
    return next((kind for end, kind in ends if path.endswith(end)), "other")


def _usage(request: Request, reply: Reply) -> dict[str, int]:
    if reply.usage is None:
        prompt = sum(len(str(message["content"]).split()) for message in request.body["messages"])
        completion = len((reply.text or "").split())
    else:
        prompt, completion = reply.usage
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _body(request: Request, reply: Reply, dimension: int) -> bytes:
    if reply.body is not None:
        return reply.body
    if reply.status != 200:
        value: Any = {"error": {"message": reply.error, "type": "error", "param": None, "code": reply.code}}
    elif request.kind == "chat":
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": reply.text},
            "finish_reason": reply.finish_reason,
        }
        value = {**_head(request, "chat.completion"), "choices": [choice], "usage": _usage(request, reply)}
    elif request.kind == "embeddings":
        value = _embeddings(request, reply, dimension)
    else:
        value = {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
    return json.dumps(value).encode()


def _head(request: Request, form: str) -> dict[str, Any]:
    return {"id": "reply", "object": form, "created": 1, "model": request.body["model"]}


def _embeddings(request: Request, reply: Reply, dimension: int) -> dict[str, Any]:
    given = request.body["input"]
    texts = [given] if isinstance(given, str) else given
    size = request.body.get("dimensions") or dimension
    vectors = [word_vector(text, size) for text in texts] if reply.vectors is None else reply.vectors
    tokens = sum(len(text.split()) for text in texts)
    return {
        "object": "list",
        "model": request.body["model"],
        "data": [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _events(request: Request, reply: Reply) -> Iterator[str]:
    """The events of a stream: a word each, the end, the usage if asked for."""
    head = _head(request, "chat.completion.chunk")

    def event(delta: Mapping[str, str], finish: str | None = None) -> str:
        return json.dumps({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    for number, word in enumerate((reply.text or "").split(" ")):
        yield event({"role": "assistant", "content": word if number == 0 else f" {word}"})
    yield event({}, reply.finish_reason)
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield json.dumps({**head, "choices": [], "usage": _usage(request, reply)})
    yield "[DONE]"
