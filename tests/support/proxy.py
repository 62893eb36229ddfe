"""A proxy before PostgreSQL that counts what a client asks of it."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from psycopg.conninfo import conninfo_to_dict


class Messages:
    """Counts of messages by type: from the client (`P` parse, `B` bind, `E` execute, `S` sync, `Q` query, ...), and
    `turns`, how often the client had to wait for an answer before it went on."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.turns = 0
        self.dsn = ""
        self._client_speaks = False

    def reset(self) -> None:
        """Start counting again."""
        self.sent.clear()
        self.turns = 0

    async def from_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes on the start-up packet, then message by message."""
        size = await reader.readexactly(4)
        writer.write(size + await reader.readexactly(struct.unpack("!I", size)[0] - 4))
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
            self.sent[head[:1].decode()] += 1
            self.turns += not self._client_speaks
            self._client_speaks = True
            writer.write(head + body)

    async def from_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes on whatever comes."""
        while data := await reader.read(65536):
            self._client_speaks = False
            writer.write(data)


@asynccontextmanager
async def counting_proxy(dsn: str) -> AsyncIterator[Messages]:
    """A proxy before the server of `dsn`; `.dsn` leads through it (without encryption)."""
    target: dict[str, Any] = conninfo_to_dict(dsn)
    messages = Messages()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(target["host"], int(target["port"]))
        both = [
            asyncio.create_task(messages.from_client(reader, up_writer)),
            asyncio.create_task(messages.from_server(up_reader, writer)),
        ]
        tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, up_writer):
            end.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    messages.dsn = f"host={host} port={port} dbname={target['dbname']} user={target['user']} sslmode=disable"
    try:
        yield messages
    finally:
        server.close()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
                await task
