"""Shapes are read from headers, pickles and indexes; damaged and hostile files are refused with their reason."""

from __future__ import annotations

import collections
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from preassert.data.checkpoints import check
from preassert.data.checkpoints.pickled import read_shapes
from preassert.data.checkpoints.weights import read_safetensors, read_weights
from preassert.errors import InputError


def header(content: Any, data: bytes = b"", claimed: int | None = None) -> bytes:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(raw) if claimed is None else claimed) + raw + data


def entry(shape: Any = (2, 3), begin: int = 0, end: int = 24, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_sound_header(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(header({"__metadata__": {"format": "pt"}, "a.weight": entry()}, bytes(24)))
    tensors = read_safetensors(str(path))
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()} == {"a.weight": ("F32", (2, 3))}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too short"),
        (b"\x01\x02", "too short"),
        (header({}, claimed=1 << 62), "claims 4,611,686,018,427,387,904 bytes"),
        (header({}, claimed=5000), "truncated: its header has 5,000 bytes"),
        (header(b"{not json"), "not JSON"),
        (header(b"\xff\xfe\xff"), "not JSON"),
        (header(b"[" * 100_000), "not JSON"),
        (header([]), "not a JSON object"),
        (header({"a": entry()}, bytes(23)), "truncated: tensor 'a' ends at byte 24"),
        (header({"a": entry(shape=[2, 4])}, bytes(24)), "does not fill its 24 bytes"),
        (header({"a": entry(shape=[-2, -3])}, bytes(24)), "malformed"),
        (header({"a": entry(shape=[True, 6])}, bytes(24)), "malformed"),
        (header({"a": entry(begin=24, end=0)}, bytes(24)), "malformed"),
        (header({"a": {"dtype": "F32"}}), "malformed"),
        (header({"a": 7}), "malformed"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
    ],
)
def test_a_damaged_header(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError) as raised:
        read_safetensors(str(path))
    assert reason in raised.value.reason
    assert raised.value.file == str(path)


