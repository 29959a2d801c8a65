"""Segmentation masks: the value of a pixel is its class id."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from preassert.data.fixes import remap_command
from preassert.data.layouts.pictures import mask_files
from preassert.data.rules import Report, Rule
from preassert.data.scan import Options
from preassert.data.source import reading
from preassert.data.tally import MAX_VALUES, Plain
from preassert.data.wording import class_counts, note, unreadable, values_in_words
from preassert.errors import InputError, UsageError
from preassert.lazy import need
from preassert.model import Finding, Where

# Counting the classes costs half as much as decoding; unasked it is done up to this many pixels in all.
HISTOGRAM_PIXELS = 16_000_000
_WINDOW = 256  # masks in flight
_PIECE = 1 << 18  # pixels
_ID_MODES = ("1", "L", "P", "I", "F")  # and I;16, I;16B ...: one channel of numbers


@dataclass(slots=True)
class _Mask:
    """What one mask holds."""

    path: str
    pixels: int = 0
    colour: str | None = None  # Pillow's mode, where it is a colour picture
    low: int | float = 0  # lowest value, where the mask is not simply clean
    bad: dict[Plain, int] = field(default_factory=dict)
    first: tuple[int, int] | None = None  # column, line of the first offending pixel
    histogram: dict[int, int] | None = None
    unreadable: str | None = None


def check(path: str, rule: Rule, options: Options) -> Report:
    """Check one mask or all masks below a folder. One finding for each file with offending pixels.

    Raises:
        UsageError: no number of classes was given, or there are no pictures.
    """
    if not rule.bounded:
        raise UsageError(f"{path}: masks: how many classes are there? Give --classes N")
    files, others = mask_files(path) if os.path.isdir(path) else ([path], 0)
    if not files:
        raise UsageError(f"{path}: no pictures in it")
    report = Report(scanned={"files": len(files), "pixels": 0})
    if others:
        report.findings.append(note(path, f"not checked: {others:,} pictures beside the masks"))
    counted = _few_pixels(files) if options.histogram is None else options.histogram
    histogram: dict[int | str, int] | None = {} if counted else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on metadata and size; what it refuses is an exception
        _check_all(report, path, files, rule, histogram, options)
    _summarise(report, path, rule, histogram)
    return report


def _check_all(
    report: Report, path: str, files: list[str], rule: Rule, histogram: dict[int | str, int] | None, options: Options
) -> None:
    for done, mask in enumerate(_masks(files, rule, histogram is not None), start=1):
        report.scanned["pixels"] += mask.pixels
        report.findings.extend(_findings(mask, rule, path))
        for value, count in (mask.histogram or {}).items():
            if histogram is not None:
                histogram[value] = histogram.get(value, 0) + count
        if options.progress:
            options.progress(mask.path, done, len(files))


def _masks(files: list[str], rule: Rule, histogram: bool) -> Iterator[_Mask]:
    """The masks in order, decoded by all cores (Pillow decodes outside the interpreter lock)."""
    waiting = iter(files)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        while batch := list(islice(waiting, _WINDOW)):
            yield from pool.map(lambda file: _look(file, rule, histogram), batch)


def _few_pixels(files: list[str]) -> bool:
    """Whether a histogram over all masks is cheap, judged by the size of the first that can be opened."""
    pillow = need("PIL.Image", extra="data", purpose="check masks")
    for file in files[:8]:
        try:
            with reading(file), pillow.open(file) as image:
                return bool(image.width * image.height * len(files) <= HISTOGRAM_PIXELS)
        except InputError:
            continue
    return True


def _look(path: str, rule: Rule, histogram: bool) -> _Mask:
    """Decode one mask, all pages of a TIFF, and count what breaks the rule."""
    pillow = need("PIL.Image", extra="data", purpose="check masks")
    mask = _Mask(path, histogram={} if histogram else None)
    try:
        with reading(path), pillow.open(path) as image:
            for page in range(image.n_frames if image.format == "TIFF" else 1):
                if page:
                    image.seek(page)
                _judge(mask, image, rule)
    except InputError as error:
        mask.unreadable = error.reason
    return mask


def _judge(mask: _Mask, image: Any, rule: Rule) -> None:
    """Add one decoded page to ``mask``."""
    import numpy as np

    if image.mode not in _ID_MODES and not image.mode.startswith("I;16"):
        image.load()
        mask.colour = image.mode
        mask.pixels += image.width * image.height
        return
    values = _pixels(image)
    if not values.size:
        return
    seen = mask.pixels
    mask.pixels += values.size
    if mask.histogram is None and values.dtype.kind in "iu" and _all_legal(values, rule):
        return
    low, high = values.min().item(), values.max().item()
    mask.low = min(mask.low, low) if seen else low
    pairs = _value_counts(values, low, high)
    offending = [(value, count) for value, count in pairs if not _is_legal(value, rule)]
    if mask.histogram is not None:
        for value, count in pairs:
            if float(value).is_integer():
                mask.histogram[int(value)] = mask.histogram.get(int(value), 0) + count
    if offending and mask.first is None:
        at = int(np.argmax(np.isin(values.reshape(-1), [value for value, _ in offending])))
        mask.first = (at % values.shape[1], at // values.shape[1])
    for value, count in offending:
        plain = _plain(value)
        mask.bad[plain] = mask.bad.get(plain, 0) + count


def _pixels(image: Any) -> Any:
    """The ids of a decoded one-channel picture, (height, width); a view into Pillow's memory where it lends it."""
    import numpy as np

    image.load()
    if image.mode == "1":
        # Pillow keeps a set bit as the byte 255: through mode L and a comparison it becomes 1.
        return (np.asarray(image.convert("L")) != 0).view(np.uint8)
    if hasattr(image, "__arrow_c_array__") and image.mode in ("L", "P"):
        pa = need("pyarrow", extra="data", purpose="check masks")
        try:
            return pa.array(image).to_numpy().reshape(image.height, image.width)
        except ValueError:  # a picture of more than one block of memory (16 MB)
            pass
    return np.asarray(image)


