"""Assertions as device code prints them, in every printed form, and what the catalogue and the wheels say about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from preassert import hazards
from preassert.logs import versions
from preassert.logs.lines import Text
from preassert.logs.patterns import lazy
from preassert.logs.squeeze import Squeezed

Form = Literal["cuda", "rocm", "xpu", "dsa", "verbose", "fragment", "quoted", "host"]
Coordinates = tuple[int, int, int]

_REACH = 1600  # characters (without blanks) that belong to one assertion on either side, full C++ signatures included

_WORD = lazy(r"[Aa]ssertion(?!failure|s(?:[.:,;)\d]|$|were|failed|en|dis|in|are))")
_CUDA_PLACE = lazy(r"block:\[(\d+),(\d+),(\d+)\],?thread:\[(\d+),(\d+),(\d+)\]:?$")
_XPU_PLACE = lazy(r"globalid:\[(\d+),(\d+),(\d+)\],localid:\[(\d+),(\d+),(\d+)\]:?$")
_THREAD_PLACE = lazy(r"thread:\[(\d+),(\d+),(\d+)\]:?$")
_FILE = lazy(
    r"(?<![\w.+\-])([\w.+\-]*\w\.(?:hip\.cpp|cuh|cu|hip|hpp|hh|h|cpp|cc|cxx|c|py|inl|inc|sycl|metal))(?::(\d+)|\((\d+)\)):"
)
_NO_FILE = lazy(r"(<frozen[^<>]{0,80}>|<string>|unknown):(\d+):")
_PATH_CHARS = lazy(r"[\w./\\+~@%=\-]")
_ROOT = lazy(
    r"(?:\.{1,2}/|/(?:pytorch|opt|__w|usr|tmp|home|build|b|root|workspace|work|mnt|data|src|io|var|__t|kaggle"
    r"|paddle)/|[A-Za-z]:[\\/])"
)
# What stands between file and coordinates: a bare name, or a whole C++ signature; never a sentence
_FUNCTION = lazy(r"(?:~?\w+|operator\(\)|lambda[^'\"`]*|[^'\"`]*\w\([^'\"`]*\)[^'\"`.]*)?:*$")
_DEVICE_WORD = lazy(r"[Dd]evice-side$")
_NEARBY = lazy(r"\.cuh?:\d|\.hip:\d|block:\[|thread:\[|\.cuh?$")
_COMMENT = lazy(r"\s*(?://|#|/?\*)")
_EXPRESSION_CUT = lazy(r"block:\[|[Dd]evice-sideassertion|globalid:\[|Traceback\(most|RuntimeError:")
_COMPILED_INDEX = lazy(r"^indexoutofbounds:(?:0<=)?\(?.+<.+")
_COMPILED_BOUND = lazy(r"(?<!\w)0<=tmp\d+<")  # as no person names a variable
_SIGNATURE = lazy(r"\b(\w+)(?:<[^<>]*>)?\((?:[^()]|\([^()]*\))*\)(?:const)?(?:\[with.*\])?$")
_KERNEL_NAME = lazy(r"~?[A-Za-z_]\w*$")
_TORCH_PATH = lazy(
    r"(?:^|[/\\])(?:aten|c10|ATen|THC|THCUNN|torch[/\\](?:csrc|lib)|caffe2|torch-xpu-ops|pytorch)[/\\]|[/\\](?:THC|THCUNN)[/\\]"
)
_OTHER_FRAMEWORK = lazy(r"[/\\](?:paddle|tensorflow|mxnet|oneflow|mindspore|jaxlib|xla|cntk|megengine)[/\\]", re.IGNORECASE)
_INDUCTOR = lazy(r"torchinductor|<frozen|^unknown$|[/\\]c\w{40,}\.py|triton")

# Files of torch that assert about one kind of value only: enough for an expression that is not on record
_FILE_HAZARDS = {
    "ClassNLLCriterion.cu": "target-out-of-range",
    "SpatialClassNLLCriterion.cu": "target-out-of-range",
    "NLLLoss2d.cu": "target-out-of-range",
    "MultiMarginLoss.cu": "target-out-of-range",
    "MultiMarginCriterion.cu": "target-out-of-range",
    "BCECriterion.cu": "probability-outside-unit-interval",
    "LossCTC.cu": "ctc-target-invalid",
    "ScatterGatherKernel.cu": "gather-index-out-of-range",
    "THCTensorScatterGather.cu": "gather-index-out-of-range",
    "MultinomialKernel.cu": "invalid-sampling-distribution",
    "MaxUnpooling.cu": "invalid-pooling-index",
    "EmbeddingBag.cu": "embedding-index-out-of-range",
    "DynamicCast.h": "kernel-internal-assert",
    "TypeCast.h": "kernel-internal-assert",
}


@dataclass(eq=False, repr=False, match_args=False)
class Assertion:
    """One printed assertion. ``first`` and ``last`` are indices of the texts it covers."""

    form: Form
    first: int
    last: int
    expression: str  # without blanks
    complete: bool  # the expression ends where it was printed to end
    path: str | None = None
    file: str | None = None  # base name; ``.hip`` is given as the ``.cu`` it was made from
    line: int | None = None
    kernel: str | None = None
    block: Coordinates | None = None
    thread: Coordinates | None = None
    rank: int | None = None
    count: int = 1


class Meaning(NamedTuple):
    """What an assertion stands for. ``hazard`` is None where it is not on record and nothing follows from its file."""

    hazard: str | None
    entries: tuple[dict[str, Any], ...]  # records of the catalogue that it can be
    expression: str  # as the source writes it
    exact: bool  # expression and file are on record


# ---------------------------------------------------------------------------------------------------------------- reading


def find(texts: Sequence[Text]) -> list[Assertion]:
    """Every assertion in consecutive texts, in the order of printing."""
    squeezed = Squeezed(texts)
    found: list[Assertion] = []
    edge = 0  # nothing before this position belongs to the next assertion
    for match in _WORD.finditer(squeezed.text):
        if match.start() < edge:
            continue
        assertion, edge = _read(squeezed, texts, match, edge)
        if assertion is not None:
            found.append(assertion)
    found.extend(_dsa(texts))
    found.sort(key=lambda assertion: assertion.first)
    return _without_doubles(found)


def _read(squeezed: Squeezed, texts: Sequence[Text], word: re.Match[str], edge: int) -> tuple[Assertion | None, int]:
    text = squeezed.text
    left = text[max(edge, word.start() - _REACH) : word.start()]
    base = word.start() - len(left)
    expression, end, complete, verbose = _expression(squeezed, word)
    place = _CUDA_PLACE.search(left[-140:])
    form: Form
    block: Coordinates | None
    thread: Coordinates | None
    if place:
        form = "verbose" if verbose else "cuda"
        block, thread = _coordinates(place)
        head = left[: len(left) - len(place.group())]
    elif place := _XPU_PLACE.search(left[-140:]):
        form = "xpu"
        block, thread = _coordinates(place)
        head = left[: len(left) - len(place.group())].removesuffix("AssertHandler::printMessage")
    elif (place := _DEVICE_WORD.search(left)) and (complete or text[word.end() : word.end() + 1] in "`'‘"):
        form = "rocm"
        block = thread = None
        head = left[: place.start()]
    else:
        return _fragment_or_host(squeezed, texts, word, left, base, expression, end, complete, verbose)
    assertion = Assertion(form, 0, squeezed.at(max(end - 1, 0)), expression, complete, block=block, thread=thread)
    start = _origin(assertion, squeezed, head, base)
    assertion.first = squeezed.at(start)
    assertion.rank = _rank(texts, assertion)
    return assertion, end


def _coordinates(place: re.Match[str]) -> tuple[Coordinates, Coordinates]:
    x, y, z, i, j, k = (int(group[:9]) for group in place.groups())
    return (x, y, z), (i, j, k)


def _expression(squeezed: Squeezed, word: re.Match[str]) -> tuple[str, int, bool, bool]:
    """(expression, end, complete, verbose form?) of what follows the word ``Assertion``."""
    start = word.end()
    text = squeezed.text[start : start + _REACH]
    verbose = text.startswith("failed:")
    skip = len("failed:") if verbose else 0
    if text[skip : skip + 1] == ":":
        skip += 1
    body = text[skip:]
    if verbose:
        close = body.find("`:", 1) if body[:1] == "`" else -1
        stop = close + 1 if close > 0 else _line_end(squeezed, start) - start - skip
        return _unquoted(body[:stop]), start + skip + stop, close > 0, True
    end = body.find("failed")
    cut = _EXPRESSION_CUT.search(body)
    # Cut off: what is left of it stands on this line
    stop = max(_line_end(squeezed, start) - start - skip, 0)
    if end >= 0 and (cut is None or cut.start() > end) and not (end > stop and _breaks_off(body[:end], body[:stop])):
        return _unquoted(body[:end]), start + skip + end + len("failed"), True, False
    return _unquoted(body[:stop], whole=False), start + skip + stop, False, False


def _breaks_off(whole: str, own: str) -> bool:
    """Is the expression cut at the end of its line, and the word ``failed`` further down of something else?"""
    return not _is_on_record(_unquoted(whole), True) and _is_on_record(_unquoted(own, whole=False), False)


def _line_end(squeezed: Squeezed, position: int) -> int:
    return squeezed.ends(squeezed.at(position)) if position < len(squeezed.text) else len(squeezed.text)


def _unquoted(text: str, whole: bool = True) -> str:
    text = text.replace("“", '"').replace("”", '"')
    if text[:1] in ("`", "'", "‘", "’", "´"):
        text = text[1:]
    elif whole and text[:1] == '"' == text[-1:] and text.count('"') == 2:
        return text[1:-1]
    if whole and text[-1:] in ("`", "'", "’", "‘", "´"):
        text = text[:-1]
    return text


def _origin(assertion: Assertion, squeezed: Squeezed, head: str, base: int) -> int:
    """Fill in path, file, line and kernel from what stands before the coordinates; gives the position where it begins."""
    end = base + len(head)
    own_line = max(squeezed.begins(squeezed.at(end)), base)
    own, offset = head[own_line - base :], own_line
    match = _last_file(own)
    if match is None:
        # a line may break between file and coordinates: then nothing but the function stands between them
        match, offset = _last_file(head), base
        if match is not None:
            first = squeezed.at(base + match.start())
            words = squeezed.last_words(first, ":")  # no blank in the name of a function, many in its signature
            if (
                not _FUNCTION.match(head, match.end())
                or not squeezed.is_wrapped(first, squeezed.at(end))
                or (" " in words and "(" not in head[match.end() :])
            ):
                match = None
    if match is None:
        name = _trailing_kernel(own)
        if not own and head.endswith(":") and squeezed.is_wrapped(squeezed.at(end - 1), squeezed.at(end)):
            above = _trailing_kernel(head)
            if above in _kernels():  # the function ends the line above
                name, own_line = above, squeezed.begins(squeezed.at(end - 1))
        assertion.kernel = name
        found = head.rfind(name) if name else -1
        return base + found if found >= 0 else max(own_line, base)
    file, number = match.group(1), next(group for group in match.groups()[1:] if group)
    kernel = match.string[match.end() :].rstrip(":")
    assertion.line = int(number[:9])
    assertion.kernel = kernel or None
    start = offset + match.start()
    if file.startswith("<") or file == "unknown":
        assertion.path = assertion.file = file
        return start
    start = _path_start(squeezed, start, base)
    assertion.path = squeezed.text[start : offset + match.end(1)]
    name = re.split(r"[/\\]", assertion.path)[-1] or file
    assertion.file = name.removesuffix(".hip") + ".cu" if name.endswith(".hip") else name
    return start


def _last_file(head: str) -> re.Match[str] | None:
    last = None
    for pattern in (_FILE, _NO_FILE):
        for match in pattern.finditer(head):
            if last is None or match.start() > last.start():
                last = match
    # A C++ signature is long, but it holds no sentence
    if last is not None and re.search(r"failed|Error|Traceback|step|loss=|it/s", head[last.end() :]):
        return None
    return last


def _path_start(squeezed: Squeezed, position: int, base: int) -> int:
    """Walk left over the characters of a path, into the line above only where the path is visibly continued from there."""
    text = squeezed.text
    index = squeezed.at(position)
    while position > base:
        here = squeezed.begins(index)
        while position > max(here, base) and (
            _PATH_CHARS.match(text, position - 1) or (text[position - 1] == ":" and _is_drive(text, position - 1, here))
        ):
            position -= 1
        if position > max(here, base) or position <= base or index == 0:
            return position
        if _ROOT.match(text, position) or not _continues(squeezed, index - 1, text[position : position + 200]):
            return position
        index -= 1
    return position


def _continues(squeezed: Squeezed, index: int, below: str) -> bool:
    """Does the text at ``index`` end in the middle of a path that goes on with ``below``?"""
    word = squeezed.last_word(index)
    slashes = {mark for mark in "/\\" if mark in below.split(":")[0]}
    if not squeezed.is_wrapped(index, index + 1) or not slashes <= set(word):
        return False
    if re.search(r"(?:^|[\]>|'\"`}])(?:\.{0,2}/|[A-Za-z]:[\\/])[\w./\\+~@%=\-]*$", word):
        return True
    return bool(re.fullmatch(r"[\w./\\+~@%=\-]{20,}", word) and re.search(r"[/\\]", word))


def _is_drive(text: str, colon: int, line_start: int) -> bool:
    return colon > line_start and text[colon - 1].isalpha() and text[colon + 1 : colon + 2] in ("/", "\\")


def _trailing_kernel(head: str) -> str | None:
    """The kernel before the coordinates of a line that lost its file."""
    head = head.rstrip(":")
    for mark in ("lambda[](int)->auto::operator()(int)->auto", "lambda->auto::operator()(int)->auto", "operator()"):
        if head.endswith(mark):
            return mark
    match = _KERNEL_NAME.search(head)
    if match:
        return match.group()
    match = _SIGNATURE.search(head[-_REACH:])
    return match.group(1) if match else None


def _rank(texts: Sequence[Text], assertion: Assertion) -> int | None:
    for index in range(assertion.first, assertion.last + 1):
        if texts[index].rank is not None:
            return texts[index].rank
    return None


def _fragment_or_host(
    squeezed: Squeezed,
    texts: Sequence[Text],
    word: re.Match[str],
    left: str,
    base: int,
    expression: str,
    end: int,
    complete: bool,
    verbose: bool,
) -> tuple[Assertion | None, int]:
    """An assertion without whole coordinates: a piece of a device assertion, or one of the C library."""
    thread = _THREAD_PLACE.search(left[-60:])
    quoted = squeezed.text[word.end() : word.end() + 2].lstrip(":")[:1] in ("`", "'", "‘", "´", "’", '"') or verbose
    index = squeezed.at(word.start())
    near = squeezed.text[max(word.start() - 400, 0) : word.start()]
    known = _is_on_record(expression, complete)
    if thread or (known and not _COMMENT.match(texts[index].text) and (_NEARBY.search(near) or left.endswith("]"))):
        assertion = Assertion("fragment", index, squeezed.at(max(end - 1, 0)), expression, complete)
        if thread:
            assertion.thread = tuple(int(group[:9]) for group in thread.groups())  # type: ignore[assignment]
        named = re.findall(r"([\w\-]+\.(?:cuh?|hip))\b", near)
        if named:
            assertion.path = assertion.file = named[-1].replace(".hip", ".cu")
        assertion.rank = _rank(texts, assertion)
        return assertion, end
    comment = _COMMENT.match(texts[index].text)
    if known and complete and not comment and (len(expression) >= 18 or _COMPILED_INDEX.match(expression)):
        # nothing but the expression: believed beside a failure, or where it begins its line
        form: Form = "fragment" if texts[index].text.lstrip().startswith("Assertion") else "quoted"
        return Assertion(form, index, squeezed.at(max(end - 1, 0)), expression, complete, rank=texts[index].rank), end
    if complete and quoted:
        own = max(squeezed.begins(index) - base, 0)
        assertion = Assertion("host", index, index, expression, True)
        assertion.path = left[own:] or None
        return assertion, end
    return None, word.end()


_DSA_FIELDS = (
    ("expression", lazy(r"GPU assertion failure message =\s?(.*)")),
    ("place", lazy(r"File containing assertion = (.+):(\d+)\s*$")),
    ("kernel", lazy(r"Device function containing assertion = (\S+)")),
    ("thread", lazy(r"Thread ID that failed assertion = \[(\d+), ?(\d+), ?(\d+)\]")),
    ("block", lazy(r"Block ID that failed assertion = \[(\d+), ?(\d+), ?(\d+)\]")),
)


def _dsa(texts: Sequence[Text]) -> Iterator[Assertion]:
    """The blocks that a build with TORCH_USE_CUDA_DSA puts into the exception text."""
    current: Assertion | None = None
    for index, text in enumerate(texts):
        if "ssertion" not in text.text or (current is None and "GPU assertion failure message" not in text.text):
            continue
        for name, pattern in _DSA_FIELDS:
            match = pattern.search(text.text)
            if match is None:
                continue
            if name == "expression":
                if current is not None:
                    yield current
                message = "".join(match.group(1).split())
                current = Assertion("dsa", index, index, message, True, rank=text.rank)
            elif current is not None:
                current.last = index
                if name == "place":
                    current.path, current.line = match.group(1), int(match.group(2)[:9])
                    current.file = re.split(r"[/\\]", match.group(1))[-1]
                elif name == "kernel":
                    current.kernel = match.group(1)
                else:
                    setattr(current, name, tuple(int(group[:9]) for group in match.groups()))
    if current is not None:
        yield current


def _without_doubles(found: list[Assertion]) -> list[Assertion]:
    """Drop the `[CUDA_KERNEL_ASSERT]` line that announces an ordinary one, and pieces that a whole assertion covers."""
    ordinary = {(each.file, each.line, each.block, each.thread) for each in found if each.form == "cuda"}
    return [
        each for each in found if not (each.form == "verbose" and (each.file, each.line, each.block, each.thread) in ordinary)
    ]


# ---------------------------------------------------------------------------------------------------------------- meaning


def squeeze(expression: str) -> str:
    return "".join(expression.split())


def bare(expression: str) -> str:
    """Letters and digits only: equal for an expression that lost quotes, stars or angle brackets on its way."""
    return re.sub(r"\W+", "", expression)


@lru_cache(maxsize=1)
def _index() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Expression without blanks -> (slug, record)."""
    exact: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for slug, entry in hazards.raw().items():
        for record in entry["printed"]:
            key = squeeze(record["expression"].replace("\\n", "").replace("\n", ""))
            if key.startswith("<any") or "tmpN" in key:
                continue
            exact.setdefault(key, []).append((slug, record))
    return exact


