"""The options that every command takes, before or after its name, and what follows from them."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from pgrag.cli.log import configure_logging
from pgrag.cli.secrets import secrets_of

if TYPE_CHECKING:
    from pgrag.config import Settings
    from pgrag.rag import PgRAG

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

PANEL = "Options of every command"


@dataclass(slots=True)
class Session:
    """One run of the command line. Filled while the words are parsed: the word nearest to the command wins."""

    dsn: str | None = None
    workspace: str | None = None
    config: Path | None = None
    json: bool = False
    verbose: int = 0
    secrets: tuple[str, ...] = ()

    def take(self, *, dsn: str | None, workspace: str | None, config: Path | None, as_json: bool, verbose: int) -> None:
        """Add the options of one more level (`pgrag`, `pgrag db`, `pgrag db upgrade`)."""
        self.dsn = self.dsn if dsn is None else dsn
        self.workspace = self.workspace if workspace is None else workspace
        self.config = self.config if config is None else config
        self.json = self.json or as_json
        self.verbose += verbose

    def settings(self, **overrides: Any) -> Settings:
        """The settings of this run; `overrides` are the command's own options. Also starts the log.

        Raises ConfigError.
        """
        from pgrag.config import load_settings

        self.secrets = secrets_of(self.dsn)
        configure_logging(self.verbose, self.secrets)
        settings = load_settings({"dsn": self.dsn, "workspace": self.workspace, **overrides}, file=self.config)
        if settings.dsn is not None:  # it may come from the settings file
            self.secrets = secrets_of(settings.dsn.get_secret_value())
            configure_logging(self.verbose, self.secrets)
        return settings

    def with_rag(self, settings: Settings, work: Callable[[PgRAG], Awaitable[T]]) -> T:
        """Open the workspace, do `work` on it, close it; Ctrl-C cancels `work` and still closes."""
        from pgrag.embedding.keyless import limit_blas_threads

        limit_blas_threads()  # before anything imports numpy
        from pgrag.rag import PgRAG

        async def run() -> T:
            async with PgRAG(settings=settings) as rag:
                return await work(rag)

        return asyncio.run(run())


def _option(name: str, annotation: Any, default: Any, *flags: str, **details: Any) -> inspect.Parameter:
    option = typer.Option(*flags, rich_help_panel=PANEL, show_default=False, **details)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, option]
    )


def _common_options() -> list[inspect.Parameter]:
    return [
        _option(
            "dsn", str | None, None, "--dsn", metavar="DSN",
            help="PostgreSQL to use; better in PGRAG_DSN, where `ps` does not show it. None: the embedded server.",
        ),
        _option("workspace", str | None, None, "--workspace", "-w", metavar="NAME", help="Workspace to use."),
        _option("config", Path | None, None, "--config", metavar="FILE", help="Settings file (default ./pgrag.toml)."),
        _option("as_json", bool, False, "--json", help="Print one JSON document on standard output."),
        _option("verbose", int, 0, "-v", "--verbose", count=True, help="Log to standard error; -vv logs more."),
    ]  # fmt: skip


def takes_session(function: Callable[Concatenate[Session, P], R]) -> Callable[..., R]:
    """Give a command the common options: its first parameter becomes the Session that they were put into."""
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())[1:]
    common = _common_options()

    @functools.wraps(function)
    def command(context: typer.Context, **given: Any) -> R:
        session: Session = context.obj
        session.take(**{option.name: given.pop(option.name) for option in common})
        return function(session, **given)  # type: ignore[call-arg]

    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters = [first, *keyword_only, *common]
    # typer reads both: the signature for the order, the annotations for the types
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
