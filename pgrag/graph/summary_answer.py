"""A model's answer to what descriptions have in common: a summary."""

from __future__ import annotations

import re

from pgrag.llm.repair import mend
from pgrag.text.scripts import QUOTES

_PREAMBLE = re.compile(
    r"\A\s*(?:(?:sure|certainly|of course|okay|ok|好的|当然)[!.,:，。！：](?=\s)[ \t]*\n*)?"
    r"(?:(?:here['’]s|here is|this is|below is|以下是|下面是|这是)[^\n:：]{0,200}"
    r"(?:summar|descri|总结|摘要|描述|概述|概括)[^\n:：]{0,200}[:：][ \t*]*\n*)?",
    re.IGNORECASE,
)
_TITLE = re.compile(
    r"\A\s*(?:#{1,6}[ \t]*)?\*{0,2}(?:final |updated |merged |comprehensive )?"
    r"(?:summary|description|总结|摘要|概述|综合描述|描述)"
    r"\*{0,2}[ \t]*(?:[:：]\*{0,2}[ \t]*|(?:\n+|\Z))",
    re.IGNORECASE,
)
_FAREWELL = re.compile(
    r"\n\s*(?:(?:please )?let me know|i hope this|feel free|is there anything|希望|如果您?还?需要|如有)[^\n]{0,300}\Z",
    re.IGNORECASE,
)


def clean_summary(answer: str) -> str | None:
    """The summary without thinking, fences, titles, preambles and farewells; None if nothing is left. Never raises."""
    mended = mend(answer)
    text = mended.text
    whole = [found.value for found in mended.values]
    if len(whole) == 1 and isinstance(whole[0], dict) and text.startswith("{"):
        strings = [value for value in whole[0].values() if isinstance(value, str) and value.strip()]
        named = [
            value for key, value in whole[0].items() if str(key).lower() in ("summary", "description", "总结", "摘要")
        ]
        texts = [value for value in named if isinstance(value, str) and value.strip()] or strings
        if len(texts) != 1:
            return None
        text = texts[0]
    for _ in range(3):
        before = text
        text = _TITLE.sub("", _PREAMBLE.sub("", text, count=1), count=1)
        if text == before:
            break
    text = _FAREWELL.sub("", text).strip()
    for opening, closing in QUOTES:
        if text[:1] == opening and text[-1:] == closing and not {opening, closing} & set(text[1:-1]):
            text = text[1:-1].strip()
    return text if any(c.isalnum() for c in text) else None