@lru_cache(maxsize=1)
def _by_bare() -> dict[str, set[str]]:
    """Bare expression -> expressions without blanks; needed only for texts that lost characters."""
    table: dict[str, set[str]] = {}
    for key in _index():
        table.setdefault(bare(key), set()).add(key)
    return table


@lru_cache(maxsize=1)
def _kernels() -> frozenset[str]:
    """The kernels that the catalogue knows by name."""
    return frozenset(name for entry in hazards.raw().values() for record in entry["printed"] for name in record["kernels"])


@lru_cache(maxsize=1)
def record_files() -> frozenset[str]:
    """Base names of the source files that the catalogue knows."""
    return frozenset(record["file"] for entry in hazards.raw().values() for record in entry["printed"])


def _is_on_record(expression: str, complete: bool) -> bool:
    exact = _index()
    if len(expression) < 9:
        return False
    if _COMPILED_INDEX.match(expression):
        return True
    if expression in exact or bare(expression) in _by_bare() or _spliced(expression) is not None:
        return True
    return not complete and len(expression) >= 12 and any(key.startswith(expression) for key in exact)


def _spliced(expression: str) -> str | None:
    """The expression on record that begins a longer text: another process printed into the same line."""
    exact = _index()
    return max((key for key in exact if len(key) >= 20 and expression.startswith(key)), key=len, default=None)