def _all_legal(values: Any, rule: Rule) -> bool:
    """Whether all pixels, whole numbers, are in the range or ignored. Looks at pieces that stay in the cache."""
    import numpy as np

    lowest, highest = rule.limits()
    info = np.iinfo(values.dtype)
    floor = None if lowest is None or lowest <= info.min else lowest
    ceiling = None if highest is None or highest >= info.max else highest
    if (info.min if floor is None else floor) > (info.max if ceiling is None else ceiling):
        return False
    ignored = {value for value in rule.ignore if info.min <= value <= info.max and not rule.covers(value, value)}
    flat = values.reshape(-1)
    pieces = (flat[at : at + _PIECE] for at in range(0, flat.size, _PIECE))
    if values.dtype.kind == "u":
        first, last, apart = floor or 0, info.max if ceiling is None else ceiling, set(ignored)
        while (before := first - 1 if first else info.max) in apart:
            apart.remove(before)
            first = before
        if not apart:
            # 255 stands before 0 where bytes wrap: the legal ids are neighbours, and one subtraction puts them below all others.
            shifted, width = np.empty(min(flat.size, _PIECE), values.dtype), (last - first) % (info.max + 1)
            return all(np.subtract(piece, values.dtype.type(first), out=shifted[: piece.size]).max() <= width for piece in pieces)
    for piece in pieces:
        illegal = 0
        if ceiling is not None and piece.max() > ceiling:
            illegal += int(np.count_nonzero(piece > ceiling))
        if floor is not None and piece.min() < floor:
            illegal += int(np.count_nonzero(piece < floor))
        if illegal and illegal != sum(int(np.count_nonzero(piece == value)) for value in ignored):
            return False
    return True


