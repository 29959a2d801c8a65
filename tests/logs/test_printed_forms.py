# ruff: noqa: E501 - a printed line stands here as one line
"""Every assertion on record, rendered as each platform prints it, then wrapped, prefixed, cut and glued: still the same hazard."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preassert import hazards
from preassert.logs import Report, explain_text

RECORDS: list[tuple[str, dict[str, Any]]] = [
    (slug, record) for slug in hazards.slugs() for record in hazards.raw()[slug]["printed"]
]
TRACE = """\
Traceback (most recent call last):
  File "/home/user/project/train.py", line 41, in <module>
    main()
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


def concrete(record: dict[str, Any]) -> tuple[str, str, str]:
    """(file, kernel, expression) as a device would print them: patterns of the record are filled in."""
    file = record["file"].split(" ")[0]
    file = file.replace("c<hash>.py", "cq7x4bnmtv2k5wd6hzr3ojp8ysl1ceafug09itbqnmxrvwkd25h.py").replace("*", "adagrad_split")
    kernel = next((name for name in record["kernels"] if "*" not in name and "<" not in name), "some_kernel").replace(
        "lambda", "operator()"
    )
    expression = record["expression"].replace("tmpN < SIZE", "tmpN < 32000").replace("tmpN", "tmp4").replace("\n", "\\n")
    expression = re.sub(r"<any text[^>]*>", "my own check failed", expression)
    return file, kernel, expression


def folder(record: dict[str, Any]) -> str:
    source = record["source"].split(":")[-1]
    return source.rsplit("/", 1)[0] if "/" in source and " " not in source else "aten/src/ATen/native/cuda"


def cuda(record: dict[str, Any], thread: int = 5, root: str = "/pytorch/") -> str:
    file, kernel, expression = concrete(record)
    if file.endswith(".py"):
        return f"/tmp/torchinductor_user/q7/{file}:30: unknown: block: [2,0,0], thread: [{thread},0,0] Assertion `{expression}` failed."
    return f"{root}{folder(record)}/{file}:117: {kernel}: block: [2,0,0], thread: [{thread},0,0] Assertion `{expression}` failed."


def old_signature(record: dict[str, Any], thread: int = 5) -> str:
    file, kernel, expression = concrete(record)
    shown = f"void {kernel}(T *, T *, long *, int, TensorInfo<T, IndexType>) [with T = float, AccumT = float, IndexType = unsigned int]"
    if kernel == "operator()":
        shown = "lambda [](int)->auto::operator()(int)->auto"
    return f"/opt/conda/conda-bld/pytorch_1579022060824/work/{folder(record)}/{file}:60: {shown}: block: [2,0,0], thread: [{thread},0,0] Assertion `{expression}` failed."


def windows(record: dict[str, Any], thread: int = 5) -> str:
    file, _, expression = concrete(record)
    path = folder(record).replace("/", "\\")
    return f"C:\\actions-runner\\_work\\pytorch\\pytorch\\builder\\windows\\pytorch\\{path}\\{file}:117: block: [2,0,0], thread: [{thread},0,0] Assertion `{expression}` failed."


def rocm(record: dict[str, Any], thread: int = 5) -> str:
    file, kernel, expression = concrete(record)
    file = re.sub(r"\.cu$", ".hip", file)
    path = folder(record).replace("/cuda", "/hip")
    return f"/pytorch/{path}/{file}:94: {kernel}: Device-side assertion `{expression}' failed."


def xpu(record: dict[str, Any], thread: int = 5) -> str:
    file, kernel, expression = concrete(record)
    return f"/build/{folder(record)}/{file}:117: {kernel}: global id: [7,0,0], local id: [{thread},0,0] Assertion `{expression}` failed"


def verbose(record: dict[str, Any], thread: int = 5) -> str:
    file, kernel, expression = concrete(record)
    head = f"/pytorch/{folder(record)}/{file}:117: {kernel}: block: [2,0,0], thread: [{thread},0,0]"
    return f"[CUDA_KERNEL_ASSERT] {head}: Assertion failed: `{expression}`: the values are 5 and 4"


def dsa(record: dict[str, Any], thread: int = 5) -> str:
    file, kernel, expression = concrete(record)
    return f"""\
RuntimeError: CUDA error: device-side assert triggered
1 CUDA device-side assertion failures were found on GPU #0!
Assertion failure 0
  GPU assertion failure message = {expression}
  File containing assertion = /pytorch/{folder(record)}/{file}:117
  Device function containing assertion = {kernel}
  Thread ID that failed assertion = [{thread},0,0]
  Block ID that failed assertion = [2,0,0]
  File containing kernel launch = /pytorch/{folder(record)}/{file}:220"""


def accepted(slug: str, record: dict[str, Any], report: Report, form: str) -> str | None:
    """What is wrong with the report, or None."""
    if report.verdict == slug:
        return None
    file, _, expression = concrete(record)
    twins = {other for other, each in RECORDS if concrete(each)[::2] == (file, expression)}
    if report.verdict in twins:
        return None  # the same file and text stand for two hazards; only the kernel tells them apart, and it is not printed here
    if re.sub(r"\W", "", expression) == "":
        return None if report.verdict in ("user-device-assert", "unknown") else f"{report.verdict} for an empty message"
    return f"{form}: {report.verdict} instead of {slug} for {file} `{expression}`"


