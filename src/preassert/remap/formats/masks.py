"""Mask PNGs: the pixels change, every other chunk of the file (palette, transparency, text, resolution) is copied."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preassert.data.layouts.pictures import mask_files
from preassert.data.source import reading
from preassert.errors import InputError, UsageError
from preassert.lazy import need
from preassert.remap.atomic import copy_or_link
from preassert.remap.recode import Options, Recoder, Tally

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PIXEL_LIMIT = 1 << 29  # per mask; refused before anything is allocated
_GRAY, _PALETTE = 0, 3
_KINDS = {2: "RGB", 4: "grey with alpha", 6: "RGB with alpha"}


@dataclass(slots=True)
class _Png:
    chunks: list[tuple[bytes, bytes]]
    width: int
    height: int
    depth: int
    kind: int

    @property
    def colours(self) -> int:
        return next((len(data) // 3 for name, data in self.chunks if name == b"PLTE"), 0)


def _files(path: Path) -> list[Path]:
    """The masks of a folder, as ``check`` tells them from other pictures."""
    return [Path(file) for file in mask_files(str(path))[0] if file.endswith(".png")] if path.is_dir() else [path]


def _parse(path: Path) -> _Png:
    with reading(str(path)):
        data = path.read_bytes()
    if not data.startswith(SIGNATURE):
        raise InputError(str(path), "not a PNG file")
    chunks = []
    position = len(SIGNATURE)
    while position + 12 <= len(data):
        size, name = struct.unpack_from(">I4s", data, position)
        if position + 12 + size > len(data):
            raise InputError(str(path), "cut off")
        chunks.append((name, data[position + 8 : position + 8 + size]))
        position += 12 + size
        if name == b"IEND":
            break
    if not chunks or chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13 or chunks[-1][0] != b"IEND":
        raise InputError(str(path), "a damaged PNG file")
    width, height, depth, kind = struct.unpack_from(">IIBB", chunks[0][1])
    if kind not in (_GRAY, _PALETTE):
        raise InputError(
            str(path), f"a mask has one channel of class ids, and this PNG is {_KINDS.get(kind, 'of an unknown kind')}"
        )
    if width * height > PIXEL_LIMIT:
        raise InputError(str(path), f"{width} x {height} pixels; more than {PIXEL_LIMIT:,} are not read")
    if any(name == b"acTL" for name, _ in chunks):
        raise InputError(str(path), "an animated PNG")
    return _Png(chunks, width, height, depth, kind)


def _pixels(path: Path) -> Any:
    """Class ids as Pillow (and with it torchvision) reads them: palette indices, 0 and 1 of one-bit masks, grey values."""
    import numpy as np

    image = need("PIL.Image", extra="data", purpose="rewrite mask PNGs")
    with reading(str(path)), image.open(path) as opened:
        pixels = np.asarray(opened)
    return pixels.astype(np.uint8) if pixels.dtype == bool else pixels


def survey(path: Path, options: Options, tally: Tally) -> None:
    import numpy as np

    for file in _files(path):
        _parse(file)
        pixels = _pixels(file)
        counts = np.bincount(pixels.ravel())
        present = np.flatnonzero(counts)
        for label in present.tolist():
            tally.add(label, int(counts[label]))
        if present[-1] == 255:
            tally.note("value 255 occurs: if it means border or unlabelled, pass --ignore-index 255; else it is a class")
        options.advance(file.stat().st_size)


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    if recoder.labels.unknown == "drop" and not recoder.inverse:
        raise UsageError("--unknown drop: a pixel cannot be left out of a mask")
    if not path.is_dir():
        _rewrite_one(path, target, recoder)
        options.advance(path.stat().st_size)
        return
    files = _files(path)
    for file in files:
        new = target / file.relative_to(path)
        new.parent.mkdir(parents=True, exist_ok=True)
        _rewrite_one(file, new, recoder)
        options.advance(file.stat().st_size)
    for file in sorted(set(path.rglob("*")) - set(files)):
        if file.is_file():
            copy_or_link(file, target / file.relative_to(path), link=options.link)


def _rewrite_one(path: Path, target: Path, recoder: Recoder) -> None:
    import numpy as np

    png = _parse(path)
    pixels = _pixels(path)
    new, _ = recoder.array(pixels.ravel(), lambda position: f"{path} pixel {divmod(position, png.width)} (row, column)")
    if recoder.failed:
        return
    if new.dtype == object:
        raise InputError(str(path), "a mask holds numbers, and this map has names (or a class of other labels)")
    low, high = int(new.min()), int(new.max())
    depth = png.depth if png.kind == _PALETTE or png.depth in (1, 8, 16) else 8  # Pillow spreads 2 and 4 bits of grey over 0..255
    while high >= 1 << depth and depth < 8:
        depth = 8
    if low < 0 or high >= 1 << depth:
        bad = low if low < 0 else high
        raise UsageError(f"{path}: {bad} does not fit a mask of {depth} bits; for ignored pixels pass --ignore-index 255")
    if png.kind == _PALETTE and high >= png.colours:
        raise UsageError(f"{path}: class {high} has no colour, the palette has {png.colours}")
    target.write_bytes(_encode(png, new.astype(np.int64).reshape(png.height, png.width), depth))


def _encode(png: _Png, pixels: Any, depth: int) -> bytes:
    import numpy as np

    if depth == 16:
        rows = pixels.astype(">u2").view(np.uint8).reshape(png.height, -1)
    elif depth == 8:
        rows = pixels.astype(np.uint8)
    else:
        per_byte = 8 // depth
        padded = np.zeros((png.height, -(-png.width // per_byte) * per_byte), np.uint8)
        padded[:, : png.width] = pixels
        shifts = np.arange(8 - depth, -1, -depth, dtype=np.uint8)
        rows = np.bitwise_or.reduce(padded.reshape(png.height, -1, per_byte) << shifts, axis=2).astype(np.uint8)
    lines = np.zeros((png.height, rows.shape[1] + 1), np.uint8)  # filter type 0 before each row: ids are not gradients
    lines[:, 1:] = rows
    packed = zlib.compress(lines.tobytes(), 6)
    header = png.chunks[0][1]
    out = [SIGNATURE, _chunk(b"IHDR", header[:8] + bytes([depth]) + header[9:12] + b"\0")]  # not interlaced
    written = False
    for name, data in png.chunks[1:]:
        if name != b"IDAT":
            out.append(_chunk(name, data))
        elif not written:
            out.append(_chunk(name, packed))
            written = True
    return b"".join(out)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