_LONGEST_INTERRUPTION = 200


def _interrupted(expression: str) -> str | None:
    """The expression on record into which something was printed (the prefix of a wrapped line, another process); else None."""
    found = []
    for key in _index():
        extra = len(expression) - len(key)
        if len(key) >= 14 and 0 < extra <= _LONGEST_INTERRUPTION and expression[0] == key[0]:
            begin = next(at for at, (one, other) in enumerate(zip_longest(key, expression)) if one != other)
            if expression.endswith(key[begin:]):
                found.append(key)
    longest = max(map(len, found), default=0)
    return next((key for key in found if len(key) == longest), None)


@lru_cache(maxsize=4096)
def meaning(form: str, file: str | None, path: str | None, kernel: str | None, expression: str, complete: bool) -> Meaning:
    """Hazard and catalogue records of an assertion (the fields of :class:`Assertion` that decide it)."""
    exact = _index()
    expression = expression.replace("\\n", "")
    bounded = _COMPILED_INDEX.match(expression) or _COMPILED_BOUND.search(expression)
    compiled = bounded and not (file or "").endswith((".cu", ".cuh"))
    if compiled or (not complete and expression.startswith("indexoutofbounds:0<=tmp")):
        records = hazards.raw()["compiled-index-out-of-range"]["printed"]
        return Meaning("compiled-index-out-of-range", tuple(records[:1]), _spaced(expression), True)
    keys = (
        {expression} if expression in exact else set(_by_bare().get(bare(expression), ()) if len(bare(expression)) >= 6 else ())
    )
    if not complete and not keys:
        return _meaning_of_cut(file, expression)
    if not keys and (file is None or file in record_files() or (path is not None and _TORCH_PATH.search(path))):
        whole = _interrupted(expression) or (_spliced(expression) if form == "fragment" else None)
        keys = {whole} if whole else set()
    candidates = [pair for key in keys for pair in exact[key]]
    chosen = _choose(candidates, file, path, kernel)
    if chosen:
        slugs = {slug for slug, _ in chosen}
        if len(slugs) == 1:
            slug = slugs.pop()
            same_file = any(_same_file(record["file"], file) for _, record in chosen)
            return Meaning(slug, tuple(record for _, record in chosen), chosen[0][1]["expression"], same_file)
    return Meaning(_by_file(form, file, path, expression), (), _spaced(expression), False)


