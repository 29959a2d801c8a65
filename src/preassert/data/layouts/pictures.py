"""Finding picture files."""

from __future__ import annotations

import os
from collections.abc import Iterator

# torchvision.datasets.folder.IMG_EXTENSIONS, and what YOLO and segmentation data sets add.
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".jp2", ".heic", ".dng", ".mpo")
)
SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"))


def is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def subfolders(folder: str) -> list[str]:
    """Names of the folders in ``folder``, sorted, hidden ones included: torchvision counts them as classes too."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def has_pictures(folder: str) -> bool:
    """Whether a picture lies directly in ``folder``."""
    with os.scandir(folder) as entries:
        return any(is_picture(entry.name) for entry in entries)


def pictures_below(folder: str) -> Iterator[str]:
    """Paths of all pictures below ``folder``, sorted within each folder; a link back to a folder above is not followed."""
    seen = {os.path.realpath(folder)}
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        kept = []
        for name in folders:
            real = os.path.realpath(os.path.join(parent, name))
            if real not in seen:
                seen.add(real)
                kept.append(name)
        folders[:] = kept
        for name in sorted(files):
            if is_picture(name) and not name.startswith("."):
                yield os.path.join(parent, name)
