"""What else says that something failed: exceptions, status codes, driver messages. One pass over the texts, no verdict yet.

The words of an error are not an error: the same sentence stands in documentation, commit messages, tests and source code.
What decides is where in its line the sentence stands and what follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from preassert import hazards
from preassert.logs.lines import Text
from preassert.logs.patterns import lazy
from preassert.logs.squeeze import WRAPPED_CHARS

Kind = Literal["device", "host", "foreign"]

UNLOCATED = "device-assert-unlocated"

_INTERESTING = (
    "rror",
    "ssert",
    "xception",
    "STATUS_",
    "Status",
    "Xid",
    "atchdog",
    "emory",
    "fault",
    "FAIL",
    "failed",
    "Killed",
    "SIGKILL",
    "SIGSEGV",
    "dumped",
    "terminate",
    "panic",
    "fallen off",
    "GPU is lost",
    "out of bounds",
    "out of range",
    "not compatible",
    "too old",
    "Out of bounds",
    "NCCL",
    "nccl",
    "ECC",
    "gloo",
    "status=1",
    "exit code",
    "exitcode",
    "exited with",
    "is out ",
    "nvalid ",
    "Violation",
    "For debugging",
    "CRITICAL",
    "FATAL",
    "Traceback",
    "nsupported",
    "outside the valid range",
)

# Words of the catalogue's device hazards: the GPU (its runtime, its driver) reports them; all others are raised on the host
_DEVICE_SLUGS = (
    UNLOCATED, "illegal-memory-access", "out-of-memory", "blas-or-dnn-failure", "communication-failure",
    "unsupported-device-code", "hardware-fault",
)  # fmt: skip

_NOT_TORCH = lazy(
    r"for axis \d|positional indexer|(?:list|tuple|string|range object|pop) index out of range|tensorflow"
    r"|jaxlib|\bpaddle\b|keras|mxnet",
    re.IGNORECASE,
)

# Where a failure stands in its line
_CLASS = lazy(
    r"(?:^|[\s\]>│|.;'\"({=:/s%])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Fault|Interrupt|WouldBlock"
    r"|NotFound))\b(?:\[[^\]]{0,40}\])?\(?['\"]?: ?"
)
_LABEL = lazy(
    r"(?:[Ee]rror|ERROR|[Ff]ail(?:ed|ure)?|FAIL(?:ED|URE)?|[Cc]aught|[Ee]xception|EXCEPTION|what\(\)|[Rr]eason"
    r"|[Dd]etails?|[Mm]essage|[Ee]rrors|[Cc]rash(?:ed)?"
    r"|[Aa]bort(?:ed|ing)?|[Rr]aised|[Ss]tatus|[Ff]atal|FATAL|[Cc]ause|[Pp]roblem|hit an exception"
    r"|[Tt]raceback|[Ss]ynchronize|[Ss]ynchronise|error=\d+|kernel|NVRM|\)|line=\d+|(?:GPU)?[Aa]ssert(?:ion)?"
    r"|[Ww]arning)"
    r"(?: (?:in|at|on|for|during|while|with) [^:]{1,80})?['\"]?\s{0,4}[:=>\-]{1,3}\s{0,4}[\[(]?['\"(]{0,2}$"
)
_DEVICE_LABEL = lazy(
    r"(?:(?:CUDA|HIP|XPU|MPS|Triton|cuda|hip)(?: runtime| driver| kernel)? ?(?:[Ee]rror|[Ff]ailure"
    r"|ERROR)?(?: ?[\[(]?[\w ]{0,12}[\])]|(?: \d{1,3}))?(?: in [^:]{0,80})? ?[:=]?\s?['\"]?"
    r"|Triton Error \[\w+\]: |Cuda failure (?:\d+ )?['\"]|error=\d+ : |error \(\d+\) ?: ?"
    r"|\w+ failed to synchronize: |cuda\w+: |failed with )$"
)
_REPORTED = lazy(r"failed to synchronize: |Cuda failure (?:\d+ )?['\"]|error=\d+ : |cuda runtime error \(\d+\) ?: ?|failed with ")
_SOME_LABEL = lazy(r"\w+ ?: ?$")
_AFTER = lazy(
    r"^[^\S\n]*(?:$|[.,;'\"`)\]}\\!*]|at [/\w.\\:\[]|\(|CUDA kernel|Compile with|Search for|For debugging"
    r"|Exception raised|-?\d|when calling|on device|\[|Device-side"
    r"|[A-Z][a-z]+ |to |of |,|:|from |/|\|)"
)
_PROSE_AFTER = lazy(
    r"^[^\S\n]*(?:when(?! calling)|if|while|because|errors?|messages?|issues?|bug|in (?!/)|is|are|was|were|and"
    r"|or|on (?!device)|for|with(?! excep)|after|before|during|caused|appears?|has|have|should|can|could|may"
    r"|might|does|page|will|by)\b|^[\"'`”’]\s+(?![\w.]+=)[a-z]"
)
_LISTED_AFTER = lazy(r"[.\s]*\(?#\d|\t")  # the title of an issue or a pull request
# ... of a commit, or a row of a table
_LISTED_BEFORE = lazy(
    r"^\s*\"?\d{1,7}\"?[,;]|(?:^|\s)(?:fix|feat|docs?|tests?|chore|refactor|perf|ci|build|style)(?:\([^)]{1,40}\))?!?: .{0,60}$"
)
_MENTION = lazy(
    r"^\s*(?:[0-9a-f]{7,40}\s|[*+\-•#]{1,4}\s|//|/\*|\"\"\"|commit\b|Author:|Date:|Subject:|Merge\b"
    r"|Fix(?:e[sd])?\b|[Cc]loses\b|[Ss]ee\b|Q:|A:|\w+\(?.{0,40}\bdocs?\b|reading sources|writing output|title:"
    r"|TODO\b|NOTE\b)"
)
_TEST_STATUS = lazy(
    r"\b(?:PASSED|SKIPPED|XFAIL|XPASS|DESELECTED)\b|\.\.\. ?(?:ok|skipped|expected failure)|^\s*(?:ok"
    r"|not ok) \d+ |::test_\w+|^test_\w+ "
)
_CODE = lazy(
    r"^\s*(?:\d+[:\-|]\s*)?(?:(?:\S+\.(?:py|cu|cuh|cpp|md|rst|h|txt):\d+[:\-]).*|\+ |- |@@|raise\b|if\b|elif\b"
    r"|except\b|with\b|return\b|def\b|print\(|assert\b|logger?\.|logging\.|E?\s*match=|self\.assert"
    r"|pytest\.raises|"
    r"(?!details |debug_error_string )\w+ ?= ?[rfub]{0,2}['\"]|#|//|TORCH_CHECK|CUDA_KERNEL_ASSERT|std::|AT_ERROR)"
)
_PYTEST_ERROR = lazy(r"^E {2,}")
LITERAL_REACH = 40  # lines of source code around a string
_LITERAL = lazy(r"""\s*[rbfu]{0,2}(?:\"{3}|'{3}|(["']).*\1,$)""")
_SOURCE_LINE = lazy(
    r"\s*(?:import \w+(?:\.\w+)*(?: as \w+)?$|from [\w.]+ import \w|(?:async )?def \w+\(.*:$|class \w+.*:$|#include [<\"]"
    r"|\w+ = [\[({]$|if __name__ == )"
)
_REPORTING = frozenset(
    ("exception", "error", "failed", "failure", "caught", "with", "raised", "got", "by", "reason", "message", "hit")
)
_USUAL = frozenset(f"{name}: CUDA error: device-side assert triggered" for name in ("RuntimeError", "torch.AcceleratorError"))
_HINT_STARTS = (
    "CUDA kernel errors might be asynchronously",
    "For debugging consider passing",
    "Compile with `TORCH_USE_CUDA_DSA`",
)
_PLAIN_EXCEPTIONS = ("RuntimeError: CUDA error: ", "torch.AcceleratorError: CUDA error: ", "CUDA error: ")
HINT = lazy(
    r"CUDA kernel errors might be asynchronously|HIP kernel errors might be asynchronously"
    r"|For debugging consider passing (?:CUDA|AMD)|TORCH_USE_(?:CUDA|HIP)_DSA"
    r"|Device-side assertions were explicitly omitted|Search for `cuda|XPU kernel errors"
    r"|Compile with .?TORCH_USE_(?:CUDA|HIP)_DSA.? to enable device-side"
)

# Failures that are none of ours, only told to say "unknown" and not "clean"
_FOREIGN: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        lazy(
            r"CUDA error: (?!none\b|no\b|null\b|0\b|false\b)|CUDA error \(?[1-9]\d{0,2}\b|cuda runtime error"
            r"|HIP error: |CUDA driver error|CUDA initialization: |Torch not compiled with CUDA enabled|CUDA_ERROR_\w+"
            r"|^Error .{3,120} at line \d+ in file \S+\.cu\b|\[ONNXRuntimeError\]"
        ),
        "cuda",
    ),
    (
        lazy(
            r"^[\s'\"]*(?:E {2,})?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|WouldBlock"
            r"|Warning|NotFound|Timeout)|(?:[a-z_]\w*\.)+(?:errors?|exc|exceptions?)\.[A-Z]\w+)(?:$|:(?:\s|$))"
        ),
        "exception",
    ),
    (
        lazy(
            r"\.(?:cuh?|cc|cpp|c|h):\d+:? Assertion .{3,300} failed|(?:^"
            r"|\s)Assertion [`'‘\"].{1,400}['`’\"] failed|Assertion failed: |\[GPU ASSERT FAILED\]|GPUassert: "
            r"|Received a label value of -?\d+ which is outside the valid range"
            r"|failed assertion [`'‘\"]|[Cc]heck failed: |CUDA_CHECK failed"
        ),
        "assertion",
    ),
    (
        lazy(
            r"\bcore dumped\b|^Segmentation fault|^Aborted\b|^Bus error|Fatal Python error|terminate called"
            r"|\*\*\* (?:stack smashing|Error in|SIG)"
        ),
        "crash",
    ),
    (
        lazy(
            r"^(?:\S+: )?(?:line \d+: +\d+ )?Killed(?:$|:| +(?:python|\S+\.(?:py|sh)))"
            r"|[Oo]ut of memory: Kill(?:ed)? process|oom-kill"
            r"|exitcode[: ]+-9\b|SIGKILL|exit code 137|\bOOM ?Killed\b|[1-9]\d* oom_kill event"
            r"|^srun: error: .{0,80}: Out Of Memory$"
        ),
        "killed",
    ),
    (
        lazy(
            r"can't allocate memory|Cannot allocate memory|std::bad_alloc"
            r"|not enough memory: you tried to allocate|Unable to allocate \d"
        ),
        "host memory",
    ),
    (
        lazy(
            r"\S:\d+(?::\d+)?: (?:fatal )?error: |\(\d+\): error|^ninja: build stopped"
            r"|\bcompilation terminated|^make(?:\[\d+\])?: \*\*\*|^ld: |collect2: error|nvcc fatal"
            r"|FAILED: \S+\.(?:o|so)"
        ),
        "build",
    ),
    (
        lazy(
            r"^(?:=+ )?(?:FAILED|ERROR) \S+::|\b[1-9]\d* (?:failed|errors?)(?:, \d+ \w+)* in \d|^FAILED \(|^F{1,9}\b.*\[ *\d+%\]"
        ),
        "tests",
    ),
    (
        lazy(
            r"(?:exit(?:ed with)? (?:code|status)|exitcode|return code|returned non-zero exit status|code=exited, status"
            r"|exit_code)[ :=(\"']*(?!0\b)-?\d{1,3}\b(?!\d)"
        ),
        "exit",
    ),
    (lazy(r"Traceback \(most recent call last\)"), "traceback"),
    (lazy(r"^FATAL\b|^panic: |^thread '.*' panicked|^fatal: |^Fatal |FATAL ERROR|^Exception in thread "), "crash"),
)
_FOREIGN_LEVELS = ("ERROR", "CRITICAL", "FATAL", "SEVERE")
_HARMLESS_CLASS = lazy(r"Warning$|^(?:No|Zero)$")


