"""From a raw line to the text a program printed: colours, progress bars, wrappers and prefixes come off, the line number stays.

A raw line may hold several logical lines (carriage returns, JSON records, ``\\n`` written out as two characters); each
keeps the number of the raw line it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from preassert.logs.patterns import lazy

MAX_SEGMENTS = 64  # pieces kept of one raw line; a progress bar may have a hundred thousand
MAX_LINE_CHARS = 1 << 20


class Text(NamedTuple):
    """One logical line."""

    line: int | None  # 1-based line of the file; None inside a notebook
    text: str  # without prefixes
    shown: str  # as printed, without colours
    rank: int | None
    level: str | None  # severity that a logger printed
    cell: int | None = None  # notebook cell


_ANSI = lazy(
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\\\)|\x1b[@-Z\\\\^_=>]|\x1b[()][0-9A-B]"
    "|\\^\\[\\[[0-9;]{0,12}m|\u241b\\[[0-9;]{0,12}m|\\[(?:0|[0-9]{1,2})(?:;[0-9]{1,3}){0,5}m"
)
_ANSI_MARKS = ("\x1b", "[0m", "[1m", "[3", "[9", "[0;", "[1;", "[4", "^[[", "\u241b[")  # also what is left of one without ESC
# What web pages and chats put in the place of a blank, or between two characters
_BLANKS = {
    **dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " "),
    **dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF)),
}
_TAG_MARKS = ("</", "<br", "<pre", "<code", "<div", "<p>", "<span", "<b>")
_ENTITY = lazy(r"&(?:lt|gt|amp|quot|apos|nbsp|#0?39|#34|#96|#x27|#x22|#x60|grave);", re.IGNORECASE)
_ENTITIES = {
    "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&apos;": "'", "&nbsp;": " ", "&#39;": "'", "&#039;": "'",
    "&#34;": '"', "&#96;": "`", "&#x27;": "'", "&#x22;": '"', "&#x60;": "`", "&grave;": "`",
}  # fmt: skip
_TAG = lazy(r"</?(?:code|pre|p|div|span|b|strong|em|i|tt|samp|kbd|blockquote|li|ul|td|tr)(?: [^<>]{0,200})?>", re.IGNORECASE)
_BREAK = lazy(r"<br ?/?>", re.IGNORECASE)
# `\n` in two characters is a line end, unless it is a Windows path (`\native\`) - what follows tells
_ESCAPED_NEWLINE = lazy(r"\\{1,3}r?\\{0,3}n(?=[\sA-Z/.<>\[\"'`(^|~]|\\|$|\d+it/|terminate|python|\w+_kernel|lambda|unknown:)")
_ANY_ESCAPED_NEWLINE = lazy(r"\\{1,3}r?\\{0,3}n")
_DRIVE = lazy(r"[A-Za-z]:\\")
_ESCAPED_OTHER = lazy(r"\\{1,3}(u001[bB]|x1[bB]|033|[\"'`t/]|\\)")
_SEGMENT_WORTH = lazy(r"[Aa]ssert|rror|block: \[|Traceback|xception|failed")

_QUOTE = lazy(r"^(?:\s{0,8}(?:[>│┃║❯]|\|(?=\s|$))[ \t]?)+")
_BOLD = lazy(r"(?<!\*)\*\*(?!\*)")
_QUOTE_CHARS = frozenset(" \t>│┃║❯|")
_BOX_END = "│┃║|"

_TIME = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?"
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}(?:[-/.]\d{2,4})?"
    rf"|{_DAY}[A-Z][a-z]{{2}} +\d{{1,2}},?(?: \d{{4}})?)"
)
_LEVEL = (
    r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|SEVERE"
    r"|debug|info|warning|warn|error|critical)"
)
_DIGITS = "0123456789"
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SMALL = "abcdefghijklmnopqrstuvwxyz"
# (characters it begins with, text it holds, pattern, what its group is); the first two spare most lines the pattern
_PREFIXES: tuple[tuple[str, str, re.Pattern[str], str | None], ...] = tuple(
    (first, within, lazy(pattern), group)
    for first, within, pattern, group in (
        ("[", "rank", r"\[rank ?(\d{1,5})\]:? ?", "rank"),
        ("[", "[default", r"\[default(\d{1,5})\]:? ?", "rank"),
        ("[", "]<std", r"\[\d{1,6},(\d{1,5})\]<std(?:err|out|diag)>:? ?", "rank"),
        ("[", "]<std", r"\[\d{1,6},mpirank:(\d{1,5}),[\w.\-]{1,60}\]<std(?:err|out|diag)>:? ?", "rank"),
        ("[", "ank", r"\[(?:[Rr]ank|RANK|GPU rank|global_rank|local_rank)[ :=]*(\d{1,5})\]:? ?", "rank"),
        ("rRwn", "", r"(?:rank|Rank|RANK|worker|node rank)[ _-]?(\d{1,5}) ?[:|>\]] ?", "rank"),
        ("(", "=", r"\((?=[^()]*\b(?:pid|ip|rank)=)(?:[^()]*?\brank=(\d{1,5}))?[^()]{0,160}\):? ?", "rank"),
        (
            "[" + _DIGITS + _CAPITALS,
            ":",
            rf"\[?(?:{_DATE}[T ,:]{{0,2}})?{_TIME}(?: ?(?:Z|UTC|[AP]M|[+-]\d\d:?\d\d))?\]?[:,]?[ \t]*",
            None,
        ),
        ("[", "]", rf"\[{_DATE}\][ \t]*", None),
        ("[(<" + _CAPITALS + "diwecf", "", rf"[\[(<]?({_LEVEL})[\])>]?(?=[\s:|,\-]|$)[ :|,\-]*", "level"),
        (_DIGITS + "[" + _CAPITALS + _SMALL, "]", r"\[?[\w./-]{1,80}\.(?:py|rs|cc|cpp|go):\d{1,6}\][ :\-]*", None),
        ("[", "]", rf"\[[IWEF]\d{{3,4}} {_TIME}[^\]]{{0,80}}\][ :]*", None),
        ("IWEF", "]", rf"[IWEF]\d{{4}} {_TIME}\s+\d+ [\w.\-]+:\d+\] ?", None),
        ("s", "std", r"std(?:out|err) [FP] ", None),
        ("[", "[std", r"\[std(?:out|err)\]:? ?", None),
        (_DIGITS + _CAPITALS + _SMALL, " | ", r"[\w.\-/@]{2,80} +\| (?=\S|\s{2,}File|$)", None),
        (_CAPITALS + _SMALL, "]: ", r"[\w.\-]{1,60}(?:/[\w.\-]{1,60})?\[(?:\d{1,8}|[\w.\-]{1,40}\.\d{1,5})\]: ", None),
        ("{", ".py:", r"\{[\w./-]{1,80}\.py:\d{1,6}\} ?", None),
        (_DIGITS, "\t", r"\d{1,7}\t", None),
        (_DIGITS, ".", r"1[5-9]\d{8}\.\d{3,9}:? ", None),
        ("[", "]", rf"\[[DIWEC] {_DATE}[ T]{_TIME}[^\]]{{0,80}}\] ?", None),
        ("[", "]", r"\[[\w.\-/]{1,60}(?::\d{1,6})?\](?=[ :\[(])(?! ?[<>=!&|+*`-])[ :]*(?:- )?", None),
        ("IWECD", ":", r"(?:INFO|WARNING|ERROR|CRITICAL|DEBUG):[\w.\-]{1,80}:", None),
        ("-", "", rf"- (?:[\w.\-]{{1,60}} - )?\[?({_LEVEL})\]?(?=[\s:\-]|$)[ :\-]*", "level"),
        ("-", " - ", r"- [\w.]{1,60} - ", None),
    )
)
_PREFIX_CHARS = frozenset("[(<-{" + _DIGITS + _CAPITALS + _SMALL)
# `srun --label` numbers the tasks `3: text`; only believed before something that belongs to a failure
_SRUN = lazy(
    r"\s{0,3}(\d{1,4}): (?=\s*(?:/|\.\./|[A-Z]:[\\/]|Traceback|File \"|\w*Error|CUDA |unknown:|<frozen|terminate|\[rank))"
)
_INNER_RANK = lazy(r"\[(?:PG [^\]]{0,60}|[^\]]{0,20})\bRank (\d{1,5})\]|\bon rank (\d{1,5})\b|^\[rank(\d{1,5})\]")

_MESSAGE_KEYS = (
    "log", "message", "msg", "MESSAGE", "textPayload", "@message", "body", "line", "event", "text", "output", "content",
    "stderr", "stdout", "exc_info", "exc_text", "exception", "stack", "stacktrace", "stack_trace", "traceback", "error",
    "err", "errors", "detail", "reason", "value",
)  # fmt: skip
_RANK_KEYS = ("rank", "global_rank", "RANK", "local_rank")
_LEVEL_KEYS = ("level", "severity", "levelname", "lvl")


def logical_lines(line: int | None, raw: bytes, cell: int | None = None) -> Iterator[Text]:
    """The texts of one raw line (without its line end)."""
    decoded = raw[:MAX_LINE_CHARS].decode("utf-8", "replace")
    if decoded.isascii() and decoded[:1] not in "{[\x1b" and not any(mark in decoded for mark in "\r\x1b&\\<^"):
        yield _strip(line, decoded, None, None, cell)  # the common case, fast
        return
    for piece in _pieces(decoded):
        rank = level = None
        texts: list[str] = [piece]
        if piece.lstrip()[:1] == "{" and piece.rstrip()[-1:] in "},":
            record = _record(piece)
            if record is not None:
                rank, level, texts = record
        for text in texts:
            for part in _unescape(text):
                yield _strip(line, part, rank, level, cell)


def _pieces(text: str) -> list[str]:
    text = text.rstrip("\r")
    if not text.isascii():
        text = text.translate(_BLANKS)
    if any(mark in text for mark in _ANSI_MARKS):
        text = _ANSI.sub("", text)
    if "\x08" in text:
        text = text.replace("\x08", "")
    if "&" in text and ";" in text:
        for _ in range(2):  # some pages escape what is escaped already
            text = _ENTITY.sub(lambda match: _ENTITIES.get(match.group().lower(), match.group()), text)
    if "<" in text and any(tag in text for tag in _TAG_MARKS):
        text = _BREAK.sub("\r", _TAG.sub("", text))
    if "\r" not in text:
        return [text]
    pieces = [piece for piece in text.split("\r") if piece.strip()]
    if len(pieces) > MAX_SEGMENTS:
        worth = [piece for piece in pieces if _SEGMENT_WORTH.search(piece)]
        pieces = [*worth[:MAX_SEGMENTS], *pieces[-1:]]
    return pieces or [""]


def _unescape(text: str) -> list[str]:
    """Split at written-out line ends and undo the escapes of JSON and of ``repr``, where there are any."""
    if "\\" not in text:
        return [text]
    several = text.count("\\n") > 1 and not _DRIVE.search(text)
    parts = (_ANY_ESCAPED_NEWLINE if several else _ESCAPED_NEWLINE).split(text)
    if len(parts) == 1 and '\\"' not in text and "\\u001" not in text and "\\x1" not in text and "\\033" not in text:
        return [_unescape_markdown(text)]
    parts = [_ANSI.sub("", _ESCAPED_OTHER.sub(_unescaped, part)) for part in parts]
    kept = [part for part in parts if part.strip()]
    return kept[: MAX_SEGMENTS * 64] or [""]


def _unescaped(match: re.Match[str]) -> str:
    body = match.group(1)
    if body == "t":
        return "\t"
    return "\x1b" if body[0] in "ux0" else body


def _unescape_markdown(text: str) -> str:
    return re.sub(r"\\([_\[\]*`<>&])", r"\1", text) if "\\[" in text or "\\`" in text else text


def _record(piece: str) -> tuple[int | None, str | None, list[str]] | None:
    """Rank, level and messages of a JSON record; None if the text is no JSON."""
    import json

    try:
        data = json.loads(piece.strip().rstrip(","))
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    rank = next((data[key] for key in _RANK_KEYS if isinstance(data.get(key), int) and not isinstance(data.get(key), bool)), None)
    level = next((data[key] for key in _LEVEL_KEYS if isinstance(data.get(key), str)), None)
    messages = [line for text in _messages(data, 0) for line in text.split("\n") if line.strip()]
    return rank, level.upper() if level else None, messages[: MAX_SEGMENTS * 64] or [""]


def _messages(data: Any, depth: int) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, list) and depth < 6:
        for item in data[:100_000]:
            yield from _messages(item, depth + 1)
    elif isinstance(data, dict) and depth < 6:
        known = [key for key in data if key in _MESSAGE_KEYS and isinstance(data[key], (str, list, dict))]
        for key in known or data:
            yield from _messages(data[key], depth + 1)


def _strip(line: int | None, shown: str, rank: int | None, level: str | None, cell: int | None) -> Text:
    text = shown
    if text[:1] in _QUOTE_CHARS and (quote := _QUOTE.match(text)):
        text = text[quote.end() :].rstrip()
        if text[-1:] in _BOX_END:
            text = text[:-1].rstrip()
    if "**" in text:
        text = _BOLD.sub("", text)
    for _ in range(8):
        start = len(text) - len(text.lstrip())
        first = text[start : start + 1]
        if start > 12 or first not in _PREFIX_CHARS:
            break
        window = text[start : start + 200]
        for characters, within, pattern, group in _PREFIXES:
            if first not in characters or within not in window:
                continue
            match = pattern.match(text, start)
            if match and match.end() > start:
                if group == "rank" and match.group(1) is not None:
                    rank = int(match.group(1))
                elif group == "level" and level is None:
                    level = match.group(1).upper()
                text = text[match.end() :]
                break
        else:
            break
    if rank is None:
        match = _SRUN.match(text) if text.lstrip()[:1].isdigit() else None
        if match:
            rank = int(match.group(1))
            text = text[match.end() :]
        elif "ank" in shown:
            inner = _INNER_RANK.search(shown)
            if inner:
                rank = int(next(group for group in inner.groups() if group is not None))
    return Text(line, text.rstrip(), shown.rstrip(), rank, level, cell)
