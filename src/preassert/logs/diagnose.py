"""From what a log holds to one answer: what failed first, what only followed, what to do.

Order of the rules: a printed assertion decides, wherever it stands; else the first failure that kills a context; else the
first other failure of the GPU or of the host; else `unknown` if something failed, and `clean` if nothing did.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from preassert import hazards
from preassert.logs import advice, assertion, elements, failures, frames, versions
from preassert.logs.assertion import Assertion, Meaning
from preassert.logs.failures import UNLOCATED, Failure
from preassert.logs.frames import Frame
from preassert.logs.lines import Text, logical_lines
from preassert.logs.patterns import lazy
from preassert.logs.reading import Source
from preassert.logs.scan import Limits, Passage, scan
from preassert.model import Diagnosis, Role

SCHEMA = "preassert.explain/1"
UNKNOWN, CLEAN = "unknown", "clean"
POISONED = "poisoned-context"

MAX_ECHOES = 40
MAX_TEXTS_UNWRAPPED = 20_000
_EVIDENCE_CHARS = 2000

_AFTER_ASSERTS = (UNLOCATED, "illegal-memory-access", "blas-or-dnn-failure")
_KILLS_CONTEXT = (UNLOCATED, "illegal-memory-access", "hardware-fault")
_TARGET_FILES = lazy(r"assert(?:ion)? triggered at \S*THCUNN[/\\](?:generic[/\\])?(\w+?)(?:Criterion)?\.cu")
_CRITERIA = {
    "ClassNLL": "target-out-of-range", "SpatialClassNLL": "target-out-of-range", "MultiMargin": "target-out-of-range",
    "BCE": "probability-outside-unit-interval",
}  # fmt: skip
_RANK_IN_NAME = lazy(
    r"(?:rank|worker|node|process|proc|task)[_\-.]?(\d{1,5})(?!\d)|(?:^|[/\\])(\d{1,5})[/\\](?:stderr|stdout)(?:\.log)?",
    re.IGNORECASE,
)
_TIMESTAMP = lazy(r"(\d{4}-\d\d-\d\d)[T :](\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)")

_ROCM_LAUNCH_FAILURE = lazy(r"HIP error: unspecified launch failure|hipErrorLaunchFailure")

# Operators that only call another one of the list: the assertion is of the one they call
_FORWARD = lazy(r"backward|[Gg]radInput")


@dataclass(eq=False, repr=False, match_args=False)
class Log:
    """Everything found in one source. Indices point into ``texts``."""

    name: str
    texts: list[Text] = field(default_factory=list)
    assertions: list[Assertion] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    tracebacks: list[list[Frame]] = field(default_factory=list)
    tallies: dict[bytes, int] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)  # indices at which a new passage begins
    notes: list[str] = field(default_factory=list)
    lines: int = 0
    size_bytes: int = 0
    rank: int | None = None  # from the name of the file
    _foreign: list[Failure] | None = None

    def look_across_lines(self) -> None:
        """Add the failures whose words are cut by a line break (long logs are not pasted, and keep their lines)."""
        if len(self.texts) <= MAX_TEXTS_UNWRAPPED:
            known = {(failure.index, failure.hazard) for failure in self.failures}
            across = [failure for failure in failures.find_wrapped(self.texts) if (failure.index, failure.hazard) not in known]
            self.failures = sorted([*self.failures, *across], key=lambda failure: failure.index)

    @property
    def foreign(self) -> list[Failure]:
        """Failures outside the catalogue; looked for only when they are asked for."""
        if self._foreign is None:
            self._foreign = []
            for start, end in zip(self.breaks, [*self.breaks[1:], len(self.texts)], strict=False):
                for failure in failures.find_foreign(self.texts[start:end]):
                    failure.index += start
                    self._foreign.append(failure)
        return self._foreign


@dataclass(eq=False, repr=False, match_args=False)
class Event:
    """One assertion text or one kind of failure, with everything it stands for."""

    log: Log
    index: int
    hazard: str
    kind: str  # "assertion" or "failure"
    count: int = 1
    rank: int | None = None
    ranks: set[int] = field(default_factory=set)
    assertion: Assertion | None = None
    meaning: Meaning | None = None
    members: list[Assertion] = field(default_factory=list)
    dropped: int = 0
    failure: Failure | None = None


class Report(NamedTuple):
    """The answer. ``to_dict`` is the JSON contract; the extra fields are for people and tools that want more."""

    verdict: str
    restart_required: bool | None
    diagnoses: tuple[Diagnosis, ...]
    extra: dict[str, Any]

    @property
    def cause(self) -> Diagnosis | None:
        return next((diagnosis for diagnosis in self.diagnoses if diagnosis.role == "cause"), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "restart_required": self.restart_required,
            "diagnoses": [diagnosis.to_dict() for diagnosis in self.diagnoses],
            **self.extra,
        }


# ---------------------------------------------------------------------------------------------------------------- reading


def read(source: Source, limits: Limits | None = None) -> Log:
    """Everything that one source holds; consumes its blocks."""
    log = Log(source.name)
    match = _RANK_IN_NAME.search(source.name)
    if match:
        log.rank = int(match.group(1) or match.group(2))
    if source.cells is not None:
        for cell in source.cells:
            _passage(log, [(None, line) for line in cell.lines], cell.number)
            log.lines += len(cell.lines)
    else:
        scanned = scan(source.blocks, limits)
        for passage in scanned.passages:
            _passage(log, passage, None)
        log.tallies = scanned.tallies
        log.lines, log.size_bytes = scanned.lines, scanned.size_bytes
        log.notes.extend(scanned.notes)
    log.notes.extend(source.notes)
    return log


def _passage(log: Log, passage: Passage, cell: int | None) -> None:
    start = len(log.texts)
    log.breaks.append(start)
    texts = [text for number, raw in passage for text in logical_lines(number, raw, cell)]
    log.texts.extend(texts)
    for found in assertion.find(texts):
        found.first += start
        found.last += start
        log.assertions.append(found)
    for failure in failures.find(texts):
        failure.index += start
        log.failures.append(failure)
    for group in frames.find(texts):
        log.tracebacks.append([Frame(frame.file, frame.line, frame.function, frame.source, frame.at + start) for frame in group])


# ---------------------------------------------------------------------------------------------------------------- answering


def diagnose(logs: Sequence[Log], shape: tuple[int, ...] | None = None) -> Report:
    """One answer for logs that belong together (one of each rank, say)."""
    events = [event for log in logs for event in _assertion_events(log)]
    asserted = [event for event in events if event.assertion is not None and event.assertion.form != "host"]
    asserted = [event for event in asserted if not _is_mention(event) and not _is_only_quoted(event)]
    if asserted:
        return _answer_assertion(logs, asserted, shape)
    chosen = _first_failure(logs)
    if chosen is None or chosen.hazard not in _KILLS_CONTEXT:
        for log in logs:
            log.look_across_lines()
        chosen = _first_failure(logs)
    if chosen is not None:
        return _answer_failure(logs, chosen)
    foreign = _first_foreign(logs, events)
    if foreign is not None:
        return _answer_foreign(logs, foreign)
    return Report(CLEAN, None, (), _extra(logs, None, None, ()))


def _assertion_events(log: Log) -> list[Event]:
    """Assertions of one text from one line of source, together."""
    groups: dict[tuple[Any, ...], Event] = {}
    for each in log.assertions:
        meaning = assertion.meaning(each.form, each.file, each.path, each.kernel, each.expression, each.complete)
        key = (
            each.form == "host",
            each.file,
            each.line,
            assertion.kernel_name(each.kernel) if each.kernel else None,
            meaning.expression,
            meaning.hazard,
        )
        event = groups.get(key)
        if event is None:
            rank = each.rank if each.rank is not None else log.rank
            event = groups[key] = Event(log, each.first, meaning.hazard or UNKNOWN, "assertion", 0, rank, set(), each, meaning)
        event.count += each.count
        event.members.append(each)
        if each.rank is not None:
            event.ranks.add(each.rank)
    found = sorted(groups.values(), key=lambda event: event.index)
    _attribute(log, found)
    return found


def _attribute(log: Log, events: list[Event]) -> None:
    """Give the lines that were only counted to the assertion they repeat."""
    for tail, count in log.tallies.items():
        text = assertion.squeeze(tail.decode("utf-8", "replace"))
        expression = assertion.bare(text.partition("ssertion")[2].partition("failed")[0])
        owner = next(
            (event for event in events if event.assertion and assertion.bare(event.assertion.expression) == expression), None
        )
        if owner is None:
            log.notes.append(f"{count:,} assertion lines were counted that fit none of those that were read")
            continue
        owner.count += count
        owner.dropped += count


_MENTION_LINE = lazy(
    r"^\s*(?:[0-9a-f]{7,40}\s+\w|#|//|\+\s|commit |Subject:|.{0,60}\b(?:docs?|README|CHANGELOG)\b[^/]{0,40}:)"
    r"|(?:PASSED|\.\.\. ok)\s*$|[=(]\s*r?[\"'].*ssertion"
)


def _is_mention(event: Event) -> bool:
    """A quoted assertion in a history, in a test or in source code, in a text without any other failure."""
    text = event.log.texts[event.index].text
    plain = text.startswith(("/", "../")) and not text.startswith("//") and text.endswith("failed.")
    if plain or not _MENTION_LINE.search(text):
        return False
    return not any(failure.strong for failure in [*event.log.failures, *event.log.foreign])


def _is_only_quoted(event: Event) -> bool:
    """The bare expression in the middle of a line, in a text in which no kernel failed."""
    if event.assertion is None or event.assertion.form != "quoted":
        return False
    return not any(failure.strong and failure.hazard in _AFTER_ASSERTS for failure in event.log.failures)


def _moment(event_log: Log, index: int) -> str | None:
    """The time printed last at or before a text, where a log has times; comparable as text."""
    for text in reversed(event_log.texts[max(index - 400, 0) : index + 1]):
        match = _TIMESTAMP.search(text.shown[:120])
        if match:
            return f"{match.group(1)} {match.group(2).replace(',', '.')}"
    return None


def _in_time(events: list[Event], logs: Sequence[Log]) -> list[Event]:
    """Events in the order of time: the order of the lines in one log, the printed times between several."""
    if len(logs) == 1:
        return sorted(events, key=lambda event: event.index)
    order = {id(log): number for number, log in enumerate(logs)}
    return sorted(events, key=lambda event: (_moment(event.log, event.index) or "9999", order[id(event.log)], event.index))


# --------------------------------------------------------------------------------------------------------- with an assertion


def _answer_assertion(logs: Sequence[Log], events: list[Event], shape: tuple[int, ...] | None) -> Report:
    events = _in_time(events, logs)
    cause = events[0]
    stack = _frames_near(cause.log, cause.index)
    for event in events:
        event.hazard = _refined(event, stack if event is cause else _frames_near(event.log, event.index))
    rank = _single_rank(cause)
    diagnoses = [_assertion_diagnosis(cause, "cause", stack, rank, shape)]
    for event in events[1:]:
        diagnoses.append(_assertion_diagnosis(event, "echo", _frames_near(event.log, event.index), event.rank, shape))
    diagnoses.extend(_echoes(logs, cause))
    verdict = cause.hazard
    releases = tuple(diagnoses[0].extra.get("torch_versions", ()))
    confidence = "determined" if verdict != UNKNOWN else "undetermined"
    if verdict != UNKNOWN and _is_open(cause, stack):
        confidence = "likely"
    extra = _extra(logs, cause, verdict, stack, releases, confidence)
    return Report(verdict, True, tuple(diagnoses), extra)


def _frames_near(log: Log, index: int) -> list[Frame]:
    """The traceback that belongs to a failure: the first after it, else the last one before it; within one notebook cell."""
    cell = log.texts[index].cell if log.texts else None
    groups = [group for group in log.tracebacks if log.texts[group[0].at].cell == cell]
    after = next((group for group in groups if group[-1].at > index), None)
    before = next((group for group in reversed(groups) if group[-1].at <= index), None)
    return after or before or []


def _refined(event: Event, stack: Sequence[Frame]) -> str:
    """The hazard of an assertion that serves several operators, where the frames tell which."""
    meaning = event.meaning
    if meaning is None or meaning.hazard is None:
        return UNKNOWN
    operators = {operator for record in meaning.entries for operator in record["operators"]}
    if "aten::embedding" in operators:
        if advice.shows_embedding(stack):
            return "embedding-index-out-of-range"
        if advice.shows_index_select(stack):
            return "index-out-of-range"
    if "aten::_assert_async" in operators and "aten::multinomial" in operators and advice.shows_sampling(stack):
        return "invalid-sampling-distribution"
    return meaning.hazard


def _is_open(event: Event, stack: Sequence[Frame]) -> bool:
    """Does the assertion serve operators of several hazards, and do no frames tell which?"""
    meaning = event.meaning
    if meaning is None:
        return False
    operators = {operator for record in meaning.entries for operator in record["operators"]}
    if "aten::embedding" in operators:
        return not advice.shows_embedding(stack) and not advice.shows_index_select(stack)
    return "aten::_assert_async" in operators and "aten::multinomial" in operators


def _operator(event: Event, hazard: str, stack: Sequence[Frame]) -> str | None:
    """The operator, where the assertion or the frames name exactly one."""
    meaning, printed = event.meaning, event.assertion
    if meaning is None or printed is None or not meaning.entries:
        return _operator_by_file(printed)
    operators = list(dict.fromkeys(operator for record in meaning.entries for operator in record["operators"]))
    shared = "aten::embedding" in operators
    if shared:
        if hazard == "embedding-index-out-of-range" and advice.shows_embedding(stack):
            return "aten::embedding"
        return "aten::index_select" if hazard == "index-out-of-range" and advice.shows_index_select(stack) else None
    if "aten::_assert_async" in operators and len(operators) > 1:
        return "aten::multinomial" if hazard == "invalid-sampling-distribution" else None
    return only_operator(operators, assertion.kernels_of(printed, meaning.entries), stack)


def _operator_by_file(printed: Assertion | None) -> str | None:
    if printed is None or printed.file is None:
        return None
    return {"LossCTC.cu": "aten::_ctc_loss"}.get(printed.file)


def only_operator(operators: Sequence[str], kernels: Sequence[str], stack: Sequence[Frame]) -> str | None:
    """One operator of several that can print the same: by the kernel's name, else by the frames; None if it stays open."""
    families: dict[str, str] = {}
    for operator in operators:
        families.setdefault(operator.removesuffix("_").removesuffix("_forward_only"), operator)
    if len(families) <= 1:
        return next(iter(families.values()), None)
    names = set(families)
    backward = {name for name in names if "backward" in name}
    if backward and len(names) == 2 and len(backward) == 1:
        forward = next(iter(names - backward))
        if kernels and all(_FORWARD.search(kernel) for kernel in kernels):
            return families[backward.pop()]
        return families[forward]  # it runs first, so it is the one that fails
    flat = [kernel.replace("_", "").lower() for kernel in kernels]
    named = [name for name in names if flat and all(name.removeprefix("aten::").replace("_", "") in kernel for kernel in flat)]
    if len(named) == 1:
        return families[named[0]]
    source = " ".join(advice.frame_text(frame) for frame in stack[-3:])
    seen = [name for name in names if re.search(rf"\b{re.escape(name.removeprefix('aten::'))}_?\(", source)]
    return families[seen[0]] if len(seen) == 1 else None


