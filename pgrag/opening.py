"""From settings to a server and a workspace on it."""

from __future__ import annotations

import anyio.to_thread
from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.embedded.server import EmbeddedServer
from pgrag.providers import Models
from pgrag.types import Embedder


async def resolve_server(settings: Settings) -> Settings:
    """The settings with a DSN: their own, or that of the embedded server, which is started if need be."""
    if settings.dsn is not None:
        return settings
    dsn = await anyio.to_thread.run_sync(EmbeddedServer(settings.home).start)
    return settings.model_copy(update={"dsn": SecretStr(dsn)})


async def initialise(settings: Settings, embedder: Embedder | None = None) -> bool:
    """Makes the workspace (schema, tables, code): True if it was made, False if it was there and fits.

    Raises DimensionError, WorkspaceError, MissingExtensionError, MissingRightError, DatabaseError.
    """
    from pgrag import migrate  # here: alembic and SQLAlchemy take a second that a query need not wait for

    resolved = await resolve_server(settings)
    if embedder is not None:
        return await anyio.to_thread.run_sync(migrate.initialise, resolved, embedder)
    models = Models(resolved)
    try:
        return await anyio.to_thread.run_sync(migrate.initialise, resolved, await models.embedder())
    finally:
        await models.aclose()
