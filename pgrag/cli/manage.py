"""Commands for operators: db (the workspace's tables and SQL code), server (the embedded PostgreSQL)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pgrag.cli.output import emit, emit_json, fields, note, one_line, size
from pgrag.cli.session import Session, takes_session
from pgrag.errors import ExitCode, PgragError
from pgrag.text.masking import mask

if TYPE_CHECKING:
    from pgrag.config import Settings
    from pgrag.server.embedded import ServerStatus


def register(app: typer.Typer) -> None:
    """Add this module's groups of commands."""
    groups = (
        ("db", _database, {"upgrade": upgrade, "check": check, "current": current}),
        ("server", _server, {"start": start, "stop": stop, "status": server_status}),
    )
    for name, callback, commands in groups:
        group = typer.Typer()
        group.callback()(callback)
        for command_name, command in commands.items():
            group.command(command_name)(command)
        app.add_typer(group, name=name, rich_help_panel="Operate")


@takes_session
def _database(session: Session) -> None:
    """Check or upgrade the workspace's tables and SQL code."""


@takes_session
def _server(session: Session) -> None:
    """Start, stop or look at the embedded PostgreSQL that serves when no DSN is given."""


def _with_database(session: Session) -> Settings:
    """The settings with a DSN: the embedded server is started if there is none."""
    from pydantic import SecretStr

    settings = session.settings()
    if settings.dsn is not None:
        return settings
    from pgrag.server.embedded import EmbeddedServer

    return settings.model_copy(update={"dsn": SecretStr(EmbeddedServer(settings.home).start())})


@takes_session
def upgrade(
    session: Session,
    all_workspaces: Annotated[bool, typer.Option("--all", help="Every workspace of the database, one by one.")] = False,
    drop_dependents: Annotated[
        bool, typer.Option("--drop-dependents", help="Drop your own views and functions that stand in the way.")
    ] = False,
) -> int:
    """Bring tables and SQL code to this release. Running pgrag processes must be restarted afterwards."""
    from pgrag.database import migrate

    settings = _with_database(session)
    results: dict[str, list[str] | PgragError]
    if all_workspaces:
        results = migrate.upgrade_all(settings, drop_dependents=drop_dependents)
    else:
        results = {settings.workspace: migrate.upgrade(settings, drop_dependents=drop_dependents)}
    errors = {name: result for name, result in results.items() if isinstance(result, PgragError)}
    if session.json:
        emit_json({"workspaces": {name: _outcome(result, session.secrets) for name, result in results.items()}})
    else:
        for name, result in results.items():
            if not isinstance(result, PgragError):
                emit("\n".join(f"{name}: {line}" for line in result or ["nothing to upgrade"]))
        if not results:
            emit("the database has no workspace")
    for name, error in errors.items():
        note(f"pgrag: error: {name}: {one_line(mask(str(error), session.secrets))}")
    return max((error.exit_code for error in errors.values()), default=ExitCode.OK)


def _outcome(result: list[str] | PgragError, secrets: tuple[str, ...]) -> dict[str, object]:
    if isinstance(result, PgragError):
        return {"error": {"type": type(result).__name__, "message": one_line(mask(str(result), secrets))}}
    return {"done": result}


@takes_session
def check(session: Session) -> int:
    """Compare the workspace with this release; exit code 3 if something is wrong."""
    from pgrag.database import migrate

    settings = _with_database(session)
    problems = migrate.check(settings)
    if session.json:
        emit_json({"workspace": settings.workspace, "problems": problems})
    else:
        emit("\n".join(problems) if problems else f"workspace {settings.workspace} is as this release wants it")
    return ExitCode.DATABASE if problems else ExitCode.OK


@takes_session
def current(session: Session) -> None:
    """Print the revision of the workspace's tables."""
    from pgrag.database import migrate

    settings = _with_database(session)
    revision = migrate.current(settings)
    if session.json:
        emit_json({"workspace": settings.workspace, "revision": revision})
    else:
        emit(revision)


@takes_session
def start(session: Session) -> None:
    """Start the embedded server and print its DSN; pgrag does so itself when it needs it."""
    from pgrag.server.embedded import EmbeddedServer

    dsn = EmbeddedServer(session.settings().home).start()
    if session.json:
        emit_json({"dsn": dsn})
    else:
        emit(dsn)


@takes_session
def stop(session: Session) -> None:
    """Stop the embedded server; what was acknowledged is kept."""
    from pgrag.server.embedded import EmbeddedServer

    server = EmbeddedServer(session.settings().home)
    was_running = server.stop()
    if session.json:
        emit_json({"stopped": was_running})
    else:
        emit("stopped" if was_running else "was not running")


@takes_session
def server_status(session: Session) -> None:
    """Show whether the embedded server runs, and where its files are."""
    from pgrag.server.embedded import EmbeddedServer

    status = EmbeddedServer(session.settings().home).status()
    if session.json:
        emit_json(status)
    else:
        emit(_describe(status))


def _describe(status: ServerStatus) -> str:
    state = "accepts connections" if status.running else "not running" if status.pid is None else "not ready"
    return fields(
        [
            ("server", f"{state}, process {status.pid}" if status.pid is not None else state),
            ("version", status.version or "not set up yet"),
            ("dsn", status.dsn),
            ("data", f"{status.data_directory} ({size(status.bytes)})"),
            ("log", status.log_file),
        ]
    )