def _meaning_of_cut(file: str | None, expression: str) -> Meaning:
    """An expression that was cut off: everything on record that goes on like it must be one hazard."""
    exact = _index()
    longer = [pair for key, pairs in exact.items() if key.startswith(expression) for pair in pairs]
    here = [pair for pair in longer if _same_file(pair[1]["file"], file)]
    chosen = here or (longer if len(expression) >= 9 and file not in record_files() else [])
    if len({slug for slug, _ in chosen}) == 1:
        return Meaning(chosen[0][0], tuple(record for _, record in chosen), chosen[0][1]["expression"], bool(here))
    return Meaning(None, (), _spaced(expression), False)


def _choose(
    candidates: list[tuple[str, dict[str, Any]]], file: str | None, path: str | None, kernel: str | None
) -> list[tuple[str, dict[str, Any]]]:
    named = [pair for pair in candidates if _has_kernel(pair[1], kernel)]
    if file is not None:
        here = [pair for pair in candidates if _same_file(pair[1]["file"], file)]
        if here:
            return [pair for pair in here if pair in named] or here
        if named and kernel not in ("operator()", "unknown"):
            return named
        if path is not None and _OTHER_FRAMEWORK.search(path):
            return []
        # The same text from a file that is not on record: a moved file of torch, or somebody's copy of the check
        return [pair for pair in candidates if len(squeeze(pair[1]["expression"])) >= 14]
    if named and kernel not in ("operator()", "unknown"):
        return named
    return [pair for pair in candidates if len(squeeze(pair[1]["expression"])) >= 9 and not _has_any_name(pair[1], kernel)]


