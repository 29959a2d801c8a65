"""Text for terminals: text from outside never reaches the terminal raw (house rule 11)."""

from __future__ import annotations

import re

# C0 and C1 controls but tab and newline, lone surrogates, and the characters that reorder a line (bidi overrides)
_HOSTILE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """Show every control character of ``text`` as an escape (``\\x1b``); tabs and newlines stay."""
    return _HOSTILE.sub(lambda match: _escape(match.group()), text)


def clean_line(text: str, width: int | None = None) -> str:
    """``clean`` for one line: newlines are shown as ``\\n``; cut in the middle to ``width`` characters if given."""
    text = clean(text).replace("\n", "\\n").replace("\t", " ")
    if width is not None and len(text) > width:
        head = (width - 3) * 2 // 3
        text = text[:head] + "..." + text[len(text) - (width - 3 - head) :]
    return text


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