def _single_rank(event: Event) -> int | None:
    """The rank whose failure it is: as printed beside it, else the only rank that the text about the failure names."""
    if event.rank is not None:
        return event.rank
    if event.log.rank is not None:
        return event.log.rank
    later = [failure for failure in event.log.failures if failure.rank is not None and failure.index >= event.index - 3]
    for failed in ({each.rank for each in later if each.hazard in _KILLS_CONTEXT}, {each.rank for each in later}):
        if len(failed) == 1:
            return failed.pop()
    return None


def _assertion_diagnosis(
    event: Event, role: Role, stack: Sequence[Frame], rank: int | None, shape: tuple[int, ...] | None
) -> Diagnosis:
    printed, meaning = event.assertion, event.meaning
    assert printed is not None
    assert meaning is not None
    record = meaning.entries[0] if meaning.entries else None
    releases = assertion.printed_by(printed, meaning.entries)
    kernels = assertion.kernels_of(printed, meaning.entries)
    told = elements.describe(event.members, kernels, releases, shape, not event.dropped)
    extra: dict[str, Any] = {
        "kind": "assertion",
        "expression": meaning.expression,
        "printed_file": printed.file,
        "printed_line": printed.line,
        "kernel": kernels[0] if len(kernels) == 1 else None,
        "operators": sorted({operator for each in meaning.entries for operator in each["operators"]}),
        "torch_versions": list(releases),
        "on_record": meaning.exact,
        "ranks": sorted(event.ranks),
        "bad_elements_at_least": told.at_least,
    }
    return _diagnosis(
        event,
        role,
        rank,
        operator=_operator(event, event.hazard, stack),
        argument=_argument(event.hazard, record["argument"] if record else None),
        valid=record["valid"] if record else None,
        elements=told.lines,
        stack=stack,
        extra=extra,
    )