def _has_any_name(record: dict[str, Any], kernel: str | None) -> bool:
    """The line names a kernel, and the record is about other, named kernels only."""
    if kernel is None or not kernel[:1].isalpha():
        return False
    return (
        False
        if "operator()" in kernel or "lambda" in kernel
        else not _has_kernel(record, kernel) and len(record["expression"]) < 16
    )


def _same_file(recorded: str, file: str | None) -> bool:
    return file is not None and (recorded == file or (recorded.startswith(("gen_", "c<")) and _like(recorded, file)))


def _like(pattern: str, name: str) -> bool:
    import fnmatch

    pattern = pattern.split(" ")[0]
    return fnmatch.fnmatchcase(name, pattern.replace("c<hash>", "c*"))


def _has_kernel(record: dict[str, Any], kernel: str | None) -> bool:
    if kernel is None:
        return False
    bare_name = kernel_name(kernel)
    return any(bare_name == name or (bare_name.endswith(name) and len(name) > 12) for name in record["kernels"])


@lru_cache(maxsize=1024)
def kernel_name(kernel: str) -> str:
    """The function of a full C++ signature: ``voidf(T*,int)[withT=float]`` gives ``f``."""
    kernel = kernel.split("[with")[0]
    if "operator()" in kernel:
        return "operator()"
    head = kernel.split("(")[0].split("<")[0]
    if head.startswith("lambda") or kernel.startswith("lambda"):
        return "operator()"
    head = head.split("::")[-1]
    return re.sub(r"^(?:staticvoid|void|inline|__global__void)(?=\w)", "", head)


