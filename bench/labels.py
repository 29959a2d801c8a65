"""``LabelMap`` and ``remap`` against their rivals in the same process. Noisy on a shared machine: the best of several is taken.

python bench/labels.py          # full sizes, about a minute
"""

from __future__ import annotations

import csv
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from preassert import LabelMap
from preassert.remap import Job, Options, run

REPEATS = 5


def _times(ours: Callable[[], Any], rival: Callable[[], Any]) -> tuple[float, float]:
    """Best seconds of each, taken in turn so that a busy moment meets both."""
    best = [float("inf"), float("inf")]
    for _ in range(REPEATS):
        for which, call in enumerate((ours, rival)):
            start = time.perf_counter()
            call()
            best[which] = min(best[which], time.perf_counter() - start)
    return best[0], best[1]


def _row(name: str, ours: Callable[[], Any], rival: Callable[[], Any], goal: float | None) -> dict[str, Any]:
    value, other = _times(ours, rival)
    return {"name": name, "value": value, "rival": other, "ratio": value / other, "goal": goal}


def _ints(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    rows = []
    for kind, ids in (("0..999", np.arange(1000)), ("sparse 40-bit ids", np.sort(random.choice(2**40, 1000, replace=False)))):
        labels = random.choice(ids, count)
        fitted = LabelMap().fit(ids)
        assert np.array_equal(fitted.transform(labels[:1000]), np.searchsorted(ids, labels[:1000]))
        name = f"transform {count:,} int64, 1,000 classes ({kind}) / pandas factorize"
        rows.append(_row(name, lambda: fitted.transform(labels), lambda: pd.factorize(labels), 1.0))  # noqa: B023
    return rows


def _texts(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    listed = [f"class_{i}" for i in random.integers(0, 1000, count)]
    column = pa.array(listed)
    fitted = LabelMap().fit(column)
    name = f"transform {count:,} strings"
    return [
        _row(f"{name} (Arrow) / dictionary_encode", lambda: fitted.transform(column), column.dictionary_encode, 1.2),
        _row(
            f"{name} (list) / pa.array(list).dictionary_encode",
            lambda: fitted.transform(listed),
            lambda: pa.array(listed).dictionary_encode(),
            1.2,
        ),
    ]


def _csv(count: int) -> list[dict[str, Any]]:
    """The whole of a run, two passes and fsync, against reading and writing the same rows with the csv module."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "d.csv"
        with open(source, "w", newline="") as file:
            file.write("id,text,label\n")
            file.writelines(f'{i},"some text, quoted",name{i % 997}\n' for i in range(count))

        def ours() -> None:
            out = Path(folder) / "o.csv"
            run(Job([source], out, map_path=Path(folder) / "m.json", options=Options(column="label")))
            out.unlink()
            (Path(folder) / "m.json").unlink()

        def rival() -> None:
            with open(source, newline="") as file, open(Path(folder) / "r.csv", "w", newline="") as out:
                codes = {name: i for i, name in enumerate(sorted({row[2] for row in csv.reader(file)}))}
                file.seek(0)
                csv.writer(out).writerows([a, b, codes[c]] for a, b, c in csv.reader(file))

        return [_row(f"remap of a CSV of {count:,} rows / the same with the csv module", ours, rival, None)]


def measure(scale: float = 1.0) -> list[dict[str, Any]]:
    return [*_ints(int(20_000_000 * scale)), *_texts(int(2_000_000 * scale)), *_csv(int(300_000 * scale))]


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