def _argument(hazard: str, recorded: str | None) -> str | None:
    if recorded == "targets" or (recorded is None and hazard in ("target-out-of-range", "ctc-target-invalid")):
        return "target"
    return recorded


def _diagnosis(
    event: Event,
    role: Role,
    rank: int | None,
    *,
    operator: str | None = None,
    argument: str | None = None,
    valid: str | None = None,
    elements: tuple[str, ...] = (),
    stack: Sequence[Frame] = (),
    extra: dict[str, Any] | None = None,
    hazard: str | None = None,
) -> Diagnosis:
    slug = hazard or event.hazard
    entry = hazards.raw().get(slug)
    text = event.log.texts[event.index]
    evidence = _evidence(event)
    more = dict(extra or {})
    if text.cell is not None:
        more["cell"] = text.cell
    causes: list[str] = []
    fixes: tuple[str, ...] = ()
    if entry is not None:
        causes = [_flat(cause) for cause in entry["causes"]]
        fixes = tuple(_flat(fix) for fix in entry["fixes"])
        more.setdefault("title", entry["title"])
        if role == "cause":
            more["meaning"] = _flat(entry["meaning"])
            more["confirm"] = [_block(step) for step in entry["confirm"]]
            more["not_this"] = _flat(entry["not_this"]) if entry["not_this"] else None
            more["advice"] = advice.programs(slug, stack, _around(event), evidence)
    return Diagnosis(
        hazard=slug,
        role=role,
        evidence=evidence,
        line=text.line,
        file=event.log.name,
        rank=rank,
        count=event.count,
        operator=operator,
        argument=argument,
        valid=valid,
        elements=elements,
        causes=tuple(causes),
        fixes=fixes,
        extra=more,
    )


