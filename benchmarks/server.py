"""What a benchmark needs around PostgreSQL: a server of its own, its processor time, and a count of what is asked."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgrag.server.configuration import ADMINISTRATOR
from pgrag.server.embedded import EmbeddedServer


@contextmanager
def own_server(home: Path | None) -> Iterator[str]:
    """The DSN of an embedded server with settings for bulk loads, stopped at the end.

    Its files are in `home` and stay there; without one they are in a temporary directory and go.
    """
    place = home or Path(tempfile.mkdtemp(prefix="pgrag-benchmark-", dir="/var/tmp"))
    if home is None:
        place.chmod(0o711)  # under root the server runs as another account
    server = EmbeddedServer(place)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    settings = {
        "shared_buffers": f"{memory // 4}MB", "effective_cache_size": f"{memory // 2}MB", "max_wal_size": "16GB",
        "checkpoint_timeout": "30min", "fsync": "off", "full_page_writes": "off", "wal_level": "minimal",
        "max_wal_senders": "0", "max_parallel_workers": str(os.cpu_count() or 2),
        "max_worker_processes": str(8 + (os.cpu_count() or 2)),
    }  # fmt: skip
    try:
        administrator = make_conninfo(server.start(), user=ADMINISTRATOR)
        with psycopg.connect(administrator, autocommit=True) as connection:
            for name, value in settings.items():
                connection.execute(sql.SQL("alter system set {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        server.stop()
        yield server.start()
    finally:
        server.stop()
        if home is None:
            shutil.rmtree(place, ignore_errors=True)


def processor_ms(pid: int) -> float | None:
    """Processor time of a server process so far, where it is one of this machine's."""
    with suppress(OSError):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres"):
            return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
    return None


class Wire:
    """What the client sent: `turns`, how often it asked and waited for the answer, and `sent`, messages by their type.

    Types are the protocol's letters: `P` parse, `B` bind, `E` execute, `S` sync, `Q` query, ...
    """

    def __init__(self) -> None:
        self.dsn = ""
        self.turns = 0
        self.sent: Counter[str] = Counter()
        self._client_speaks = False

    def reset(self) -> None:
        """Starts counting again."""
        self.turns = 0
        self.sent.clear()

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
async def counting_proxy(dsn: str) -> AsyncIterator[Wire]:
    """A proxy before the server of `dsn`, for one connection at a time; `.dsn` leads through it, not encrypted."""
    target: dict[str, Any] = conninfo_to_dict(dsn)
    host, port = str(target.pop("host", "/tmp")), int(target.pop("port", 5432))  # noqa: S108 - libpq's default
    wire = Wire()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if host.startswith("/"):
            up_reader, up_writer = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            up_reader, up_writer = await asyncio.open_connection(host, port)
        both = [
            asyncio.create_task(wire.from_client(reader, up_writer)),
            asyncio.create_task(wire.from_server(up_reader, writer)),
        ]
        tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, up_writer):
            end.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    here, free = server.sockets[0].getsockname()
    wire.dsn = make_conninfo("", **{**target, "host": here, "port": free, "sslmode": "disable"})
    try:
        yield wire
    finally:
        server.close()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
                await task
