"""No password and no key ever reaches the terminal or a log."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

HIDDEN = "***"

_NAMED = r"\b(password|passwd|api_?key|secret|token(?==))(['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&,;]+)"
_PATTERNS = (
    (re.compile(r"(?<=://)([^\s/@:]*):([^\s'\"]+)(?=@)"), rf"\1:{HIDDEN}"),  # scheme://user:password@host
    (re.compile(_NAMED, re.IGNORECASE), rf"\1\2{HIDDEN}"),
    (re.compile(r"\bBearer\s+[\w.~+/=-]+", re.IGNORECASE), f"Bearer {HIDDEN}"),
    (re.compile(r"\bsk-[\w-]{8,}"), HIDDEN),
)
_SECRET_VARIABLE = re.compile(r"(_API_KEY|_SECRET|_PASSWORD|^PGPASSWORD)$")
_SHORTEST_SECRET = 6  # a shorter literal would black out ordinary words


def secrets_of(dsn: str | None, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The literal secrets of this run: the DSN's password and what the environment calls key, secret or password.

    A password that equals the user's or the database's name is left to the patterns: hiding that word
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
    return tuple(sorted((s for s in found - public if len(s) >= _SHORTEST_SECRET), key=len, reverse=True))


def mask(text: str, secrets: tuple[str, ...] = ()) -> str:
    """`text` without passwords and keys: the known `secrets` and whatever looks like one."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
