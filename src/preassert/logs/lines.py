"""From a raw line to the text a program printed: colours, progress bars, wrappers and prefixes come off, the line number stays.

A raw line may hold several logical lines (carriage returns, JSON records, ``\\n`` written out as two characters); each
keeps the number of the raw line it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

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


_ANSI = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\\\)|\x1b[@-Z\\\\^_=>]|\x1b[()][0-9A-B]"
    "|\\^\\[\\[[0-9;]{0,12}m|\u241b\\[[0-9;]{0,12}m|\\[(?:0|[0-9]{1,2})(?:;[0-9]{1,3}){0,5}m"
)
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#0?39|#34|#96|#x27|#x22|#x60|grave);", re.IGNORECASE)
_ENTITIES = {
    "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&apos;": "'", "&nbsp;": " ", "&#39;": "'", "&#039;": "'",
    "&#34;": '"', "&#96;": "`", "&#x27;": "'", "&#x22;": '"', "&#x60;": "`", "&grave;": "`",
}  # fmt: skip
_TAG = re.compile(r"</?(?:code|pre|p|div|span|b|strong|em|i|tt|samp|kbd|blockquote|li|ul|td|tr)(?: [^<>]{0,200})?>", re.IGNORECASE)
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
# `\n` in two characters is a line end, unless it is a Windows path (`\native\`) - what follows tells
_ESCAPED_NEWLINE = re.compile(r"\\{1,3}r?\\{0,3}n(?=[\sA-Z/.<>\[\"'`(^|~]|\\|$|\d+it/|terminate|python|\w+_kernel|lambda|unknown:)")
_ESCAPED_OTHER = re.compile(r"\\{1,3}(u001[bB]|x1[bB]|033|[\"'`t/]|\\)")
_SEGMENT_WORTH = re.compile(r"[Aa]ssert|rror|block: \[|Traceback|xception|failed")

_QUOTE = re.compile(r"^(?:\s{0,8}(?:[>│┃║❯]|\|(?=\s|$))[ \t]?)+")
_BOX_END = re.compile(r"\s*[│┃║|]\s*$")

_TIME = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"
_DATE = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}(?:[-/.]\d{2,4})?|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)?,? ?[A-Z][a-z]{2} +\d{1,2},?(?: \d{4})?)"
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|SEVERE|debug|info|warning|warn|error|critical|fatal)"
_PREFIXES: tuple[tuple[re.Pattern[str], str | None], ...] = tuple(
    (re.compile(pattern), group)
    for pattern, group in (
        (r"\[rank ?(\d{1,5})\]:? ?", "rank"),
        (r"\[default(\d{1,5})\]:? ?", "rank"),
        (r"\[\d{1,6},(\d{1,5})\]<std(?:err|out|diag)>:? ?", "rank"),
        (r"\[(?:Rank|RANK|GPU rank|global_rank|local_rank)[ :=]*(\d{1,5})\]:? ?", "rank"),
        (r"(?:rank|Rank|RANK|worker|node rank)[ _-]?(\d{1,5}) ?[:|>\]] ?", "rank"),
        (r"\((?=[^()]*\b(?:pid|ip|rank)=)(?:[^()]*?\brank=(\d{1,5}))?[^()]{0,160}\):? ?", "rank"),
        (r"\[?(?:%s[T ,:]{0,2})?%s(?: ?(?:Z|UTC|[AP]M|[+-]\d\d:?\d\d))?\]?[:,]?(?:\s+-)?[ \t]*" % (_DATE, _TIME), None),
        (r"\[%s\][ \t]*" % _DATE, None),
        (r"[\[(<]?(%s)[\])>]?(?=[\s:|,\-]|$)[ :|,\-]*" % _LEVEL, "level"),
        (r"%s[ T]%s\s*" % (_DATE, _TIME), None),
        (r"\[?[\w./-]{1,80}\.(?:py|rs|cc|cpp|go):\d{1,6}\][ :\-]*", None),
        (r"\[[IWEF]\d{3,4} %s[^\]]{0,80}\][ :]*" % _TIME, None),
        (r"[IWEF]\d{4} %s\s+\d+ [\w.\-]+:\d+\] ?" % _TIME, None),
        (r"std(?:out|err) [FP] ", None),
        (r"\[std(?:out|err)\]:? ?", None),
        (r"[\w.\-/@]{2,80} +\| (?=\S|\s{2,}File|$)", None),
        (r"[\w.\-]{1,60}(?:/[\w.\-]{1,60})?\[\d{1,8}\]: ", None),
        (r"\[[\w.\-/]{1,60}(?::\d{1,6})?\](?=[ :\[(])[ :]*(?:- )?", None),
        (r"\[\d{1,8}\](?=[ :]) ?:?", None),
        (r"(?:INFO|WARNING|ERROR|CRITICAL|DEBUG):[\w.\-]{1,80}:", None),
        (r"- [\w.]{1,60} - (?:(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) - ?)?", None),
    )
)
_PREFIX_START = re.compile(r"[\[(\d<>\-A-Za-z│|]")
# `srun --label` numbers the tasks `3: text`; only believed before something that belongs to a failure
_SRUN = re.compile(r"\s{0,3}(\d{1,4}): (?=\s*(?:/|\.\./|[A-Z]:[\\/]|Traceback|File \"|\w*Error|CUDA |unknown:|<frozen|terminate|\[rank))")
_INNER_RANK = re.compile(r"\[(?:PG [^\]]{0,60}|[^\]]{0,20})\bRank (\d{1,5})\]|\bon rank (\d{1,5})\b|^\[rank(\d{1,5})\]")
_K8S = re.compile(r"^(?:[a-z0-9][\w.\-]*-[a-z0-9]{4,10}(?:-[a-z0-9]{5})?) (?=\S)")

_MESSAGE_KEYS = (
    "log", "message", "msg", "MESSAGE", "textPayload", "@message", "body", "line", "event", "text", "output", "content",
    "stderr", "stdout", "exc_info", "exc_text", "exception", "stack", "stacktrace", "stack_trace", "traceback", "error",
    "err", "errors", "detail", "reason",
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
    if "\x1b" in text or "m" in text:
        text = _ANSI.sub("", text)
    if "\x08" in text:
        text = text.replace("\x08", "")
    if "&" in text:
        text = _ENTITY.sub(lambda match: _ENTITIES.get(match.group().lower(), match.group()), text)
    if "<" in text and ">" in text:
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
    parts = _ESCAPED_NEWLINE.split(text)
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
        known = [key for key in data if key in _MESSAGE_KEYS and data[key]]
        for key in known or data:
            yield from _messages(data[key], depth + 1)


def _strip(line: int | None, shown: str, rank: int | None, level: str | None, cell: int | None) -> Text:
    text = shown
    quote = _QUOTE.match(text)
    if quote:
        text = _BOX_END.sub("", text[quote.end() :])
    if "**" in text:
        text = text.replace("**", "")
    for _ in range(8):
        start = len(text) - len(text.lstrip())
        if start > 12 or not _PREFIX_START.match(text, start):
            break
        for pattern, group in _PREFIXES:
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
        match = _SRUN.match(text)
        if match:
            rank = int(match.group(1))
            text = text[match.end() :]
        elif "ank" in shown:
            inner = _INNER_RANK.search(shown)
            if inner:
                rank = int(next(group for group in inner.groups() if group is not None))
    return Text(line, text.rstrip(), shown.rstrip(), rank, level, cell)