@dataclass(eq=False, repr=False, match_args=False)
class Failure:
    """One text that says something failed. ``hazard`` is None for failures outside the catalogue."""

    index: int  # of the text
    kind: Kind
    hazard: str | None
    strong: bool
    text: str
    pattern: str = ""
    operators: tuple[str, ...] = ()
    argument: str | None = None
    what: str = ""  # foreign: its kind in a word
    rank: int | None = None


class _Rule(NamedTuple):
    slug: str
    kind: Kind
    pattern: str
    literals: tuple[str, ...]  # one of them must occur; empty if none can be told
    operators: tuple[str, ...]
    argument: str | None


def required_literals(pattern: str) -> tuple[str, ...]:
    """Texts of which one occurs in whatever ``pattern`` matches: the longest plain run of each alternative; else ()."""
    found = []
    for alternative in _alternatives(pattern):
        plain = re.sub(
            r"\((?:\?[:=!<]*)?(?:[^()]|\([^()]*\))*\)[?*+]?(?:\{[^}]*\})?|\[(?:\\.|[^\]\\])*\][?*+]?(?:\{[^}]*\})?",
            "\0",
            alternative,
        )
        plain = re.sub(r"\\[dwsDWSbB][?*+]?(?:\{[^}]*\})?|\.[*+?](?:\{[^}]*\})?|\.\{[^}]*\}|.[?*](?![^\\])|[\^$]", "\0", plain)
        plain = re.sub(r".[?*]|(?<!\\)\.", "\0", plain)
        plain = re.sub(r"\\(.)", r"\1", plain)
        runs = [run for run in plain.replace("+", "\0").split("\0") if len(run) >= 3]
        if not runs:
            return ()
        found.append(max(runs, key=len))
    return tuple(found)