def _flat(text: str) -> str:
    return " ".join(text.split())


def _block(text: str) -> str:
    lines = text.strip("\n").split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:].rstrip() for line in lines).strip("\n")


def _around(event: Event) -> list[Text]:
    return event.log.texts[max(event.index - 60, 0) : event.index + 140]


def _evidence(event: Event) -> str:
    """The line as printed; the lines of a wrapped assertion are joined."""
    log = event.log
    last = event.index
    if event.assertion is not None:
        last = min(event.assertion.last, event.index + 8)
    pieces = [log.texts[event.index].shown.strip()] + [
        log.texts[index].text.strip() for index in range(event.index + 1, last + 1)
    ]
    joined = pieces[0]
    for piece in pieces[1:]:
        joined += piece if joined[-1:].isalnum() and piece[:1].isalnum() and len(joined) > 60 else " " + piece
    if event.assertion is not None and len(joined) > 300 and event.assertion.form != "host":
        joined = _own_part(joined, event.assertion)
    return joined[:_EVIDENCE_CHARS]


def _own_part(joined: str, printed: Assertion) -> str:
    """Of a line that holds more than one assertion or a long progress bar, the piece from its path to ``failed``."""
    start = joined.find(printed.path) if printed.path else -1
    if start < 0:
        return joined
    end = joined.find("failed", start)
    return joined[start : end + len("failed.")] if end > 0 else joined[start:]


