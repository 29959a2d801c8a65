"""CSV and TSV: the bytes of one field in each record are replaced, and every other byte is copied.

A field is quoted if it *begins* with a quote, as in RFC 4180; a quote inside an unquoted field is a character, and so are all
quotes of some tab-separated files (:mod:`preassert.data.formats.quotes`). Empty lines and comment lines are no rows and are
copied.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from preassert.data.formats import comments, quotes
from preassert.data.formats.csv import DELIMITERS
from preassert.data.source import Source
from preassert.errors import InputError, UsageError
from preassert.labels.values import shown_list
from preassert.remap.recode import DROP, UNSEEN, Options, Recoder, Tally
from preassert.remap.streams import UTF8_BOM, blocks, decode, encode, narrow, sink, wide_encoding

RECORD_LIMIT_BYTES = 1 << 26  # a longer record is an unclosed quote
_QUOTE, _HASH = 0x22, 0x23
# The delimiter is not known yet: quotes decide alone where the first record ends.
_HEAD = re.compile(rb'(?:[^"\r\n]|"[^"]*")*(?:\r\n|\n|\r)')
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")


@dataclass(slots=True)
class Part:
    """Some records of the file: ``data`` with, for each, where it starts, where its label field starts, and that field."""

    data: bytes
    starts: list[int]
    fields: list[int]
    raws: list[bytes]
    first_row: int  # 0-based number of the first record here
    first_line: int  # 0-based line on which ``data`` begins

    def place(self, position: int) -> str:
        line = self.first_line + self.data.count(b"\n", 0, self.starts[position]) + 1
        return f"row {self.first_row + position + 1:,} (line {line:,})"


def _field(delimiter: bytes, quoting: bool) -> bytes:
    d = re.escape(delimiter)
    if not quoting:
        return b"[^" + d + rb"\r\n]*"
    # (?!") makes the closing quote unambiguous: without it an unfinished record costs exponential time.
    return rb'(?:"[^"]*(?:""[^"]*)*"(?!")[^' + d + rb'\r\n]*|[^"' + d + rb"\r\n][^" + d + rb"\r\n]*|)"


class Layout:
    """Where the label is in each record."""

    def __init__(self, header: bytes, options: Options, path: Path) -> None:
        self.path = path
        self.options = options
        text = decode(header, options, path)
        self.delimiter = _delimiter(text, options, path)
        names = _split(text, self.delimiter)
        self.width = len(names)
        column = options.column
        if column is None:
            if len(names) > 1 or not options.header:
                raise UsageError(f"{path}: --column is needed; columns are {shown_list(names, 20)}")
            self.position = 0
        elif not options.header:
            if not column.isdecimal() or not 1 <= int(column) <= self.width:
                raise UsageError(f"{path}: without a header --column is a number from 1 to {self.width}, not {column!r}")
            self.position = int(column) - 1
        else:
            if names.count(column) != 1:
                what = "no column" if column not in names else "more than one column"
                raise UsageError(f"{path}: {what} {column!r}; columns are {shown_list(names, 20)}")
            self.position = names.index(column)
        plain = wide_encoding(path, options.encoding)[0] is None and options.comment is None
        self.quoting = not (plain and quotes.are_characters(Source(str(path)), self.delimiter, self.width))
        d = self.delimiter.encode()
        field = _field(d, self.quoting)
        before = rb"(?:" + field + re.escape(d) + rb"){%d}" % self.position
        self.record = re.compile(before + rb"(" + field + rb")(?:" + re.escape(d) + field + rb")*(?:\r\n|\n|\r)")
        self.fields = re.compile(rb"(" + field + rb")(?:" + re.escape(d) + rb"|$)")
        self.comments = 0

    def is_comment(self, line: bytes) -> bool:
        # Latin-1 has a character for every byte, and what counts here is ASCII.
        return comments.is_comment(line.decode("latin-1"), self.delimiter, self.width, _sign(self.options))


def _split(text: str, delimiter: str) -> list[str]:
    import csv
    import io

    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [""])


def _sign(options: Options) -> str | None:
    """What comments begin with, as :attr:`Layout.is_comment` sees it."""
    return None if options.comment is None else options.comment.encode().decode("latin-1")


def _delimiters(options: Options, path: Path) -> tuple[str, ...]:
    """The one that is given, else all that are possible, the usual one first."""
    if options.delimiter is not None:
        delimiter = {"\\t": "\t", "tab": "\t"}.get(options.delimiter, options.delimiter)
        if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
            raise UsageError(f"--delimiter must be one ASCII character, not {options.delimiter!r}")
        return (delimiter,)
    usual = "\t" if {".tsv", ".tab"} & {suffix.lower() for suffix in path.suffixes[-2:]} else ","
    return (usual, *(mark for mark in DELIMITERS if mark != usual))


def _delimiter(header: str, options: Options, path: Path) -> str:
    candidates = _delimiters(options, path)
    if options.column is not None and options.header:
        for candidate in candidates:
            if options.column in _split(header, candidate):
                return candidate
    return comments.likeliest(header, candidates)


def _head(data: bytes, options: Options, whole: bool, path: Path) -> tuple[int, int] | None:
    """Bounds of the header (or, without one, of the first record) in the first bytes; None when more bytes are needed."""
    position = len(UTF8_BOM) if data.startswith(UTF8_BOM) else 0
    sign = (options.comment or comments.SIGN).encode()
    follow: str | None = None
    while True:
        found = _LINE.match(data, position)
        line = found.group().rstrip(b"\r\n") if found else data[position:]
        if found is None and not whole:
            return None
        if line.startswith(sign):
            if follow is None and options.comment is None:
                after = _line_after(data, position, sign, whole)
                if after is None:
                    return None
                follow = after.decode("latin-1")
            if options.comment is None and comments.is_header(
                line.decode("latin-1"), follow or None, _wanted(options), _delimiters(options, path)
            ):
                return _record_at(data, position, whole, _delimiters(options, path))
        elif line:
            return _record_at(data, position, whole, _delimiters(options, path))
        if found is None:
            return position, len(data)
        position = found.end()


def _record_at(data: bytes, position: int, whole: bool, delimiters: Sequence[str]) -> tuple[int, int] | None:
    """A line that leaves no quote open is a record; else quotes alone tell."""
    found = _LINE.match(data, position)
    line = found.group().decode("latin-1").rstrip("\r\n") if found else ""
    if found is None or comments.count_fields(line, comments.likeliest(line, delimiters)) is None:
        found = _HEAD.match(data, position)
    if found is None:
        return (position, len(data)) if whole else None
    return position, found.end()


def _line_after(data: bytes, position: int, sign: bytes, whole: bool) -> bytes | None:
    """The next line that is neither empty nor begins with ``sign``; empty if there is none, None if more bytes must tell."""
    while found := _LINE.match(data, position):
        line = found.group().rstrip(b"\r\n")
        if line and not line.startswith(sign):
            return line
        position = found.end()
    if not whole:
        return None
    return b"" if data[position:].startswith(sign) else data[position:]


def _wanted(options: Options) -> tuple[str, ...]:
    """The column as it stands in the bytes of the file."""
    if options.column is None or not options.header:
        return ()
    try:
        return (options.column.encode(narrow(options)).decode("latin-1"),)
    except UnicodeEncodeError:
        return ()  # Layout says that there is no such column


def parts(path: Path, options: Options) -> Iterator[tuple[Layout, Part]]:
    """The file in order; the bytes of all parts together are the file. The first part is the head, without records."""
    wide = wide_encoding(path, options.encoding)
    source = blocks(path, wide, options.advance)
    buffer, ended = b"", False
    head = None
    while head is None and not ended:
        buffer, ended = _more(source, buffer, at_least=len(buffer))
        head = _head(buffer, options, ended, path)
        if head is None and len(buffer) > RECORD_LIMIT_BYTES:
            raise InputError(str(path), "no end of the first line within 64 MB: not a CSV file, or a quote is not closed")
    if head is None or not buffer.strip():
        raise InputError(str(path), "empty file")
    layout = Layout(buffer[head[0] : head[1]].rstrip(b"\r\n"), options, path)
    cut = head[1] if options.header else head[0]
    yield layout, Part(buffer[:cut], [], [], [], 0, 0)
    row, line = 0, buffer.count(b"\n", 0, cut)
    buffer = buffer[cut:]
    while True:
        if ended and buffer and not buffer.endswith((b"\n", b"\r")):
            buffer += b"\n"
            part, used = _records(layout, buffer, row, line, True)
            part.data = part.data[:-1]  # the line end that the file does not have
        else:
            part, used = _records(layout, buffer, row, line, ended)
        if used:
            yield layout, part
            row += len(part.raws)
            line += buffer.count(b"\n", 0, used)
            buffer = buffer[used:]
        if ended and buffer:
            raise InputError(str(path), f"line {line + 1:,}: a quote that is not closed, or too few fields")
        if ended:
            return
        if len(buffer) > RECORD_LIMIT_BYTES:
            raise InputError(str(path), f"line {line + 1:,}: a record longer than 64 MB, or a quote that is not closed")
        # Twice as much after a piece without a record: an unclosed quote is not read again with every block.
        buffer, ended = _more(source, buffer, at_least=1 if used else len(buffer))


def _more(source: Iterator[bytes], buffer: bytes, at_least: int) -> tuple[bytes, bool]:
    """(buffer with more blocks behind it, whether the file ended)."""
    pieces, size = [buffer], 0
    while size < max(1, at_least):
        block = next(source, None)
        if block is None:
            return b"".join(pieces), True
        pieces.append(block)
        size += len(block)
    return b"".join(pieces), False


def _records(layout: Layout, buffer: bytes, row: int, line: int, ended: bool) -> tuple[Part, int]:
    """The complete records at the start of ``buffer``, and how many of its bytes they take."""
    part = Part(buffer, [], [], [], row, line)
    add_start, add_field, add_raw = part.starts.append, part.fields.append, part.raws.append
    done, size = 0, len(buffer)
    first_column = layout.position == 0
    comment = layout.options.comment.encode()[0] if layout.options.comment else _HASH
    # match and not finditer: a search would find something that looks like a record inside an unfinished one.
    match = layout.record.match
    while done < size:
        found = match(buffer, done)
        if found is None:
            after = _pass_over(layout, buffer, done, line, ended)
            if after == done:
                break
            done = after
            continue
        start, done = done, found.end()
        if buffer[start] == comment and (line_end := _comment_end(layout, buffer, start)):
            layout.comments += 1
            done = line_end  # a quote that the comment opens is nothing
        elif not first_column or start + 2 < done or buffer[start:done].strip(b"\r\n"):
            add_start(start)
            add_field(found.start(1))
            add_raw(found[1])
    part.data = buffer[:done]
    return part, done


def _comment_end(layout: Layout, buffer: bytes, start: int) -> int:
    """Where the line at ``start`` ends if it is a comment, else 0."""
    found = _LINE.match(buffer, start)
    return found.end() if found and layout.is_comment(found.group()) else 0


def _pass_over(layout: Layout, buffer: bytes, start: int, line: int, ended: bool) -> int:
    """End of the empty or comment line at ``start``; ``start`` itself if more bytes must come first.

    Raises:
        InputError: a line with too few fields, or at the end of the file a quote that is not closed.
    """
    found = _LINE.match(buffer, start)
    if found is None:
        return start
    text = found.group().rstrip(b"\r\n")
    if text and not layout.is_comment(text):
        number = line + buffer.count(b"\n", 0, start) + 1
        if b'"' not in text:
            raise InputError(str(layout.path), f"line {number:,}: fewer than {layout.position + 1} fields, the label is missing")
        if not ended:
            return start  # perhaps the rest of a quoted field is still to come
        raise InputError(str(layout.path), f"line {number:,}: a quote that is not closed, or too few fields")
    layout.comments += bool(text)
    return found.end()


def unquote(raw: bytes) -> bytes:
    if not raw.startswith(b'"'):
        return raw
    end = raw.rindex(b'"')
    return raw[1:end].replace(b'""', b'"') + raw[end + 1 :]


def _text(raw: bytes, layout: Layout) -> str:
    """What a field holds."""
    if layout.quoting:
        return decode(unquote(raw), layout.options, layout.path)
    return quotes.unwrapped(decode(raw, layout.options, layout.path))


def survey(path: Path, options: Options, tally: Tally) -> None:
    comments = 0
    for layout, part in parts(path, options):
        comments = layout.comments
        counts: Counter[str] = Counter()
        for raw, count in Counter(part.raws).items():
            counts[_text(raw, layout)] += count
        tally.add_text(counts)
    if comments:
        tally.note(f"{path}: {comments:,} comment {'line is' if comments == 1 else 'lines are'} copied")


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    memo: dict[bytes, object] = {}
    meanings: dict[bytes, object] = {}
    with sink(target, path, wide_encoding(path, options.encoding)) as out:
        for layout, part in parts(path, options):
            counts = Counter(part.raws)
            special = False
            for raw, count in counts.items():
                if raw not in memo:
                    meanings[raw], memo[raw] = _replace(raw, layout, recoder)
                new = memo[raw]
                special |= new is DROP or new is UNSEEN
                old = meanings[raw]
                recoder.count(old, None if new is UNSEEN else (new if new is DROP else recoder.value(old)), count)
            if special:
                _note_unseen(path, part, memo, meanings, recoder)
            out.write(_splice(part, memo, layout))


def _replace(raw: bytes, layout: Layout, recoder: Recoder) -> tuple[object, object]:
    """(what the field stands for, the bytes of the new field or DROP or UNSEEN)."""
    text = _text(raw, layout)
    meaning = recoder.meaning(text)
    new = recoder.value(meaning)
    if new is DROP or new is UNSEEN:
        return meaning, new
    written = recoder.write_text(new)
    quoted = raw.startswith(b'"') and (layout.quoting or text != decode(raw, layout.options, layout.path))
    if not quoted and type(meaning) is not str:  # white space around a number is not part of it
        written = text[: len(text) - len(text.lstrip())] + written + text[len(text.rstrip()) :] if text.strip() else written
    needed = layout.quoting and (written.startswith('"') or any(mark in written for mark in (layout.delimiter, "\r", "\n")))
    if quoted or needed:
        written = '"' + written.replace('"', '""') + '"'
    return meaning, encode(written, layout.options, layout.path)


def _note_unseen(path: Path, part: Part, memo: dict[bytes, object], meanings: dict[bytes, object], recoder: Recoder) -> None:
    for position, raw in enumerate(part.raws):
        if memo[raw] is UNSEEN:
            recoder.unseen_at(meanings[raw], f"{path} {part.place(position)}")


def _splice(part: Part, memo: dict[bytes, object], layout: Layout) -> bytes:
    pieces: list[bytes] = []
    data, done = part.data, 0
    for start, field, raw in zip(part.starts, part.fields, part.raws, strict=True):
        new = memo[raw]
        if isinstance(new, bytes):
            pieces += (data[done:field], new)
            done = field + len(raw)
        elif new is DROP:
            pieces.append(data[done:start])
            found = layout.record.match(data, start)
            done = found.end() if found else len(data)  # the last record of a file without a line end
    pieces.append(data[done:])
    return b"".join(pieces)