def _alternatives(pattern: str) -> list[str]:
    parts, depth, start, index = [], 0, 0, 0
    in_class = False
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            index += 1
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "|" and depth == 0:
            parts.append(pattern[start:index])
            start = index + 1
        index += 1
    return [*parts, pattern[start:]]


@lru_cache(maxsize=1)
def _rules() -> tuple[_Rule, ...]:
    rules = []
    # A device-side assert first: another failure in the same line follows from it
    for slug in sorted(hazards.raw(), key=lambda slug: slug != UNLOCATED):
        kind: Kind = "device" if slug in _DEVICE_SLUGS else "host"
        for record in hazards.raw()[slug]["host"]:
            pattern = record["pattern"]
            rules.append(_Rule(slug, kind, pattern, required_literals(pattern), tuple(record["operators"]), record["argument"]))
    return tuple(rules)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def find(texts: Sequence[Text]) -> list[Failure]:
    """The failures of the catalogue in consecutive texts, in the order of printing."""
    found = []
    for index, text in enumerate(texts):
        if _is_interesting(text.text):
            failed = list(_known(text, index))
            if failed and not _is_literal_of_source(texts, index):
                found.extend(failed)
    return found


def _is_literal_of_source(texts: Sequence[Text], index: int) -> bool:
    """A docstring, or a string in a list, among lines of source code."""
    if not _LITERAL.match(texts[index].text):
        return False
    near = texts[max(index - LITERAL_REACH, 0) : index + LITERAL_REACH]
    return any(_SOURCE_LINE.match(text.text) for text in near)


