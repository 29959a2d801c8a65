"""Saving and restoring variables, and snapshots, without a kernel."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from preassert.errors import InputError, UsageError
from preassert.notebook import rescue
from preassert.notebook.snapshot import Snapshots, to_host


class Stubborn:
    """Can be pickled and not loaded."""

    def __reduce__(self) -> Any:
        return (_refuse, ())


def _refuse() -> None:
    raise OSError("no such device")


def round_trip(folder: Path, variables: dict[str, Any], **settings: Any) -> tuple[dict[str, Any], rescue.Report]:
    rescue.save(folder, variables, [], context_is_dead=False, **settings)
    found: dict[str, Any] = {}
    return found, rescue.restore(folder, found)[0]


def test_what_is_shared_is_shared_again(tmp_path: Path) -> None:
    rows = [1]
    net = torch.nn.Linear(2, 2)
    table = {"rows": rows}
    found, _ = round_trip(
        tmp_path, {"rows": rows, "table": table, "net": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "n": 3}
    )
    assert found["table"]["rows"] is found["rows"]
    assert found["optimizer"].param_groups[0]["params"][0] is found["net"].weight
    assert found["n"] == 3


def test_one_bad_value_does_not_take_others_with_it(tmp_path: Path) -> None:
    found, report = round_trip(tmp_path, {"before": [1], "lock": threading.Lock(), "stubborn": Stubborn(), "after": {2}})
    assert found == {"before": [1], "after": {2}}
    assert report.lost["lock"].startswith("TypeError: cannot pickle")
    assert report.lost["stubborn"] == "OSError: no such device"
    assert report.unloaded == ["stubborn"]  # a folder that still has something is kept


def test_only_those_that_share_are_one_group(tmp_path: Path) -> None:
    shared = [1]
    _, report = round_trip(tmp_path, {"free": [1], "held": shared, "stubborn": (Stubborn(), shared)})
    assert report.values == ["free"]
    assert set(report.lost) == {"held", "stubborn"}


def test_too_large_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescue, "_SPARE_BYTES", 1 << 60)
    report = rescue.save(tmp_path, {"x": [1]}, [], context_is_dead=False)
    assert "more than is free" in report.lost["x"]


def test_a_tensor_of_a_dead_device_is_not_touched(tmp_path: Path) -> None:
    class Dead(torch.Tensor):
        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("cuda")

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError("touched")

    deep = {"layers": [torch.ones(2).as_subclass(Dead)]}
    report = rescue.save(tmp_path, {"deep": deep, "fine": torch.ones(2)}, [], context_is_dead=True)
    assert report.lost == {"deep": "it holds a tensor on the GPU, and the CUDA context is dead"}
    assert report.values == ["fine"]


@pytest.mark.parametrize("text", [None, "", "[]", '{"schema": "other/1"}'])
def test_a_folder_that_is_none_of_ours(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="saved variables"):
        rescue.restore(tmp_path, {})


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = rescue.make_folder()
    try:
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        folder.rmdir()


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("def f():\n    return 1", "f"),
        ("x = 1\n@decorated\n@twice(2)\nclass C:\n    pass\ny = 2", "C"),
        ("async def g(): pass", "g"),
        ("double = lambda x: 2 * x", "double"),
        ("P = namedtuple('P', 'a b')", "P"),
        ("E = enum.Enum('E', 'A B')", "E"),
        ("model = build()", None),
        ("if True:\n    def f(): pass", None),
        ("def broken(:", None),
    ],
)
def test_definitions_of_cells(cell: str, name: str | None) -> None:
    found = rescue._definitions([cell])
    assert list(found) == ([] if name is None else [name])
    if name == "C":
        assert found["C"][1] == "@decorated\n@twice(2)\nclass C:\n    pass\n"


def test_the_newest_definition_counts() -> None:
    assert rescue._definitions(["def f(): return 1", "def f(): return 2"])["f"][1] == "def f(): return 2"


def test_snapshots_are_copies_and_keep_the_last_good_one() -> None:
    net = torch.nn.BatchNorm1d(2)
    snapshots = Snapshots()
    snapshots.watch({"model": "net"}, {"net": net})
    snapshots.take({"net": net}, 1)
    with torch.no_grad():
        net.weight.fill_(5.0)
    with pytest.raises(KeyError):
        snapshots.take({}, 2)
    assert snapshots.cell == 1
    assert snapshots.load({"net": net}) == ["net"]
    assert net.weight.tolist() == [1.0, 1.0]


def test_to_host_keeps_what_is_no_tensor() -> None:
    state = {"step": 3, "nested": [{"x": torch.ones(1)}], "pair": (torch.ones(1), None), "name": "adam"}
    copy = to_host(state)
    assert copy == state
    assert copy["nested"][0]["x"] is not state["nested"][0]["x"]  # type: ignore[index]


def test_loading_names_the_missing_variable() -> None:
    snapshots = Snapshots()
    snapshots.watch({"model": "net"}, {"net": torch.nn.Linear(1, 1)})
    snapshots.take({"net": torch.nn.Linear(1, 1)}, 1)
    with pytest.raises(UsageError, match="builds net first"):
        snapshots.load({})