# --------------------------------------------------------------------------------------------------------- without assertion


def _believed(log: Log) -> list[Failure]:
    """The failures of the catalogue, without those that are only mentioned."""
    if all(failure.strong for failure in log.failures):
        return log.failures
    corroborated = any(failure.what in ("exception", "traceback", "crash") for failure in log.foreign) or any(
        failures.HINT.search(text.text) for text in log.texts[:20_000]
    )
    return [
        failure for failure in log.failures if failure.strong or (corroborated and failure.hazard != "unsupported-device-code")
    ]


def _first_failure(logs: Sequence[Log]) -> Event | None:
    events = [
        Event(log, failure.index, failure.hazard, "failure", rank=failure.rank, failure=failure)
        for log in logs
        for failure in _believed(log)
        if failure.hazard is not None
    ]
    events = _in_time(events, logs)
    deadly = [event for event in events if event.hazard in _KILLS_CONTEXT]
    raised = [event for event in events if event.failure is not None and event.failure.kind == "host"]
    if deadly:
        first = deadly[0]
        # The same program on the CPU, further down, tells what the GPU did not
        later = [event for event in raised if event.log is first.log and event.index > first.index]
        if first.hazard == UNLOCATED and later:
            first.hazard = later[0].hazard
            first.meaning = None
            first.failure = _with_host(first, later[0])
        return first
    other = [event for event in events if event.hazard != "communication-failure"]
    return (other or events or [None])[0]  # type: ignore[list-item]


