"""Bytes to text, and no guessing: UTF-8, UTF-16 with a mark, or GB18030 when it is plainly Chinese."""

from __future__ import annotations

import codecs
import re

from pgrag.errors import DocumentError
from pgrag.text.scripts import HAN

_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))
_SAMPLE = 65_536
# About a fifth of any modern Chinese text; text in another encoding read as GB18030 is rare characters instead.
_HAN = re.compile(f"[{HAN}]")
_FREQUENT = frozenset("的一是不了在人有我他这中大来上国和为以到说时要就出会可也你对生能年于下之后与及被由")


def decode(data: bytes) -> str:
    """The text, with \\n for every line end and without what the store cannot hold.

    Raises DocumentError for an empty, a binary or an undecodable document; the message continues "<file> ...".
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return tidy(data.decode("utf-16"))
        except UnicodeDecodeError:
            raise DocumentError("begins like UTF-16 text but is none; convert it to UTF-8") from None
    sample = data[:_SAMPLE]
    if (len(sample) - len(sample.translate(None, _CONTROLS))) * 10 > len(sample):
        raise DocumentError("is a binary file, not text")
    try:
        return tidy(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise DocumentError("is a binary file, not text") from None
        if (chinese := _as_chinese(data)) is not None:
            return tidy(chinese)
        byte, place = data[error.start], error.start
        raise DocumentError(
            f"is not UTF-8 text (byte 0x{byte:02x} at {place}); convert it: iconv -f <encoding> -t UTF-8"
        ) from None


def tidy(text: str) -> str:
    """The text with \\n for every line end. Raises DocumentError if nothing is left."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise DocumentError("is empty")
    return text


def _as_chinese(data: bytes) -> str | None:
    try:
        text = data.decode("gb18030")
    except UnicodeDecodeError:
        return None
    visible = "".join(text[:_SAMPLE].split())
    han = _HAN.findall(visible)
    frequent = sum(char in _FREQUENT for char in han)
    return text if len(han) * 10 >= len(visible) * 3 and frequent * 20 >= len(han) > 0 else None