def test_the_safetensors_library_agrees(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    library = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    arrays = {"x": numpy.zeros((4, 0, 2), numpy.float16), "y": numpy.ones((3,), numpy.int64), "z": numpy.zeros((), numpy.uint8)}
    library.save_file(arrays, str(path))
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in read_safetensors(str(path)).items()}
    assert found == {"x": ("F16", (4, 0, 2)), "y": ("I64", (3,)), "z": ("U8", ())}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_pickled_state_dicts(legacy: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "pytorch_model.bin"
    table = torch.nn.Parameter(torch.zeros(5, 4, dtype=torch.bfloat16))
    state = collections.OrderedDict(
        {"wte.weight": table, "view": torch.arange(12).reshape(3, 4)[:, 1:3], "half": torch.zeros(2, dtype=torch.float16)}
    )
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    shapes = read_shapes(str(path))
    assert {name: (kept.dtype, kept.shape) for name, kept in shapes.items()} == {
        "wte.weight": ("BF16", (5, 4)),
        "view": ("I64", (3, 2)),
        "half": ("F16", (2,)),
    }


def test_a_trainer_s_wrapping_is_looked_through(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    torch.save({"epoch": 3, "state_dict": {"w": torch.zeros(2, 2)}, "when": torch.device("cpu"), "kind": torch.float32}, path)
    assert read_shapes(str(path))["w"].shape == (2, 2)


def zipped(data: bytes, name: str = "archive/data.pkl") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return out.getvalue()


class Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("wrap", [zipped, bytes], ids=["zip", "plain"])
def test_a_pickle_that_runs_something_is_refused(wrap: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(wrap(pickle.dumps({"w": Runs(str(made))}, protocol=2)))
    with pytest.raises(InputError, match=r"asks for (posix|nt)\.mkdir"):
        read_shapes(str(path))
    assert not made.exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not written by torch.save"),
        (b"hello", "not written by torch.save"),
        (zipped(b"", name="other"), "without data.pkl"),
        (zipped(pickle.dumps({}))[:-30], "zip archive"),
        (zipped(pickle.dumps({"a": 1})[:-4]), "truncated or damaged pickle"),
        (zipped(b"\x80\x02r\xff\xff\xff\x7f."), "damaged"),  # LONG_BINPUT: a memo of 2**31 entries
        (zipped(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 50) + b"."), "damaged pickle"),  # BINBYTES8 of a petabyte
        (zipped(pickle.dumps({"a": 1})), "holds no tensors"),
        (zipped(pickle.dumps([1])), "holds no tensors"),
        (zipped(bytes(65 << 20)), "larger than"),  # 65 MB of zeros in 64 kB
    ],
)
def test_a_damaged_pickle(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(data)
    with pytest.raises(InputError) as raised:
        read_shapes(str(path))
    assert reason in raised.value.reason


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_safetensors_are_preferred_to_bin(bert: Path) -> None:
    (bert / "pytorch_model.bin").write_bytes(b"not read")
    weights = read_weights(str(bert), names_of(bert))
    assert [os.path.basename(file) for file in weights.files] == ["model.safetensors"]
    assert weights.findings == []


def sharded(folder: Path, write: Any, placed: dict[str, str], held: dict[str, dict[str, tuple[int, ...]]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for shard, shapes in held.items():
        write(folder / shard, shapes)
    return folder


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("placed", "held", "messages"),
    [
        ({"a": ONE, "b": TWO}, {ONE: {"a": (1,)}, TWO: {"b": (1,)}}, []),
        ({"a": ONE, "b": TWO}, {ONE: {"a": (1,)}}, [f"names {TWO}, which is not in the folder (1 tensors)"]),
        ({"a": ONE, "b": TWO}, {ONE: {"a": (1,)}, TWO: {"c": (1,)}}, [f"{TWO} does not hold b, listed for it"]),
        ({"a": "../secret.safetensors"}, {}, ["not a file name"]),
    ],
)
def test_indexes(placed: Any, held: Any, messages: list[str], tmp_path: Path, write_safetensors: Any) -> None:
    folder = sharded(tmp_path / "m", write_safetensors, placed, held)
    findings = check(str(folder)).findings
    assert [(f.hazard, f.severity, os.path.basename(f.where.file)) for f in findings] == [
        (None, "error", "model.safetensors.index.json") for _ in messages
    ]
    assert all(message in finding.message for message, finding in zip(messages, findings, strict=True))


def test_a_broken_shard_does_not_hide_the_others(tmp_path: Path, write_safetensors: Any) -> None:
    placed = {"lm_head.weight": ONE, "model.embed_tokens.weight": TWO}
    folder = sharded(tmp_path / "m", write_safetensors, placed, {TWO: {"model.embed_tokens.weight": (10, 4)}})
    (folder / ONE).write_bytes(b"junk")
    report = check(str(folder))
    assert [(f.hazard, os.path.basename(f.where.file)) for f in report.findings] == [(None, ONE)]
    assert report.scanned["checkpoint"][0]["limits"]["tokens"]["size"] == 10


def test_shards_without_an_index(tmp_path: Path, write_safetensors: Any) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    write_safetensors(tmp_path / ONE, {"a": (1,)})
    (finding,) = check(str(tmp_path)).findings
    assert (finding.hazard, finding.message) == (
        None,
        "1 of 2 shards and no index file (*.index.json) that says which tensor is where",
    )


@pytest.mark.parametrize("content", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, []])
def test_an_index_without_a_map(content: Any, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(content), encoding="utf-8")
    (finding,) = check(str(tmp_path)).findings
    assert finding.hazard is None
    assert finding.severity == "error"


def test_links_that_lead_nowhere_and_pipes_are_passed_over(bert: Path) -> None:
    os.symlink("adapter_config.json", bert / "adapter_config.json")
    os.symlink("..", bert / "loop")
    os.mkfifo(bert / "tokenizer_config.json")
    assert check(str(bert)).findings == []


def test_bin_checkpoints_are_read_without_torch(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    shapes = {name: tensor.shape for name, tensor in read_safetensors(str(bert / "model.safetensors")).items()}
    (bert / "model.safetensors").unlink()
    torch.save({name: torch.zeros(shape) for name, shape in shapes.items()}, bert / "pytorch_model.bin")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    report = check(str(bert))
    assert report.findings == []
    assert report.scanned["checkpoint"][0]["limits"]["classes"]["size"] == 3
