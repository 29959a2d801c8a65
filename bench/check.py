"""``preassert check`` against its rivals: duckdb ``min``/``max`` on Parquet, ``json.load`` on COCO, Pillow on masks.

``python bench/check.py [--rows N] [--coco-mb N] [--masks N]`` prints one line a measurement. Times are the best of five or more,
memory is the peak of a fresh process beyond its imports. The files are made first, in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from preassert.data.rules import Report, Rule
from preassert.data.scan import Options, check_paths
from preassert.data.targets import check_targets

REPEATS = 5  # at least
SHORTEST_S = 1.0


def alternate(rival: Callable[[], Any], work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the fastest run of each; they take turns, so that a busy moment of the machine meets both.

    What takes a millisecond is run more often: five of those are over before the machine has come to rest.
    """
    times: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    while len(times[0]) < REPEATS or time.perf_counter() - began < SHORTEST_S:
        for kept, run in zip(times, (rival, work), strict=True):
            start = time.perf_counter()
            run()
            kept.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def clean(report: Report) -> Report:
    """The report, which must hold no error: a check that reads nothing would be fast as well."""
    assert not [finding for finding in report.findings if finding.severity == "error"]
    return report


def record(name: str, value: float, rival: float, goal: float, unit: str) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 4),
        "rival": round(rival, 4),
        "ratio": round(value / rival, 3),
        "goal": goal,
        "unit": unit,
    }


# -- Parquet -----------------------------------------------------------------------------------------------------------


def write_labels(path: Path, rows: int, *, statistics: bool, last: int) -> None:
    """``rows`` labels 0..999 in row groups of a million; the last label is ``last``."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    schema = pa.schema([("label", pa.int64())])
    with pq.ParquetWriter(path, schema, write_statistics=statistics) as writer:
        for start in range(0, rows, 1_000_000):
            labels = rng.integers(0, 1000, min(1_000_000, rows - start))
            if start + len(labels) == rows:
                labels[-1] = last
            writer.write_table(pa.table({"label": labels}), row_group_size=1_000_000)


def parquet(folder: Path, rows: int) -> Iterator[dict[str, Any]]:
    import duckdb

    rule = Rule("label", 0, 999)
    for statistics, said in ((True, "with"), (False, "without")):
        path = folder / f"labels_{said}.parquet"
        write_labels(path, rows, statistics=statistics, last=0)
        connection = duckdb.connect()
        query = f"select min(label), max(label) from read_parquet('{path}')"
        rival, value = alternate(
            lambda: connection.execute(query).fetchall(),  # noqa: B023 - called here
            lambda: clean(check_paths([str(path)], [rule])),  # noqa: B023 - called here
        )
        yield record(f"check Parquet, {rows:,} rows {said} statistics / duckdb min, max", value, rival, 1.1, "s")
        bad = folder / f"bad_{said}.parquet"
        write_labels(bad, rows, statistics=statistics, last=1000)
        start = time.perf_counter()
        report = check_paths([str(bad)], [rule])
        elapsed = time.perf_counter() - start
        assert report.findings[0].where.rows == (rows,)
        yield record(f"... the same with a bad last row, exact row found, {said} statistics", elapsed, rival, float("inf"), "s")


# -- COCO --------------------------------------------------------------------------------------------------------------


def write_coco(path: Path, size_mb: int) -> None:
    """A COCO file with polygons, as instances_train2017.json has them."""
    rng = random.Random(0)
    with open(path, "w") as stream:
        stream.write('{"info": {}, "images": [')
        stream.write(
            ", ".join(json.dumps({"id": i, "file_name": f"{i:012d}.jpg", "width": 640, "height": 480}) for i in range(20_000))
        )
        stream.write('], "annotations": [')
        polygons = [json.dumps([round(rng.uniform(0, 640), 2) for _ in range(rng.randrange(12, 80))]) for _ in range(200)]
        number = 0
        while stream.tell() < size_mb << 20:
            comma = ", " if number else ""
            stream.write(f'{comma}{{"segmentation": [{polygons[number % 200]}], "area": 702.1057, "iscrowd": 0, ')
            stream.write(f'"image_id": {number % 20_000}, "bbox": [473.07, 395.93, 38.65, 28.67], ')
            stream.write(f'"category_id": {number % 80}, "id": {number}}}')
            number += 1
        stream.write('], "categories": [' + ", ".join(json.dumps({"id": i, "name": f"c{i}"}) for i in range(80)) + "]}")


# VmHWM, not ru_maxrss: the latter starts a process with the peak of its parent.
_PEAK = """
def peak_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""
_PROBE = (
    _PEAK
    + """
import json, sys, time
from preassert.data.targets import check_targets
from preassert.data.layouts import coco
from preassert.data.rules import Rule
from preassert.data.scan import Options
import msgspec
base = peak_kib()
start = time.perf_counter()
if sys.argv[1] == "rival":
    with open(sys.argv[2]) as stream:
        document = json.load(stream)
else:
    report = check_targets([sys.argv[2]], [Rule(lowest=0, highest=79)], Options())
    assert not [f for f in report.findings if f.severity == "error"] and report.scanned["rows"]
elapsed = time.perf_counter() - start
print(elapsed, peak_kib() - base)
"""
)


