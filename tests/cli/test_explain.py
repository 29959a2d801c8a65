# ruff: noqa: E501 - a printed line stands here as one line
"""``preassert explain``: arguments, output forms, exit codes."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from preassert.cli import main

LOGS = Path(__file__).parents[1] / "cases" / "logs"
MASKS = str(LOGS / "078-masks-first-image.log")
HEALTHY = str(LOGS / "026-healthy-gpu-training.log")
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eRuntimeError<script>alert(1)</script>\n"
    "/pytorch/aten/src/ATen/native/cuda/NLLLoss2d.cu:95: nll_loss2d_forward_kernel: block: [0,0,0], thread: [826,0,0] Assertion `t >= 0 && t < n_classes` failed.\x1b[31m\x07\x00\x85\n"
    '  File "/home/u/<img src=x onerror=alert(2)>\x1b[0m.py", line 3, in <module>\n    loss("\x07")\n'
    "RuntimeError: CUDA error: device-side assert triggered\x1b[0m\n"
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["explain", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")  # the report is as wide as the terminal


def test_text_report_says_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, MASKS)
    assert code == 1
    for words in (
        "target-out-of-range:",
        "line 7:",
        "Assertion `t >= 0 && t < n_classes` failed",
        "9 such lines; at least 9 bad elements",
        "operator aten::nll_loss2d_forward; argument target",
        "of 23 releases on record, 1.12.1, 2.0.1, 2.1.2 print this file and line",
        "Restart: required",
        "Most likely causes, in order",
        "How to confirm",
        "Fixes",
        "Ruled out",
        "Depends on",
        "$ preassert run train.py",
        "CUDA_LAUNCH_BLOCKING=1 python train.py",
        "Next: preassert hazards target-out-of-range",
    ):
        assert words in out, words
    first = out.splitlines()[:14]
    assert any(line.strip().startswith("Restart: required") for line in first), "verdict, evidence and restart are seen at once"
    assert max(map(len, out.splitlines())) <= 150


def test_torch_use_cuda_dsa_is_explained_where_the_log_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = "released builds ignore it"
    assert words in " ".join(run(capsys, str(LOGS / "135-pad-32000.log"))[1].split())
    assert words not in " ".join(run(capsys, str(LOGS / "079-randperm-no-file.log"))[1].split())


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, MASKS, "--json")
    report = json.loads(out)
    assert code == 1
    assert (report["schema"], report["verdict"], report["restart_required"]) == (
        "preassert.explain/1",
        "target-out-of-range",
        True,
    )
    cause = report["diagnoses"][0]
    fields = (
        "hazard",
        "role",
        "line",
        "rank",
        "count",
        "operator",
        "argument",
        "valid",
        "elements",
        "evidence",
        "causes",
        "fixes",
    )
    assert [field for field in fields if field not in cause] == []
    assert (cause["role"], cause["line"], cause["rank"], cause["count"]) == ("cause", 7, None, 9)
    assert report["torch_versions"] == ["1.12.1", "2.0.1", "2.1.2"]
    assert out.isascii()


def test_clean_and_unknown_exit_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, HEALTHY)
    assert (code, out) == (0, "clean: no failure in this text\n  8 lines read\n")
    code, out, _ = run(capsys, str(LOGS / "035-pandas-iloc.log"))
    assert code == 0
    assert out.startswith("unknown:")


def test_a_device_assertion_that_is_not_on_record_is_no_success(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(
        "/pytorch/aten/src/ATen/native/cuda/New.cu:8: k: block: [0,0,0], thread: [3,0,0] Assertion `a_b_c >= 0` failed.\n",
        encoding="utf-8",
    )
    code, out, _ = run(capsys, str(path))
    assert code == 1
    assert out.startswith("unknown:")
    assert "not on record" in out
    assert "Restart: required" in out


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(Path(MASKS).read_bytes())

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", Stdin())
    code, out, _ = run(capsys)
    assert code == 1
    assert out.startswith("target-out-of-range:")


def test_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run(capsys, "no-such.log")
    assert (code, err) == (2, "preassert explain: no-such.log: no such file\n")
    code, _, err = run(capsys, MASKS, "--shape", "8,x")
    assert code == 2
    assert "--shape needs positive sizes such as 8,512, not '8,x'" in err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    code, _, err = run(capsys)
    assert code == 2
    assert "name a log file" in err


def test_shape_turns_ids_into_coordinates(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, MASKS, "--shape", "8,32,32")[1]
    assert "target[2, 2, 0]" in out


def test_verbose_shows_echoes_and_what_it_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(LOGS / "133-wheelhouse-two-endings.log")
    assert "Not to be confused" not in run(capsys, path)[1]
    assert "Not to be confused" in run(capsys, path, "-v")[1]


def test_html_is_one_file_and_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "evil.log"
    log.write_bytes(HOSTILE.encode("utf-8", "surrogateescape"))
    page = tmp_path / "report.html"
    code, out, _ = run(capsys, str(log), "--html", str(page))
    assert (code, out) == (1, "")
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r"<[^<>]*(?:src|href)=", text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "target-out-of-range" in text
    assert not (tmp_path / "report.html.part").exists()


def test_html_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, MASKS, "--html", str(tmp_path / "no" / "report.html"))
    assert code == 2
    assert "cannot write" in err


def test_no_control_character_reaches_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "evil.log"
    log.write_bytes(HOSTILE.encode("utf-8", "surrogateescape"))
    for arguments in ((), ("-v",), ("--json",), ("--github",)):
        code, out, _ = run(capsys, str(log), *arguments)
        assert code == 1
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out), arguments


def test_github_annotation(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, MASKS, "--github")
    assert code == 1
    assert out.startswith("::error file=/home/user/project/train.py,line=116,title=preassert%3A target-out-of-range::")
    assert out.count("\n") == 1
    assert run(capsys, HEALTHY, "--github")[1] == ""


def test_several_files_name_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, HEALTHY, MASKS)
    assert f"{MASKS} line 7:" in out


def test_broken_pipe_and_ascii_terminals_are_no_crash() -> None:
    command = f"{sys.executable} -m preassert explain {MASKS} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("target-out-of-range:")
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "preassert", "explain", str(LOGS / "023-chat-answer-mixed-cjk.log")],
        capture_output=True, text=True, timeout=60, check=False, env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.isascii()