def _is_interesting(text: str) -> bool:
    return any(word in text for word in _INTERESTING)


def find_wrapped(texts: Sequence[Text]) -> list[Failure]:
    """The failures whose words a line break cut in two; for texts in which nothing else was found."""
    found = []
    for index, (text, below) in enumerate(pairwise(texts)):
        if len(text.shown) < WRAPPED_CHARS or text.cell != below.cell or not below.text:
            continue
        for joint in ("", " "):
            joined = text.text + joint + below.text
            for failure in _known(text._replace(text=joined), index, len(text.text)):
                found.append(failure)
    return found


def find_foreign(texts: Sequence[Text]) -> list[Failure]:
    """The failures outside the catalogue: they tell a text that failed from one that did not."""
    found = []
    # Some collectors call every line of stderr an ERROR; a level says something only beside other levels
    graded = any(text.level is not None and text.level not in _FOREIGN_LEVELS for text in texts)
    for index, text in enumerate(texts):
        if (graded and text.level in _FOREIGN_LEVELS) or _is_interesting(text.text):
            failure = _foreign(text, index, graded)
            if failure is not None and not _is_literal_of_source(texts, index):
                found.append(failure)
    return found


_VIOLATION = lazy(r"\bpreassert\.Violation: ([a-z][a-z0-9-]+)\s*$")