def probe(which: str, path: Path) -> tuple[float, float]:
    """(seconds, MiB) of one fresh process, the best of two."""
    answers = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", _PROBE, which, str(path)], capture_output=True, text=True, check=True)
        answers.append([float(word) for word in done.stdout.split()])
    return min(answer[0] for answer in answers), min(answer[1] for answer in answers) / 1024


def coco(folder: Path, size_mb: int) -> Iterator[dict[str, Any]]:
    path = folder / "instances.json"
    write_coco(path, size_mb)
    rival_s, rival_mb = probe("rival", path)
    value_s, value_mb = probe("check", path)
    yield record(f"check COCO of {size_mb} MB / json.load, time", value_s, rival_s, 0.5, "s")
    yield record(f"check COCO of {size_mb} MB / json.load, peak memory", value_mb, rival_mb, 0.3, "MiB")


# -- masks -------------------------------------------------------------------------------------------------------------


def write_masks(folder: Path, count: int) -> None:
    """Palette-free masks of 1024x1024 with regions of 21 classes and a 255 border, like those of a segmentation data set."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    y, x = np.mgrid[:1024, :1024]
    folder.mkdir()
    for at in range(count):
        ids = np.kron(rng.integers(0, 21, (8, 8)), np.ones((128, 128))).astype(np.uint8)
        for _ in range(6):
            cy, cx, radius = rng.integers(0, 1024, 3)
            distance = np.hypot(y - cy, x - cx)
            ids[distance < radius / 4] = rng.integers(0, 21)
            ids[np.abs(distance - radius / 4) < 3] = 255
        Image.fromarray(ids).save(folder / f"{at:05d}.png")


def masks(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    from PIL import Image

    write_masks(folder / "masks", count)
    files = sorted(map(str, (folder / "masks").iterdir()))

    def decode(file: str) -> None:
        with Image.open(file) as image:
            image.load()

    def decode_all() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(decode, files))

    rule = Rule(lowest=0, highest=20, ignore=(255,))
    rival, value = alternate(decode_all, lambda: clean(check_targets([str(folder / "masks")], [rule], Options())))
    yield record(f"check {count} mask PNGs of 1024x1024 / decoding them with Pillow on all cores", value, rival, 1.15, "s")


# -- memory ------------------------------------------------------------------------------------------------------------

_CSV_PROBE = (
    _PEAK
    + """
import sys
from preassert.data.rules import Rule
from preassert.data.scan import check_paths
report = check_paths([sys.argv[1]], [Rule("label", 0, 9)])
print(report.scanned["rows"], peak_kib())
"""
)


def csv_memory(folder: Path, size_mb: int) -> Iterator[dict[str, Any]]:
    """Peak memory must not grow with the file: a file eight times as large is the rival."""
    peaks = []
    row = b"an image of some size and a longer text,%d\n"
    for megabytes in (size_mb // 8, size_mb):
        path = folder / f"{megabytes}.csv"
        block = b"".join(row % (at % 10) for at in range(25_000))
        with open(path, "wb") as stream:
            stream.write(b"text,label\n")
            for _ in range((megabytes << 20) // len(block)):
                stream.write(block)
        done = subprocess.run([sys.executable, "-c", _CSV_PROBE, str(path)], capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout.split()[1]) / 1024)
        path.unlink()
    yield record(f"check CSV of {size_mb} MB / of {size_mb // 8} MB, peak memory", peaks[1], peaks[0], 1.2, "MiB")


def measure(rows: int = 100_000_000, coco_mb: int = 400, mask_count: int = 120, csv_mb: int = 800) -> list[dict[str, Any]]:
    """All measurements; ``goal`` is the largest ratio that is wanted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [*parquet(folder, rows), *coco(folder, coco_mb), *masks(folder, mask_count), *csv_memory(folder, csv_mb)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--coco-mb", type=int, default=400)
    parser.add_argument("--masks", type=int, default=120)
    parser.add_argument("--csv-mb", type=int, default=800)
    given = parser.parse_args()
    for entry in measure(given.rows, given.coco_mb, given.masks, given.csv_mb):
        print(json.dumps(entry))


if __name__ == "__main__":
    main()
