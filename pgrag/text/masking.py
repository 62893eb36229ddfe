"""No password and no key ever reaches the terminal, a log or the message of an error."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"

_SHORTEST_SECRET = 6  # a shorter literal would black out ordinary words
_NAMED = r"\b(password|passwd|api_?key|secret|token(?==))(['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&,;]+)"
_PATTERNS = (
    (re.compile(r"(?<=://)([^\s/@:]*):([^\s'\"]+)(?=@)"), rf"\1:{HIDDEN}"),  # scheme://user:password@host
    (re.compile(r"(?<!postgres)(?<!postgresql)://[^\s/@:]+:?(?=@)"), f"://{HIDDEN}"),  # https://key@host
    (re.compile(_NAMED, re.IGNORECASE), rf"\1\2{HIDDEN}"),
    (re.compile(r"\bBearer\s+[^\s'\",;]+", re.IGNORECASE), f"Bearer {HIDDEN}"),
    (re.compile(r"\b(?:sk-|AIza|(?:gsk|xai|nvapi|pplx)[-_])[-\w*]{6,}"), HIDDEN),
    # These begin names as well: of constraints, of models. A key of 20 letters and not one digit is rare.
    (re.compile(r"\b(?:sk_|(?:pk|rk|hf|key)[-_])(?=[-\w*]*[\d*])[-\w*]{6,}"), HIDDEN),
)


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without passwords and keys: the known `secrets` (from six characters on) and what looks like one."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
