"""Token counts by tiktoken's encodings, offline: the vocabulary files come with litellm's wheel."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import tiktoken

from pgrag.errors import ConfigError

CACHE_VARIABLE = "TIKTOKEN_CACHE_DIR"
_BLOB = (
    "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"  # tiktoken names its files by this URL's sha1
)

# Longer texts are counted in slices: older tiktokens need quadratic time for one unbroken run of characters.
_SLICE = 20_000
_LOOK_BACK = 1_000
# Between a letter or digit and one of these, every tiktoken pattern ends a word: a cut here changes no token.
_SURE_CUT = re.compile(r"(?<=[^\W_])(?=[\s,.;:!?()，。；：！？、])")

# tiktoken takes its directory from the process environment only, so whoever changes that must do so alone.
_ENVIRONMENT_LOCK = threading.Lock()


class Tokenizer:
    """Counts and cuts text by the tokens of one encoding. Special tokens such as `<|endoftext|>` are plain text.

    Safe to share between threads. Raises ConfigError for an encoding that is not on this machine; never downloads.
    """

    def __init__(self, name: str = "o200k_base") -> None:
        self.name = name
        self._encoding = _load(name)

    def count(self, text: str) -> int:
        """Number of tokens. Exact up to 20,000 characters, and beyond wherever words end now and then; in an unbroken
        run it is an upper bound, high by up to three tokens in 20,000 characters."""
        if len(text) <= _SLICE:
            return len(self._encoding.encode_ordinary(text))
        return sum(len(self._encoding.encode_ordinary(piece)) + extra for piece, extra in _slices(text))

    def count_many(self, texts: Iterable[str]) -> list[int]:
        """`count` of each text, in order."""
        return [self.count(text) for text in texts]

    def prefix_end(self, text: str, limit: int, start: int = 0) -> int:
        """The end of the longest piece `text[start:end]` of at most `limit` tokens, on a character boundary.

        Longest up to a token or two: cutting a text may change its last tokens, and the limit holds all the same.
        At least one character, even where that alone is over the limit.
        """
        window = max(limit, 1) * 4
        while True:
            piece = text[start : start + window]
            ids = self._encoding.encode_ordinary(piece)
            if len(ids) > limit or start + window >= len(text):
                break
            window *= 2
        length = len(piece)
        if len(ids) > limit:
            length = len(self._encoding.decode_bytes(ids[:limit]).decode("utf-8", "ignore"))
        while length > 1 and (over := self.count(piece[:length]) - limit) > 0:
            length = max(1, length - max(over, over * length // limit if limit > 0 else length))
        return min(start + max(1, length), len(text))


def available_encodings() -> list[str]:
    """Names of the encodings whose vocabulary file is on this machine."""
    return sorted(name for name in tiktoken.list_encoding_names() if _directory_of(name))


def _slices(text: str) -> Iterator[tuple[str, int]]:
    """The text in pieces, each with the tokens to add because its end is no sure cut."""
    start = 0
    while len(text) - start > _SLICE:
        end, extra = start + _SLICE, 1
        for match in _SURE_CUT.finditer(text, end - _LOOK_BACK, end):
            cut, extra = match.start(), 0
        if not extra:
            end = cut
        yield text[start:end], extra
        start = end
    yield text[start:], 0


def _directory_of(name: str) -> Path | None:
    file_name = hashlib.sha1(_BLOB.format(name).encode(), usedforsecurity=False).hexdigest()
    directories = []
    litellm = find_spec("litellm")  # importing litellm takes seconds; its directory is all that is needed
    for location in (litellm.submodule_search_locations or ()) if litellm else ():
        directories.append(Path(location) / "litellm_core_utils" / "tokenizers")
    if own := os.environ.get(CACHE_VARIABLE):
        directories.append(Path(own))
    return next((directory for directory in directories if (directory / file_name).is_file()), None)


def _load(name: str) -> tiktoken.Encoding:
    with _ENVIRONMENT_LOCK:
        directory = _directory_of(name)
        if directory is None:
            there = ", ".join(available_encodings()) or "none (reinstall litellm, whose wheel carries them)"
            raise ConfigError(f"tokenizer {name!r} is not on this machine; there is: {there}")
        own = os.environ.get(CACHE_VARIABLE)
        os.environ[CACHE_VARIABLE] = str(directory)
        try:
            return tiktoken.get_encoding(name)
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(f"tokenizer {name!r} cannot be read from {directory}: {error}") from None
        finally:
            if own is None:
                del os.environ[CACHE_VARIABLE]
            else:
                os.environ[CACHE_VARIABLE] = own
