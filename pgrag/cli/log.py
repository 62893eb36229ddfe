"""The log of a run: logger `pgrag`, to standard error, masked."""

from __future__ import annotations

import logging
import sys

from pgrag.cli.output import one_line
from pgrag.text.masking import mask


class _Formatter(logging.Formatter):
    """One masked line a record; a traceback follows as it is, masked."""

    def __init__(self, secrets: tuple[str, ...], verbose: int) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else "pgrag: warning: %(message)s"
        )
        self._secrets = secrets

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record), self._secrets)


def configure_logging(verbose: int, secrets: tuple[str, ...]) -> None:
    """Send warnings (`verbose` 0), information (1) or everything (2 and more) to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(secrets, verbose))
    logger = logging.getLogger("pgrag")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