def _value_counts(values: Any, low: int | float, high: int | float) -> list[tuple[int | float, int]]:
    import numpy as np

    flat = values.reshape(-1)
    if values.dtype == np.uint8:
        # Two pixels at once: numpy counts 16-bit numbers six times as fast as twice as many bytes.
        pairs = np.bincount(flat[: flat.size // 2 * 2].view(np.uint16), minlength=1 << 16).reshape(256, 256)
        counts = pairs.sum(0) + pairs.sum(1)
        if flat.size % 2:
            counts[flat[-1]] += 1
        base: int | float = 0
    elif values.dtype.kind in "iu" and high - low < 1 << 16:
        base = low
        counts = np.bincount(flat.astype(np.int64) - base)
    else:
        distinct, amounts = np.unique(values, return_counts=True)
        return list(zip(distinct.tolist(), amounts.tolist(), strict=True))
    present = np.flatnonzero(counts)
    return list(zip((present + base).tolist(), counts[present].tolist(), strict=True))


def _is_legal(value: int | float, rule: Rule) -> bool:
    if value != value or not float(value).is_integer():
        return False
    return rule.covers(int(value), int(value)) or int(value) in rule.ignore


def _plain(value: int | float) -> Plain:
    if isinstance(value, float):
        return None if value != value else int(value) if value.is_integer() else value
    return value


def _findings(mask: _Mask, rule: Rule, target: str) -> Iterator[Finding]:
    if mask.unreadable is not None:
        yield unreadable(mask.path, mask.unreadable)
    elif mask.colour is not None:
        yield Finding(
            hazard=rule.hazard,
            severity="error",
            where=Where(file=mask.path),
            message=f"a colour picture ({mask.colour}) where class ids are expected: read as ids its channels hold 0..255",
            valid=rule.valid,
            fix="save the ids as one channel: Image.fromarray(ids.astype('uint8')), mode 'L' or 'P'",
        )
    elif mask.bad:
        count = sum(mask.bad.values())
        at = f"; first at pixel x={mask.first[0]}, y={mask.first[1]}" if mask.first else ""
        values = tuple(islice(mask.bad, MAX_VALUES))
        noun = "pixels is" if count == 1 else "pixels are"
        likely, fix = _advice(mask, rule, target)
        yield Finding(
            hazard=rule.hazard,
            severity="error",
            where=Where(file=mask.path),
            message=f"{count:,} of {mask.pixels:,} {noun} outside {rule.valid}: {values_in_words(mask.bad, False)}{at}{likely}",
            value=values[0],
            values=values,
            valid=rule.valid,
            count=count,
            fix=fix,
        )


def _advice(mask: _Mask, rule: Rule, target: str) -> tuple[str, str]:
    """(likely cause, fix); masks are renumbered by one map for the whole ``target``"""
    highest = rule.limits()[1]
    if set(mask.bad) == {255}:
        if highest == 1 and mask.low in (0, 255):
            return (
                "; likely: black and white, 0 and 255 instead of 0 and 1",
                "mask = (mask > 127).astype('uint8'), or save with mode '1'",
            )
        return "; likely: 255 marks border or unlabelled pixels", "ignore_index=255 in the loss, and --ignore-index 255 here"
    if highest is not None and set(mask.bad) == {highest + 1} and mask.low >= 1:
        return "; likely: ids start at 1", "subtract 1 from the masks, or build the model with one more class"
    present = set(mask.bad if mask.histogram is None else mask.histogram).difference(rule.ignore)
    too_many = highest is not None and len(present) > highest + 1
    if too_many or rule.limits()[0] != 0 or not mask.path.lower().endswith(".png"):
        return "", "correct the masks, or build the model with as many classes"
    return "", f"correct the masks, or renumber their ids: {remap_command(target, ignored=rule.ignore)}"


def _summarise(report: Report, path: str, rule: Rule, histogram: dict[int | str, int] | None) -> None:
    counts, remark = class_counts(rule, histogram)
    report.scanned["columns"] = {"pixel": {"pixels": report.scanned["pixels"], "valid": rule.valid, **counts}}
    if remark:
        report.findings.append(note(path, remark))