def _with_host(first: Event, later: Event) -> Failure:
    failure, host = first.failure, later.failure
    assert failure is not None
    assert host is not None
    return Failure(
        failure.index,
        "device",
        host.hazard,
        True,
        failure.text,
        host.pattern,
        host.operators,
        host.argument,
        what=later.log.texts[later.index].shown,
        rank=failure.rank,
    )


def _answer_failure(logs: Sequence[Log], event: Event) -> Report:
    failure = event.failure
    assert failure is not None
    log = event.log
    stack = _failing_frames(log, event.index)
    verdict = event.hazard
    confidence = "determined"
    likely: list[advice.Clue] = []
    operator = argument = None
    if verdict == UNLOCATED:
        confidence = "undetermined"
        likely = advice.clues(stack, _around(event))
        criterion = _TARGET_FILES.search(log.texts[event.index].text)
        if criterion and criterion.group(1) in _CRITERIA:
            verdict = event.hazard = _CRITERIA[criterion.group(1)]
            confidence = "likely"
            argument = _argument(verdict, None)
    elif failure.kind == "host" or failure.what:
        if "aten::embedding" in failure.operators and not advice.shows_embedding(stack) and advice.shows_index_select(stack):
            verdict = event.hazard = "index-out-of-range"
        operator = _host_operator(failure, stack)
        if operator == "aten::index_add":  # it words its fault as gather and scatter do
            verdict = event.hazard = "index-out-of-range"
        argument = _argument(verdict, failure.argument)
        confidence = "likely" if failure.what else "determined"
    elif verdict == "blas-or-dnn-failure":
        confidence = "undetermined"
        likely = [
            *advice.clues(stack, _around(event)),
            advice.Clue("out-of-memory", "the handle or the workspace may not have fitted into memory"),
        ]
    elif _ROCM_LAUNCH_FAILURE.search(failure.text):
        confidence = "undetermined"
        likely = [
            advice.Clue(UNLOCATED, "ROCm reports a failed device assertion in these words too, often without its text"),
            *advice.clues(stack, _around(event)),
        ]
    restart: bool | None
    if failure.kind == "host":
        restart = None if "AcceleratorError" in failure.text else False
    elif failure.hazard in ("out-of-memory", "unsupported-device-code"):
        restart = False
    elif failure.hazard in ("blas-or-dnn-failure", "communication-failure"):
        restart = None
    else:
        restart = True
    event.count = sum(1 for other in _believed(log) if other.hazard == failure.hazard and not failure.what) or 1
    extra: dict[str, Any] = {
        "kind": "failure",
        "operators": list(failure.operators),
        "likely": [{"hazard": clue.hazard, "because": clue.because} for clue in likely],
        "innocent_frame": advice.innocent(stack),
    }
    if failure.what:
        extra["also_raised_on_the_host"] = failure.what
    if verdict == UNLOCATED and len(stack) and advice.innocent(stack):
        extra["innocent_source"] = advice.frame_text(stack[-1]).strip()
    event.count = 1 if verdict == UNLOCATED else event.count
    diagnoses = [_diagnosis(event, "cause", _single_rank(event), operator=operator, argument=argument, stack=stack, extra=extra)]
    diagnoses.extend(_echoes(logs, event))
    return Report(verdict, restart, tuple(diagnoses), _extra(logs, event, verdict, stack, (), confidence, likely))


def _failing_frames(log: Log, index: int) -> list[Frame]:
    """The frames above an exception line; for faulthandler and pasted pieces, those below it."""
    cell = log.texts[index].cell
    groups = [group for group in log.tracebacks if log.texts[group[0].at].cell == cell]
    before = next((group for group in reversed(groups) if group[0].at <= index), None)
    if before is not None and index - before[-1].at <= 40:
        return before
    return next((group for group in groups if group[0].at > index), None) or before or []


def _host_operator(failure: Failure, stack: Sequence[Frame]) -> str | None:
    operators = list(failure.operators)
    if "aten::embedding" in operators and len(operators) > 1:
        if advice.shows_embedding(stack):
            return "aten::embedding"
        return "aten::index_select" if advice.shows_index_select(stack) else None
    return only_operator(operators, (), stack)


