"""The passwords and keys that this run knows of: none of them may be printed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

_SECRET_VARIABLE = re.compile(r"(_API_KEY|_SECRET|_PASSWORD|^PGPASSWORD)$")


def secrets_of(dsn: str | None, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The literal secrets of this run: the DSN's password and what the environment calls key, secret or password.

    A password that equals the user's or the database's name is left to the patterns of `mask`: hiding that word
    everywhere would make messages unreadable and hide nothing.
    """
    env = os.environ if environ is None else environ
    found = {value for name, value in env.items() if _SECRET_VARIABLE.search(name)}
    public: set[str | None] = {"pgrag", "postgres"}
    for text in {dsn, env.get("PGRAG_DSN")} - {None, ""}:
        try:
            parts = urlsplit(str(text))
            public |= {parts.username, parts.hostname, parts.path.strip("/")}
            password = parts.password
        except ValueError:
            continue
        if password:
            found |= {password, unquote(password)}
    return tuple(found - public)