def _violation(text: Text, index: int) -> Failure | None:
    """preassert's own exception names its hazard; the value was stopped before a kernel could fail."""
    match = _VIOLATION.search(text.text)
    if match is None or match.group(1) not in hazards.raw():
        return None
    return Failure(index, "host", match.group(1), True, text.text, _VIOLATION.pattern, rank=text.rank)


def _holds_no_failure(line: str) -> bool:
    """The lines that most logs are full of, told without a pattern: hints below an error, and assertions alone on their line."""
    if line.startswith(_HINT_STARTS):
        return len(line) < 160
    return line.endswith("failed.") and "block: [" in line and "Error" not in line and "error" not in line


def _matching(line: str) -> Iterator[tuple[_Rule, re.Match[str]]]:
    for rule in _rules():
        if not rule.literals or any(literal in line for literal in rule.literals):
            match = _compiled(rule.pattern).search(line)
            if match is not None:
                yield rule, match


def _has_words_of_the_catalogue(line: str) -> bool:
    return any(True for _ in _matching(line))


def _known(text: Text, index: int, across: int | None = None) -> Iterator[Failure]:
    """The failures in one text; with ``across``, only those whose words stand on both sides of that position."""
    line = text.text[:8192]
    if "preassert.Violation" in line and across is None:
        violation = _violation(text, index)
        if violation is not None:
            yield violation
            return
    if across is None:
        if line in _USUAL:
            yield Failure(index, "device", UNLOCATED, True, line, rank=text.rank)
            return
        if _holds_no_failure(line):
            return
    found: dict[str, Failure] = {}  # several wordings of one hazard in one text are one failure: the first strong one
    for rule, match in _matching(line):
        if _TEST_STATUS.search(line):
            return
        if rule.kind == "host" and _NOT_TORCH.search(line):
            continue
        if across is not None and not match.start() < across < match.end():
            continue
        strength = _strength(line, match.start(), match.end(), rule.kind)
        if strength and (rule.slug not in found or (strength == 2 and not found[rule.slug].strong)):
            found[rule.slug] = Failure(
                index, rule.kind, rule.slug, strength == 2, line, rule.pattern, rule.operators, rule.argument, rank=text.rank
            )
    yield from found.values()