def _first_foreign(logs: Sequence[Log], assertions: Sequence[Event]) -> Event | None:
    """Something failed, but nothing of the catalogue: an exception, a crash, an assertion of other software."""
    events = []
    for log in logs:
        strong = [failure for failure in log.foreign if failure.what not in ("traceback", "exit", "level")]
        chosen = strong or log.foreign
        if chosen:
            first = chosen[0]
            events.append(Event(log, first.index, UNKNOWN, "failure", rank=first.rank, failure=first))
    events.extend(
        event for event in assertions if event.assertion is not None and event.assertion.form == "host" and not _is_mention(event)
    )
    events = _in_time(events, logs)
    return events[0] if events else None


def _answer_foreign(logs: Sequence[Log], event: Event) -> Report:
    event.hazard = UNKNOWN
    what = event.failure.what if event.failure is not None else "assertion"
    stack = _failing_frames(event.log, event.index)
    extra = {"kind": "failure", "title": "a failure outside the catalogue", "what": what}
    diagnosis = _diagnosis(event, "cause", _single_rank(event), stack=stack, extra=extra)
    return Report(UNKNOWN, None, (diagnosis,), _extra(logs, event, UNKNOWN, stack, (), "undetermined"))


# ------------------------------------------------------------------------------------------------------------------- echoes


def _echoes(logs: Sequence[Log], cause: Event) -> list[Diagnosis]:
    """What else failed: after the cause an echo, before it the context. One diagnosis for each kind and rank."""
    groups: dict[tuple[int, str, int | None, Role], Event] = {}
    for log in logs:
        seen_exception = cause.kind == "failure"
        believed = _believed(log)
        # the warning that a GPU is not supported explains the failure below it
        warned = [each for each in log.failures if each.hazard == "unsupported-device-code" and each not in believed]
        for failure in [*believed, *warned]:
            if failure.hazard is None or (log is cause.log and failure.index == cause.index and cause.kind == "failure"):
                continue
            inside = (
                cause.assertion is not None
                and log is cause.log
                and cause.assertion.first <= failure.index <= cause.assertion.last
            )
            if inside and failure.kind == "host":
                continue
            before = log is cause.log and failure.index < cause.index and cause.kind != "assertion"
            role: Role = "context" if before or failure.hazard in ("out-of-memory", "unsupported-device-code") else "echo"
            hazard = failure.hazard
            if hazard == UNLOCATED and role == "echo":
                hazard = POISONED if seen_exception else UNLOCATED
                seen_exception = True
            key = (id(log), hazard, failure.rank, role)
            if key in groups:
                groups[key].count += 1
            elif len(groups) < MAX_ECHOES:
                groups[key] = Event(log, failure.index, hazard, "failure", rank=failure.rank, failure=failure)
    return [_diagnosis(event, role, event.rank, extra={"kind": "failure"}) for (_, _, _, role), event in groups.items()]


# --------------------------------------------------------------------------------------------------------- the whole report


_RULES_OUT = {
    "out-of-memory": "out of memory",
    "illegal-memory-access": "an illegal memory access",
    "hardware-fault": "a hardware fault (ECC, Xid)",
    "unsupported-device-code": "a build without code for this GPU, or an old driver",
    "communication-failure": "a communication failure (NCCL)",
    "blas-or-dnn-failure": "a fault of cuBLAS or cuDNN itself",
}


def _extra(
    logs: Sequence[Log],
    event: Event | None,
    verdict: str | None,
    stack: Sequence[Frame],
    releases: Sequence[str] = (),
    confidence: str = "determined",
    likely: Sequence[advice.Clue] = (),
) -> dict[str, Any]:
    seen = {failure.hazard for log in logs for failure in log.failures}
    ruled_out = []
    if verdict not in (None, UNKNOWN):
        seen |= {clue.hazard for clue in likely}
        ruled_out = [words for slug, words in _RULES_OUT.items() if slug != verdict and slug not in seen]
    own = [frame for frame in stack if not frame.library]
    return {
        "confidence": confidence,
        "restart_reason": _restart_reason(event, verdict),
        "assert_lines": sum(each.count for each in _printed(logs)),
        "torch_versions": list(releases),
        "torch_versions_sampled": list(versions.sampled()) if releases else [],
        "likely": [{"hazard": clue.hazard, "because": clue.because} for clue in likely],
        "ruled_out": ruled_out,
        "frame": _frame_dict(own[-1]) if own else None,
        "innermost_frame": _frame_dict(stack[-1]) if stack else None,
        "asynchronous": _asynchronous(event, verdict),
        "reproduce": _reproduce(event, verdict, own),
        "names_dsa": any("TORCH_USE_CUDA_DSA" in text.text for log in logs for text in log.texts),
        "notes": [note for log in logs for note in log.notes],
        "sources": [{"name": log.name, "lines": log.lines, "bytes": log.size_bytes, "rank": log.rank} for log in logs],
    }


