# ruff: noqa: E501 - a printed line stands here as one line
"""Opening logs: compression, encodings, notebooks, damage; and the passages of large logs."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preassert.errors import InputError
from preassert.logs import expand, explain_files, explain_text
from preassert.logs import scan as scanning
from preassert.logs.diagnose import diagnose, read
from preassert.logs.reading import open_stream
from preassert.logs.scan import scan

LINE = "../aten/src/ATen/native/cuda/NLLLoss2d.cu:103: nll_loss2d_forward_kernel: block: [3,0,0], thread: [%d,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
LOG = "epoch 1\n" + LINE % 5 + LINE % 6 + "RuntimeError: CUDA error: device-side assert triggered\n"


def zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    packed: bytes = zstandard.ZstdCompressor().compress(data)
    return packed


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": zstd}


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train.log.{suffix}"
    path.write_bytes(PACKERS[suffix](LOG.encode()))
    report = explain_files([str(path)])
    cause = report.cause
    assert cause is not None
    assert (report.verdict, cause.line, cause.count) == ("target-out-of-range", 2, 2)
    assert report.extra["notes"] == []


@pytest.mark.parametrize("suffix", PACKERS)
def test_cut_in_the_middle(tmp_path: Path, suffix: str) -> None:
    """A run that died may leave a compressed log without its end."""
    noise = "".join(f"step {number} loss {number * 0.37 % 3:.6f}\n" for number in range(15_000))
    packed = PACKERS[suffix]((LOG + noise).encode())
    path = tmp_path / f"train.log.{suffix}"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    report = explain_files([str(path)])
    if suffix == "bz2":  # one block of 900 KB or nothing
        assert report.verdict in ("target-out-of-range", "clean")
    else:
        assert report.verdict == "target-out-of-range"


def test_two_gzip_members(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(b"epoch 1\n") + gzip.compress(LOG.encode()))
    cause = explain_files([str(path)]).cause
    assert cause is not None
    assert cause.line == 3


def test_a_bomb_is_read_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "bomb.log.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(50):
            file.write(b"\0" * (1 << 20))
        file.write(b"\n" + LOG.encode())
    tracemalloc.start()
    report = explain_files([str(path)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.verdict == "target-out-of-range"
    assert peak < 30 << 20


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(("Epoche für Größe\r\n" + LOG.replace("\n", "\r\n")).encode(encoding))
    cause = explain_files([str(path)]).cause
    assert cause is not None
    assert (cause.hazard, cause.line, cause.count) == ("target-out-of-range", 3, 2)


@pytest.mark.parametrize(
    "data",
    [b"\xff\xfe", b"\xfe\xff\0", b"\0" * 5000, bytes(range(256)) * 40, b"\x1f\x8b\x08\0junk", b"BZhjunk", b"\xfd7zXZ\0junk"],
)
def test_rubbish_is_no_crash(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    assert explain_files([str(path)]).verdict in ("clean", "unknown")


def cell(number: int, *outputs: dict[str, object], source: str = "x") -> dict[str, object]:
    return {"cell_type": "code", "execution_count": number, "metadata": {}, "source": [source], "outputs": list(outputs)}


def failed(value: str, name: str = "RuntimeError") -> dict[str, object]:
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": [f"\x1b[0;31m{name}\x1b[0m: {value}"]}


def stream(text: str) -> dict[str, object]:
    return {"output_type": "stream", "name": "stderr", "text": text.splitlines(keepends=True)}


def notebook(tmp_path: Path, *cells: dict[str, object], name: str = "a.ipynb") -> str:
    path = tmp_path / name
    path.write_text(json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    return str(path)


def test_notebook_first_failure_is_the_cause_and_later_cells_are_echoes(tmp_path: Path) -> None:
    assert_error = "CUDA error: device-side assert triggered"
    path = notebook(
        tmp_path,
        cell(1, {"output_type": "stream", "name": "stdout", "text": ["ready\n"]}),
        cell(2, stream(LINE % 5), failed(assert_error)),
        cell(3, failed(assert_error), source="x = torch.zeros(1).cuda()"),
        cell(4, failed("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")),
    )
    report = explain_files([path])
    cause = report.cause
    assert cause is not None
    assert (report.verdict, cause.line, cause.extra["cell"]) == ("target-out-of-range", None, 2)
    assert [(each.hazard, each.role, each.extra["cell"]) for each in report.diagnoses[1:]] == [
        ("device-assert-unlocated", "echo", 2),
        ("poisoned-context", "echo", 3),
        ("blas-or-dnn-failure", "echo", 4),
    ]


def test_notebook_is_told_by_its_content_too(tmp_path: Path) -> None:
    path = notebook(tmp_path, cell(1, failed("Target 5 is out of bounds.", "IndexError")), name="saved.txt")
    assert explain_files([path]).verdict == "target-out-of-range"


def test_notebook_without_failure(tmp_path: Path) -> None:
    source = "RuntimeError('CUDA error: device-side assert triggered')  # source is not output"
    assert explain_files([notebook(tmp_path, cell(1, source=source))]).verdict == "clean"


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}', '{"cells": [{"outputs": [1]}]}', ""])
def test_broken_notebook_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.ipynb"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"broken\.ipynb: not a Jupyter notebook"):
        explain_files([str(path)])


def test_a_damaged_notebook_of_another_name_is_read_as_text() -> None:
    text = '{"cells": [{"cell_type": "code", broken\n' + LOG
    report = explain_text(text)
    assert report.verdict == "target-out-of-range"
    assert any("looks like a notebook" in note for note in report.extra["notes"])


def test_expand(tmp_path: Path) -> None:
    for name in ("rank_0.log", "rank_1.log", "notes.md"):
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    logs = [str(tmp_path / "rank_0.log"), str(tmp_path / "rank_1.log")]
    assert expand([str(tmp_path / "rank_*.log")]) == logs
    assert expand([str(tmp_path)]) == logs
    assert expand(["-", logs[0]]) == ["-", logs[0]]
    with pytest.raises(InputError, match="no such file"):
        expand([str(tmp_path / "missing.log")])
    with pytest.raises(InputError, match="no file matches"):
        expand([str(tmp_path / "*.xyz")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no log files"):
        expand([str(tmp_path / "empty")])


def test_json_records_of_containers() -> None:
    docker = "".join(
        json.dumps({"log": line, "stream": "stderr", "time": "2025-01-01T00:00:00Z"}) + "\n"
        for line in LOG.splitlines(keepends=True)
    )
    kubernetes = "".join(json.dumps({"kubernetes": {"pod": "a"}, "rank": 7, "message": line}) + "\n" for line in LOG.splitlines())
    cloudwatch = json.dumps({"events": [{"timestamp": 1, "message": line} for line in LOG.splitlines()]}) + "\n"
    google = json.dumps({"severity": "ERROR", "textPayload": LOG}) + "\n"
    for text, line, rank in ((docker, 2, None), (kubernetes, 2, 7), (cloudwatch, 1, None), (google, 1, None)):
        cause = explain_text(text).cause
        assert cause is not None
        assert (cause.hazard, cause.line, cause.count, cause.rank) == ("target-out-of-range", line, 2, rank)


# -------------------------------------------------------------------------------------------------------------- large logs


def large(assertions: int, ordinary: int, before: int = 0) -> Iterator[bytes]:
    """Blocks of an uneven size that end anywhere, of a log with this many lines of each kind."""
    text = io.BytesIO()
    for number in range(before):
        text.write(b"2025-03-02 09:00:31 INFO  epoch 1 step %d loss 2.1180\n" % number)
    for number in range(max(assertions, ordinary)):
        if number < assertions:
            text.write((LINE % (number % 1024)).encode())
        if number < ordinary:
            text.write(b"2025-03-02 09:00:31 INFO  epoch 1 step %d loss 2.1180\n" % number)
    text.write(b'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n')
    text.write(b"RuntimeError: CUDA error: device-side assert triggered\n")
    data = text.getvalue()
    size = 777_777
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize(
    ("assertions", "ordinary", "before"),
    [(70_000, 40_000, 0), (30_000, 150_000, 90_000), (5, 200_000, 0), (0, 120_000, 0), (120_000, 0, 0)],
)
def test_large_log_is_counted_exactly(assertions: int, ordinary: int, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "THOROUGH_BYTES", 1 << 20)
    total = assertions + ordinary + before + 4
    source = open_stream(io.BytesIO(b""), "x.log")
    source.blocks = large(assertions, ordinary, before)
    log = read(source)
    assert log.lines == total
    report = diagnose([log])
    cause = report.cause
    assert cause is not None
    if assertions:
        assert (report.verdict, cause.count, cause.line) == ("target-out-of-range", assertions, before + 1)
        assert [(each.hazard, each.line) for each in report.diagnoses[1:]] == [("device-assert-unlocated", total)]
    else:
        assert (report.verdict, cause.line) == ("device-assert-unlocated", total)


def test_large_log_with_two_assertions_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "THOROUGH_BYTES", 1 << 20)
    other = '[rank1]:../aten/src/ATen/native/cuda/IndexKernel.cu:92: operator(): block: [1,0,0], thread: [2,0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.\n'
    text = ("[rank0]:" + LINE % 3) * 20_000 + other * 20_000
    report = explain_text(text)
    assert [(each.hazard, each.role, each.count) for each in report.diagnoses] == [
        ("target-out-of-range", "cause", 20_000),
        ("index-out-of-range", "echo", 20_000),
    ]


def test_large_log_of_json_records_that_all_differ() -> None:
    records = "".join(
        json.dumps({"log": LINE % (number % 1024), "stream": "stderr", "time": f"2025-01-01T00:00:00.{number:09}Z"}) + "\n"
        for number in range(30_000)
    )
    cause = explain_text(records).cause
    assert cause is not None
    assert (cause.hazard, cause.count) == ("target-out-of-range", 30_000)


def test_memory_stays_bounded() -> None:
    def endless() -> Iterator[bytes]:
        block = (LINE % 7).encode() * 7000
        for _ in range(60):
            yield block

    tracemalloc.start()
    result = scan(endless())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(result.tallies.values()) + sum(len(passage) for passage in result.passages) == 420_000
    assert peak < 60 << 20


def test_words_of_failure_everywhere_stay_bounded() -> None:
    def chatty() -> Iterator[bytes]:
        block = b"Mean Squared Error: 0.1 Traceback Fatal CUDA error none\n" * 18_000
        for _ in range(30):
            yield block

    result = scan(chatty())
    assert result.lines == 30 * 18_000
    assert sum(len(line) for passage in result.passages for _, line in passage) < 16 << 20
    assert any("not looked at closely" in note for note in result.notes)


def test_a_line_without_end_is_cut() -> None:
    def one_line() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * (1 << 20)
        yield b"\n" + LOG.encode()

    source = open_stream(io.BytesIO(b""), "x.log")
    source.blocks = one_line()
    cause = diagnose([read(source)]).cause
    assert cause is not None
    assert (cause.hazard, cause.line) == ("target-out-of-range", 3)


def test_progress_bar_of_a_hundred_thousand_steps() -> None:
    bar = "".join(f"\r{number / 1000:.1f}%|###| {number}/100000" for number in range(100_000))
    cause = explain_text(bar + LOG).cause
    assert cause is not None
    assert cause.line == 2


# ------------------------------------------------------------------------------------------------------------ several files


def test_first_rank_in_time_is_the_cause(tmp_path: Path) -> None:
    first = "2025-03-02 09:00:09 step 7\n" + LINE % 3
    index = '/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:113: operator(): block: [1,0,0], thread: [2,0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.\n'
    (tmp_path / "rank_0.log").write_text(
        "2025-03-02 09:10:00 step 9\n[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: x\n",
        encoding="utf-8",
    )
    (tmp_path / "rank_1.log").write_text("2025-03-02 09:00:41 step 8\n" + index, encoding="utf-8")
    (tmp_path / "rank_2.log").write_text(first, encoding="utf-8")
    report = explain_files(expand([str(tmp_path / "rank_*.log")]))
    cause = report.cause
    assert cause is not None
    assert (report.verdict, cause.rank, cause.line, cause.file) == ("target-out-of-range", 2, 2, str(tmp_path / "rank_2.log"))
    assert {(each.hazard, each.role) for each in report.diagnoses[1:]} == {
        ("index-out-of-range", "echo"),
        ("communication-failure", "echo"),
    }


def test_five_hundred_ranks_share_the_memory(tmp_path: Path) -> None:
    for rank in range(500):
        last = (f"2025-03-02 09:00:{59 - rank % 50:02} step\n" + LINE % 3) if rank == 333 else "fine\n"
        (tmp_path / f"rank_{rank}.log").write_text(
            "2025-03-02 09:00:01 start\n" + "step 1 loss 0.5\n" * 20 + last, encoding="utf-8"
        )
    cause = explain_files(expand([str(tmp_path)])).cause
    assert cause is not None
    assert (cause.hazard, cause.rank) == ("target-out-of-range", 333)
    assert scanning.limits_for(500).small_bytes * 500 < 200 << 20


def test_torchrun_folders_tell_the_rank(tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(LOG if rank == 1 else "fine\n", encoding="utf-8")
    cause = explain_files(expand([str(tmp_path)])).cause
    assert cause is not None
    assert cause.rank == 1