def _foreign(text: Text, index: int, graded: bool) -> Failure | None:
    line = text.text[:8192]
    if _TEST_STATUS.search(line):
        return None
    if HINT.match(line.lstrip()):
        # torch prints these lines below an error only; the error itself may be cut off
        return Failure(index, "foreign", None, False, line, what="cuda", rank=text.rank)
    for pattern, what in _FOREIGN:
        match = pattern.search(line)
        if (
            match is None
            or _MENTION.match(line)
            or (what == "exception" and _HARMLESS_CLASS.search(match.group(1).split(".")[-1]))
        ):
            continue
        if what == "cuda" and _has_words_of_the_catalogue(line):
            continue  # but they are only mentioned here
        if what in ("cuda", "killed", "assertion") and (_CODE.match(line.lstrip()) or _is_quoted_in_prose(line[: match.start()])):
            continue
        return Failure(index, "foreign", None, what not in ("exit",), line, pattern.pattern, what=what, rank=text.rank)
    if graded and text.level in _FOREIGN_LEVELS:
        return Failure(index, "foreign", None, False, line, what="level", rank=text.rank)
    return None


def _strength(line: str, start: int, end: int, kind: Kind) -> int:
    """2: a failure is reported here; 1: perhaps, if something else agrees; 0: it is only mentioned."""
    before, after = line[:start], line[end:]
    if kind == "device" and before in _PLAIN_EXCEPTIONS and not after:
        return 2  # the usual line, without trying every pattern
    if _LISTED_AFTER.match(after) or _LISTED_BEFORE.search(before) or _is_code(line, before) or _is_quoted_in_prose(before):
        return 0
    mention = bool(_MENTION.match(line))
    prose = bool(_PROSE_AFTER.match(after))
    if kind == "host":
        return _host_strength(before, mention, prose)
    if prose:
        return 0 if mention else 1
    inner = before  # without what introduces every CUDA error
    for _ in range(3):
        label = _DEVICE_LABEL.search(inner[-120:])
        if label is None or not label.group():
            break
        inner = inner[: len(inner) - len(label.group())]
    head = _SOME_LABEL.sub("", inner[-200:]).rstrip()
    opened = not head or head.endswith(
        (":", "]", "│", "|", ">", "--", "=", "(", "'", '"', "{", "%", "}", "…", ".", ")", ";", ",", "!!")
    )
    named = bool(
        inner.strip() == "Error" or _CLASS.search(before[-200:]) or _LABEL.search(inner[-200:]) or _REPORTED.search(before[-200:])
    )
    if _PYTEST_ERROR.match(line):
        return 2
    if mention and not named:
        return 0
    return 2 if named or (opened and not mention and _AFTER.match(after)) else 1


def _is_code(line: str, before: str) -> bool:
    """The words stand in a string or a comment of source code (also as grep prints it)."""
    if not _CODE.match(line.lstrip()):
        return False
    if re.search(r"(?:^|\s)(?://|#)", before):
        return True
    quoted = any(before.count(mark) % 2 for mark in "'\"`")
    return quoted or (not _CLASS.search(before[-160:]) and "(" in before)


def _is_quoted_in_prose(before: str) -> bool:
    """``If you see `RuntimeError: `` - an opening quote after a word of a sentence, and at most the class in between."""
    match = re.search(r"\b([^\W\d]\w*)[,;]? [`\"“'](?:(?:\w+\.)*\w*(?:Error|Exception): ?)?(?:(?:CUDA|HIP) error: ?)?$", before)
    return match is not None and match.group(1).lower() not in _REPORTING


def _host_strength(before: str, mention: bool, prose: bool) -> int:
    if prose or mention:
        return 0 if mention and not _CLASS.search(before[-300:]) else 1
    stripped = before.strip()
    if not stripped or _CLASS.search(before[-200:]) or re.search(r"(?:Error|Exception)['\"(:\s]{1,4}$", before):
        return 2
    if _LABEL.search(before[-200:]) or re.search(r"\w+\(\)(?:: |\.)?\s*$", stripped) or re.search(r"\bE {2,}", before):
        return 2
    return 1
