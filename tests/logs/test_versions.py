# ruff: noqa: E501 - a printed line stands here as one line
"""Which releases print a line: the packed table equals the record it was made from."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from preassert.logs import explain_text, versions

HERE = Path(__file__).parent
RECORDS = [json.loads(line) for line in (HERE / "lines.jsonl").read_text(encoding="utf-8").splitlines()]
EXACT = {(record["file"], record["line"], record["assertion"], record["version"]) for record in RECORDS}


def test_the_packed_table_is_up_to_date() -> None:
    path = HERE.parents[1] / "tools" / "build_printed_lines.py"
    spec = importlib.util.spec_from_file_location("build_printed_lines", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.TARGET.read_text(encoding="utf-8") == tool.render(HERE / "lines.jsonl"), "run tools/build_printed_lines.py"


def test_every_recorded_line_gives_its_release() -> None:
    for file, line, expression, release in EXACT:
        assert release in versions.releases(file, line, {"".join(expression.split())})


def test_no_release_that_is_not_recorded() -> None:
    for file, line, expression in {key[:3] for key in EXACT}:
        found = versions.releases(file, line, {"".join(expression.split())})
        assert set(found) == {
            version for f, n, e, version in EXACT if (f, n, "".join(e.split())) == (file, line, "".join(expression.split()))
        }


def test_unrecorded_lines_give_nothing() -> None:
    assert versions.releases("Loss.cu", 1, {"t>=0&&t<n_classes"}) == ()
    assert versions.releases("Mine.cu", 106, {"t>=0&&t<n_classes"}) == ()


@pytest.mark.parametrize("release", versions.sampled())
def test_release_is_told_from_the_printed_line(release: str) -> None:
    record = next(each for each in RECORDS if each["version"] == release and "n_classes" in each["assertion"])
    text = f"{record['path_prefix']}{record['file']}:{record['line']}: {record['kernels'][0]}: block: [0,0,0], thread: [1,0,0] Assertion `{record['assertion']}` failed.\n"
    report = explain_text(text)
    assert report.verdict == "target-out-of-range"
    assert release in report.extra["torch_versions"]


def test_windows_prints_no_kernel_but_the_line_tells_it() -> None:
    text = "C:\\cb\\pytorch_1000000000000\\work\\aten\\src\\ATen\\native\\cuda\\Loss.cu:{}: block: [0,0,0], thread: [1,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
    rows = {
        (each["line"], tuple(each["kernels"]))
        for each in RECORDS
        if each["file"] == "Loss.cu" and each["assertion"] == "t >= 0 && t < n_classes"
    }
    assert rows
    for line, kernels in rows:
        cause = explain_text(text.format(line)).cause
        assert cause is not None
        same_line = {kernel for number, names in rows if number == line for kernel in names}
        if len(same_line) == 1:
            assert cause.extra["kernel"] == kernels[0]
            assert cause.operator == ("aten::nll_loss_backward" if "backward" in kernels[0] else "aten::nll_loss_forward")