def _printed(logs: Sequence[Log]) -> list[Event]:
    return [
        event
        for log in logs
        for event in _assertion_events_once(log)
        if event.assertion is not None
        and event.assertion.form != "host"
        and not _is_mention(event)
        and not _is_only_quoted(event)
    ]


def _assertion_events_once(log: Log) -> list[Event]:
    notes = list(log.notes)
    events = _assertion_events(log)
    log.notes[:] = notes
    return events


def _frame_dict(frame: Frame) -> dict[str, Any]:
    return {"file": frame.file, "line": frame.line, "function": frame.function, "source": frame.source}


_DEAD_CONTEXT = (
    "the CUDA context of that process is dead; every later CUDA call fails until the process (the notebook kernel) restarts"
)


def _restart_reason(event: Event | None, verdict: str | None) -> str | None:
    if event is None or verdict is None:
        return None
    if event.kind == "assertion":
        assert event.assertion is not None
        if event.assertion.form in ("rocm", "xpu"):
            return "the runtime aborts the process when a kernel asserts"
        return _DEAD_CONTEXT
    failure = event.failure
    if failure is not None and failure.kind == "host":
        return "the error was raised on the host, before a kernel could fail"
    reasons = {
        "out-of-memory": "the context still works after an allocation failed; free memory or use smaller batches",
        "unsupported-device-code": "nothing ran, so nothing broke; it fails again until another build or driver is installed",
        "blas-or-dnn-failure": (
            "it depends: if torch.zeros(1, device='cuda') fails too, the context is dead and the process must restart"
        ),
        "communication-failure": (
            "the process group is lost; whether this rank's GPU still works depends on what failed first, on which rank"
        ),
        "hardware-fault": "the GPU cannot be used until it is reset or replaced",
        UNKNOWN: None,
    }
    if verdict in reasons:
        return reasons[verdict]
    return _DEAD_CONTEXT


def _asynchronous(event: Event | None, verdict: str | None) -> str | None:
    if event is None or verdict in (None, UNKNOWN):
        return None
    failure = event.failure
    if failure is not None and (failure.kind == "host" or verdict in ("unsupported-device-code", "out-of-memory")):
        return "raised at the line itself"
    if verdict == "communication-failure":
        return None
    return (
        "kernels run asynchronously: unless CUDA_LAUNCH_BLOCKING=1 was set before CUDA started, the frames show where the error "
        "was noticed, which may be later than where it happened; which of several bad lines prints first depends on driver "
        "and hardware"
    )


def _reproduce(event: Event | None, verdict: str | None, own: Sequence[Frame]) -> list[str]:
    if verdict in (None, UNKNOWN):
        return []
    script = own[0].file if own and own[0].file.endswith(".py") else "train.py"
    script = re.split(r"[/\\]", script)[-1]
    if verdict in ("communication-failure",):
        return [f"TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO python {script}"]
    if verdict in ("out-of-memory", "unsupported-device-code", "hardware-fault"):
        return []
    guarded = f"preassert run {script}   # stops at the line, with the value and the sample, before the kernel can assert"
    if event is not None and event.failure is not None and event.failure.kind == "host":
        return [guarded]
    rocm = event is not None and (
        (event.assertion is not None and event.assertion.form == "rocm")
        or (event.failure is not None and ("HIP" in event.failure.text or "HSA_" in event.failure.text))
    )
    if rocm:
        return [guarded, f"AMD_SERIALIZE_KERNEL=3 HIP_VISIBLE_DEVICES=0 python {script}   # ROCm: each kernel is waited for"]
    steps = [f"CUDA_LAUNCH_BLOCKING=1 python {script}   # the traceback then shows the failing call"]
    if verdict == "illegal-memory-access":
        return [*steps, f"compute-sanitizer --tool memcheck python {script}   # names the kernel and the address"]
    return [
        guarded,
        *steps,
        f"CUDA_VISIBLE_DEVICES= python {script}   # on the CPU the same fault raises at its line",
    ]
