"""A model behind the scripted server that does what pgrag's prompts ask for, by rule: its answers can be foretold."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

from pgrag import PgRAG, Settings
from tests.support.models import WordEmbedder
from tests.support.openai_server import Answer, OpenAIServer, Reply, Request

T = TypeVar("T")
Purpose = Literal["extraction", "gleaning", "keywords", "summary", "answer", "bypass"]

KEY = "sk-test-0123456789abcdef"
NOTHING = '{"entities": [], "relations": [], "keywords": []}'
BEGINS: tuple[tuple[str, Purpose], ...] = (
    ("You read a passage", "extraction"),
    ("You split a question", "keywords"),
    ("You merge notes", "summary"),
    ("You answer a question from the sources", "answer"),
    ("你把一个问题拆成", "keywords"),
    ("你只根据给出的资料回答", "answer"),
)


def purpose_of(request: Request) -> Purpose:
    """Which of pgrag's calls a chat request is."""
    messages = request.body["messages"]
    first = messages[0]["content"] if messages[0]["role"] == "system" else ""
    found: Purpose = next((purpose for begins, purpose in BEGINS if first.startswith(begins)), "bypass")
    return "gleaning" if found == "extraction" and len(messages) > 2 else found


def enclosed(request: Request, label: str) -> str:
    """The text between the two lines with a code of that label."""
    text = "\n".join(message["content"] for message in request.body["messages"])
    match = re.search(rf"<<< {label} (\w+)\n(.*?)\n{label} \1 >>>", text, re.DOTALL)
    assert match is not None, f"no {label} in {text[-500:]}"
    return match[2]


def record(text: str) -> dict[str, Any]:
    """What this model finds in a passage: capitalised words are entities, described by the sentence they stand in, and
    the first two of a sentence hang together, with the word between them as keyword."""
    entities: list[dict[str, str]] = []
    relations: list[dict[str, Any]] = []
    for sentence in filter(None, (s.strip() for s in re.split(r"(?<=[.!?])\s+", text))):
        names = list(dict.fromkeys(re.findall(r"\b[A-Z][\w-]*", sentence)))
        entities += [{"name": name, "type": "person", "description": sentence} for name in names]
        if len(names) > 1:
            between = re.search(rf"{names[0]} (\w+)", sentence)
            relations.append(
                {"source": names[0], "target": names[1], "keywords": [between[1] if between else "tie"],
                 "description": sentence, "strength": 8}
            )  # fmt: skip
    return {"entities": entities, "relations": relations, "keywords": ["voyages"]}


class Brain:
    """Answers by purpose. `replies` overrides: a reply, or a function of the request, by purpose."""

    def __init__(self, replies: Mapping[Purpose, Answer] | None = None) -> None:
        self.replies: dict[Purpose, Answer] = dict(replies or {})
        self.seen: list[tuple[Purpose, Request]] = []
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        purpose = purpose_of(request)
        with self._lock:
            self.seen.append((purpose, request))
        answer = self.replies.get(purpose)
        if answer is None:
            return self.usual(purpose, request)
        return answer(request) if callable(answer) else answer

    def usual(self, purpose: Purpose, request: Request) -> Reply:
        """The answer where nothing else is said."""
        if purpose == "extraction":
            return Reply(json.dumps(record(enclosed(request, "passage"))))
        if purpose == "gleaning":
            return Reply(NOTHING)
        if purpose == "keywords":
            names = re.findall(r"\b[A-Z][\w-]*", enclosed(request, "question"))
            return Reply(json.dumps({"high_level_keywords": ["voyages"], "low_level_keywords": names[1:] or names}))
        if purpose == "summary":
            notes = enclosed(request, "notes").splitlines()
            return Reply(f"{enclosed(request, 'subject')} is told of in {len(notes)} notes.")
        return Reply("They sailed [1].")

    @property
    def counts(self) -> Counter[Purpose]:
        """Requests by purpose."""
        with self._lock:
            return Counter(purpose for purpose, _ in self.seen)

    def of(self, purpose: Purpose) -> list[Request]:
        """The requests of one purpose, in the order they came."""
        with self._lock:
            return [request for found, request in self.seen if found == purpose]

    def forget(self) -> None:
        """Counts from now on."""
        with self._lock:
            self.seen.clear()


def think(server: OpenAIServer, **replies: Answer) -> Brain:
    """A brain that answers all chat requests of the server; `replies` by purpose."""
    brain = Brain(replies)  # type: ignore[arg-type]
    server.respond(brain)
    return brain


def llm_settings(dsn: str, server: OpenAIServer, **more: Any) -> Settings:
    """Settings for small chunks and the model of the server; no wait is longer than a retry's."""
    given: dict[str, Any] = {
        "dsn": dsn, "llm_model": "openai/scripted", "llm_api_base": server.url, "llm_api_key": KEY,
        "chunk_tokens": 32, "chunk_overlap": 0, "max_attempts": 1, "llm_retries": 1, "workers": 1,
    }  # fmt: skip
    return Settings(**{**given, **more})


def llm_rag(dsn: str, server: OpenAIServer, *, embedder: Any = None, extracts: Any = None, **settings: Any) -> PgRAG:
    """A PgRAG with the server's model and the word embedder."""
    return PgRAG(
        settings=llm_settings(dsn, server, **settings), embedder=embedder or WordEmbedder(), extractor=extracts
    )


async def using(rag: PgRAG, work: Callable[[PgRAG], Awaitable[T]]) -> T:
    """The result of `work` on it, opened and closed."""
    async with rag:
        return await work(rag)
