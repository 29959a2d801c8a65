"""Frames of tracebacks, in the forms of the interpreter, IPython, rich, faulthandler and pytest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from preassert.logs.lines import Text
from preassert.logs.patterns import lazy

GAP = 8  # texts between two frames of one traceback: source lines, carets, blanks

_PYTHON = lazy(r'File "([^"]{1,400})", line (\d+)(?:,? in (\S.{0,120}))?')
_IPYTHON = lazy(
    r"^\s*(?:File )?(\S{1,400}?\.(?:py|pyx)|<ipython-input-[^>]{1,60}>|Cell In\s?\[\d+\]|Input In \[\d+\]"
    r"|/\S*ipykernel_\S+)(?::(\d+)|, line (\d+))?,? in (\S.{0,200})"
)
_CELL = lazy(r"^\s*(Cell In\s?\[\d+\]), line (\d+)")
_RICH = lazy(r"^\s*(/[^\s:]{1,400}\.py|[A-Za-z]:\\[^:]{1,400}\.py|[\w./\\-]{1,400}\.py):(\d+) in (\S+)")
_PYTEST = lazy(r"^(\S{1,300}\.py):(\d+): (\w*(?:Error|Exception)?)\s*$")
_MARKED = lazy(r"^\s*(?:-+> ?\d+ |❱ ?\d+ |> {2,})(.*)")
_LIBRARY = lazy(r"[/\\](?:site-packages|dist-packages|lib[/\\]python\d)|^<frozen|importlib|[/\\]\.vscode[/\\]|^/usr/lib/python")


class Frame(NamedTuple):
    file: str
    line: int | None
    function: str
    source: str | None
    at: int  # index of the text that holds it

    @property
    def library(self) -> bool:
        """Part of an installed package, not of the person's own program."""
        return bool(_LIBRARY.search(self.file))


def find(texts: Sequence[Text]) -> list[list[Frame]]:
    """The tracebacks of consecutive texts, outermost frame first as printed (faulthandler prints innermost first)."""
    groups: list[list[Frame]] = []
    for index, text in enumerate(texts):
        frame = _frame(texts, index, text.text)
        if frame is None:
            continue
        if groups and not _apart(texts, groups[-1][-1].at, index):
            groups[-1].append(frame)
        else:
            groups.append([frame])
    return groups


def _apart(texts: Sequence[Text], last: int, index: int) -> bool:
    if texts[last].cell != texts[index].cell:
        return True
    between = [text.text for text in texts[last + 1 : index]]
    if any("Traceback (most recent call last)" in text for text in [*between, texts[index].text]):
        return True
    if len(between) <= GAP:
        return any(re.match(r"\s*[\w.]*(?:Error|Exception)\b:? ", text) for text in between)
    # IPython and rich print a dozen source lines around each frame
    return len(between) > 24 or not any(_MARKED.match(text) or re.match(r"\s*\d+\s", text) for text in between)


def _frame(texts: Sequence[Text], index: int, text: str) -> Frame | None:
    match = _PYTHON.search(text)
    if match:
        function = (match.group(3) or "").strip().strip(",")
        return Frame(match.group(1), int(match.group(2)[:9]), function, _next_source(texts, index), index)
    if ".py" in text or "ipython-input" in text or " In" in text or "ipykernel" in text:
        match = _RICH.match(text)
        if match:
            return Frame(match.group(1), int(match.group(2)[:9]), match.group(3), _marked_source(texts, index), index)
        match = _IPYTHON.match(text)
        if match:
            number = match.group(2) or match.group(3)
            function = re.split(r"[(\s]", match.group(4))[0]
            return Frame(match.group(1), int(number[:9]) if number else None, function, _marked_source(texts, index), index)
        match = _CELL.match(text)
        if match:
            return Frame(match.group(1), int(match.group(2)[:9]), "<module>", _marked_source(texts, index), index)
        match = _PYTEST.match(text)
        if match:
            return Frame(match.group(1), int(match.group(2)[:9]), "", _marked_before(texts, index), index)
    return None


def _next_source(texts: Sequence[Text], index: int) -> str | None:
    """The line below `File "...", line N, in f`: a source line, unless it is the next frame or the exception."""
    if index + 1 >= len(texts):
        return None
    text = texts[index + 1].text
    if not text.strip() or 'File "' in text or re.match(r"\S*(?:Error|Exception)\b", text):
        return None
    return text.strip()[:300]


def _marked_source(texts: Sequence[Text], index: int) -> str | None:
    """The line that IPython or rich points at (`---->`), within the frame."""
    for text in texts[index + 1 : index + 25]:
        match = _MARKED.match(text.text)
        if match:
            return match.group(1).strip()[:300]
        if _PYTHON.search(text.text) or _RICH.match(text.text):
            return None
    return None


def _marked_before(texts: Sequence[Text], index: int) -> str | None:
    for text in reversed(texts[max(index - 25, 0) : index]):
        if text.text.startswith(">"):
            return text.text[1:].strip()[:300]
    return None