FORMS: dict[str, Callable[..., str]] = {
    "cuda": cuda,
    "old_signature": old_signature,
    "windows": windows,
    "rocm": rocm,
    "xpu": xpu,
    "verbose": verbose,
    "dsa": dsa,
}


def named(slug: str, record: dict[str, Any]) -> str:
    return f"{slug}-{record['file'][:24]}-{record['expression'][:24]}-{record['kernels'][:1]}"


@pytest.mark.parametrize("form", FORMS)
def test_every_record_in_every_form(form: str) -> None:
    wrong = []
    for slug, record in RECORDS:
        text = FORMS[form](record) + "\n" + TRACE
        problem = accepted(slug, record, explain_text(text), form)
        if problem:
            wrong.append(problem)
    assert wrong == []


def test_operator_and_argument_of_every_record() -> None:
    wrong = []
    for slug, record in RECORDS:
        cause = explain_text(cuda(record)).cause
        assert cause is not None, record
        if cause.hazard != slug:
            continue
        expected = "target" if record["argument"] == "targets" else record["argument"]
        if cause.argument != expected:
            wrong.append((record["file"], record["expression"], cause.argument, expected))
        if len(record["operators"]) == 1 and cause.operator not in (record["operators"][0], None):
            wrong.append((record["file"], record["expression"], cause.operator, record["operators"]))
    assert wrong == []


_FACTS_FILE = Path(__file__).parents[1] / "facts" / "asserts.jsonl"
FACTS = [json.loads(line) for line in _FACTS_FILE.read_text(encoding="utf-8").splitlines()]


def test_every_fact_is_in_the_catalogue() -> None:
    known = {re.sub(r"\W", "", record["expression"]) for _, record in RECORDS}
    missing = [fact["assertion"] for fact in FACTS if re.sub(r"\W", "", fact["assertion"].replace("\n", "\\n")) not in known]
    # wordings with a placeholder stand for many texts; the catalogue may word the placeholder otherwise
    assert [text for text in missing if "<" not in text and "inline constraint" not in text] == []


# ---------------------------------------------------------------------------------------------------------------- mangling


SAMPLE = [
    pair
    for index, pair in enumerate(RECORDS)
    if len(pair[1]["expression"]) > 12 and index % 3 == 0 and not pair[1]["file"].startswith(("gen_", "c<"))
]

PREFIXES = {
    "torchrun": "[rank3]:",
    "default": "[default3]:",
    "mpi": "[1,3]<stderr>:",
    "sagemaker": "[1,mpirank:3,algo-1]<stderr>:",
    "rank_is": "2025-03-02T09:00:01.117730Z [rank=3] ",
    "time": "2025-03-02 09:00:01,123 - worker - INFO - ",
    "bracket_time": "[2025-03-02 09:00:01] [INFO] ",
    "iso": "2025-03-02T09:00:01.117730Z ",
    "ray": "(RayTrainWorker pid=4711, ip=10.0.0.7) ",
    "ray_colour": "\x1b[36m(RayTrainWorker pid=4711)\x1b[0m ",
    "vllm": "(VllmWorker rank=3 pid=78) ERROR 07-30 10:12:44 [multiproc_executor.py:380] ",
    "compose": "trainer-1  | ",
    "swarm": "svc_tagger.1.k2m9q4x7p1ab@node    | ",
    "cri": "2025-03-02T09:00:01.117730Z stderr F ",
    "syslog": "Mar  2 09:00:01 gpu-node-7 train[4711]: ",
    "numbered": "     7\t",
    "airflow": "[2025-03-02, 09:00:01 UTC] {subprocess.py:93} INFO - ",
    "heroku": "2025-03-02T09:00:01.117730+00:00 app[worker.1]: ",
    "jupyter": "[I 2025-03-02 09:00:01.117 ServerApp] ",
    "seconds": "1740906001.117730 ",
    "quote": "> ",
    "quotes": "> > ",
    "indent": "        ",
    "bar": "  0%|          | 0/70 [00:00<?, ?it/s]",
    "box": "│ ",
    "ansi": "\x1b[31m",
    "lost_escape": "[31m",
    "generated": "您好，我能够帮助您解答",
}
RANKED = {"torchrun", "default", "mpi", "sagemaker", "rank_is", "vllm"}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes(prefix: str) -> None:
    for slug, record in SAMPLE[::2]:
        lines = [cuda(record, thread) for thread in (3, 4, 9)] + TRACE.splitlines()
        text = "starting\n" + "".join(PREFIXES[prefix] + line + "\n" for line in lines)
        report = explain_text(text)
        cause = report.cause
        assert accepted(slug, record, report, prefix) is None
        assert cause is not None
        assert (cause.line, cause.count) == (2, 3), record
        assert cause.rank == (3 if prefix in RANKED else None)


def hard_wrapped(text: str, width: int) -> str:
    return "\n".join(line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width))