def _by_file(form: str, file: str | None, path: str | None, expression: str) -> str | None:
    """The hazard of an expression that is not on record, where the file says enough; None where it does not."""
    text = expression.lower()
    if path is not None and _OTHER_FRAMEWORK.search(path):
        return None
    if file is not None and _INDUCTOR.search(path or file):
        return "user-device-assert"
    if file == "TensorCompare.cu":
        return "user-device-assert"
    if file in _FILE_HAZARDS:
        return _FILE_HAZARDS[file]
    torch_file = (file in record_files()) or bool(path and _TORCH_PATH.search(path))
    if torch_file:
        if "n_classes" in text or "num_classes" in text:
            return "target-out-of-range"
        if "indexoutofbounds" in text or "indexoutofrange" in text:
            return "index-out-of-range"
        return None
    if file is not None and form in ("cuda", "rocm", "xpu", "dsa", "verbose"):
        return "user-device-assert"
    if file is None and form == "cuda" and expression and not _holds_words_of_torch(expression):
        return "user-device-assert"
    return None


def _holds_words_of_torch(expression: str) -> bool:
    """Are the names of an expression on record all in this one? Without its file, it may be that one, damaged."""
    return any(words and all(word in expression for word in words) for words in _names_on_record())


@lru_cache(maxsize=1)
def _names_on_record() -> tuple[tuple[str, ...], ...]:
    return tuple({tuple(re.findall(r"[A-Za-z_]\w{6,}", key)) for key in _index()})


def _spaced(expression: str) -> str:
    """An expression with blanks around its operators again, for people."""
    text = re.sub(r"(?<![<>=!\-])(<=|>=|==|!=|&&|\|\||<|>)(?![=>])", r" \1 ", expression)
    text = text.replace("indexoutofbounds", "index out of bounds").replace(":0 <=", ": 0 <=")
    return re.sub(r"(?<=\w)\+(?=\w)", " + ", text).strip()


def printed_by(assertion: Assertion, records: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Releases of torch whose wheels print this file, line and expression; empty where they are not on record."""
    if assertion.file is None or assertion.line is None or not records:
        return ()
    return versions.releases(assertion.file, assertion.line, {squeeze(record["expression"]) for record in records})


def kernels_of(assertion: Assertion, records: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The kernels that print it: as printed, else (Windows) from file and line, else those of the catalogue."""
    if assertion.kernel and kernel_name(assertion.kernel) != "operator()":
        return (kernel_name(assertion.kernel),)
    if assertion.file is not None and assertion.line is not None and records:
        known = versions.kernels(assertion.file, assertion.line, {squeeze(record["expression"]) for record in records})
        if known:
            return known
    return tuple(dict.fromkeys(name for record in records for name in record["kernels"]))