def word_wrapped(text: str, width: int) -> str:
    import textwrap

    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap.fill(line) for line in text.split("\n"))


def padded(text: str, width: int) -> str:
    return "\n".join(line.ljust(width) for line in word_wrapped(text, width).split("\n"))


@pytest.mark.parametrize("width", [60, 80, 100, 118, 132, 150])
@pytest.mark.parametrize("wrap", [hard_wrapped, word_wrapped, padded])
@pytest.mark.parametrize("render", [cuda, old_signature, windows])
def test_wraps(render: Callable[..., str], wrap: Callable[[str, int], str], width: int) -> None:
    for slug, record in SAMPLE[::4]:
        text = "epoch 1 loss 0.5\n" + wrap("\n".join(render(record, thread) for thread in (3, 4)) + "\n" + TRACE, width)
        report = explain_text(text)
        assert accepted(slug, record, report, f"{wrap.__name__} {width}") is None, text
        cause = report.cause
        assert cause is not None
        assert cause.line == 2, text
        assert sum(each.count for each in report.diagnoses if each.extra["kind"] == "assertion") == 2, text


MANGLES: dict[str, Callable[[str], str]] = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "no_backquotes": lambda text: text.replace("`", ""),
    "straight_quotes": lambda text: text.replace("`", "'"),
    "curly_quotes": lambda text: text.replace("`", "‘", 1).replace("`", "’").replace('"', "”"),
    "html": lambda text: text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
    "html_code": lambda text: (
        "<pre><code>" + text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", "<br>\n") + "</code></pre>"
    ),
    "bold": lambda text: text.replace("Assertion `", "**Assertion `").replace("failed.", "failed.**"),
    "markdown_escapes": lambda text: text.replace("[", "\\[").replace("]", "\\]").replace("_", "\\_"),
    "one_line": lambda text: " ".join(text.split("\n")),
    "glued": lambda text: text.replace("\n", ""),
    "json": lambda text: "".join(json.dumps({"log": line + "\n", "stream": "stderr"}) + "\n" for line in text.split("\n")),
    "json_whole": lambda text: json.dumps({"severity": "ERROR", "message": text}) + "\n",
    "escaped": lambda text: repr(text) + "\n",
    "python_dict": lambda text: str({"error": "RuntimeError", "errors": text}) + "\n",
    "extra_blanks": lambda text: text.replace(" ", "  "),
    "tabs": lambda text: text.replace(": ", ":\t"),
    "no_dot": lambda text: text.replace("failed.", "failed"),
    "no_path": lambda text: re.sub(r"(?m)^\S*?(?=[\w.\-]+:117: )", "", text),
    "no_break_spaces": lambda text: text.replace(" ", "\xa0"),
    "zero_width": lambda text: text.replace(": ", ":\u200b \ufeff"),
    "carriage": lambda text: "\rEpoch 1: 10%\rEpoch 1: 20%\r" + text,
    "nul": lambda text: "\0\0" + text,
    "utf8_garbage": lambda text: "\udcff\udcfe " + text,
    "indented": lambda text: "".join("      " + line + "\n" for line in text.split("\n")),
}


@pytest.mark.parametrize("mangle", MANGLES)
def test_mangled(mangle: str) -> None:
    for slug, record in SAMPLE[::2]:
        text = MANGLES[mangle]("\n".join(cuda(record, thread) for thread in (3, 4)) + "\n" + TRACE)
        report = explain_text(text)
        assert accepted(slug, record, report, mangle) is None, text
        assert sum(each.count for each in report.diagnoses if each.extra["kind"] == "assertion") == 2, text


@pytest.mark.parametrize("seed", range(12))
def test_cut_at_either_end_is_never_a_wrong_hazard(seed: int) -> None:
    """A cut line gives the hazard, or an honest answer; never another hazard."""
    rng = random.Random(seed)
    for slug, record in rng.sample(SAMPLE, 25):
        line = cuda(record)
        start = rng.randrange(0, line.index("Assertion"))
        end = rng.randrange(line.index("Assertion") + 12, len(line) + 1)
        report = explain_text(line[start:end] + "\n" + TRACE)
        if accepted(slug, record, report, "cut") is not None:
            assert report.verdict in ("device-assert-unlocated", "unknown", "user-device-assert"), (
                line[start:end],
                report.verdict,
                slug,
            )
            assert report.restart_required is True


@pytest.mark.parametrize("seed", range(8))
def test_interleaved_with_other_output(seed: int) -> None:
    rng = random.Random(seed)
    noise = [
        "epoch 3 step 1200 loss 2.31",
        "INFO saved checkpoint",
        "  0%|      | 0/10",
        "index built: 12000 rows",
        "[W socket.cpp:663] retry",
    ]
    for slug, record in rng.sample(SAMPLE, 15):
        lines = [cuda(record, thread) for thread in range(4)]
        for _ in range(6):
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(noise))
        report = explain_text("\n".join(lines) + "\n" + TRACE)
        assert accepted(slug, record, report, "interleaved") is None, lines
        assert sum(each.count for each in report.diagnoses if each.extra["kind"] == "assertion") == 4
