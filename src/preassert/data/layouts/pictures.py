"""Finding picture files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from operator import methodcaller

# torchvision.datasets.folder.IMG_EXTENSIONS, and what YOLO and segmentation data sets add.
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".jp2", ".heic", ".dng", ".mpo")
)
SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"))
# Folders that hold masks in the data sets of the field; below them, sub-folders are scenes or splits, not classes. (Not
# SegmentationObject of VOC: its values number objects.)
_MASK_FOLDER = re.compile(
    r"(?:masks?|labels?|annotations?|segmentation|segmentationclass|ann_dir|gt|gtcoarse|gtfine|ground_truth)"
    r"|(?:train|val|valid|test)[_-]?(?:annot|masks?|labels?|annotations?)"
)
# Cityscapes keeps several pictures of one scene: the ids to train on, the ids as annotated, colours, instances.
_CITYSCAPES = ("_labelTrainIds.png", "_labelIds.png")


def is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def subfolders(folder: str) -> list[str]:
    """Names of the folders in ``folder``, sorted, hidden ones included: torchvision counts them as classes too."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def is_photo(name: str) -> bool:
    """Whether a picture is a JPEG, which does not keep ids."""
    return name.lower().endswith((".jpg", ".jpeg"))


def has_pictures(folder: str) -> bool:
    """Whether a picture lies directly in ``folder``."""
    with os.scandir(folder) as entries:
        return any(is_picture(entry.name) for entry in entries)


def has_photos_only(folder: str) -> bool:
    """Whether no picture directly in ``folder`` can be a mask."""
    with os.scandir(folder) as entries:
        return all(is_photo(entry.name) for entry in entries if is_picture(entry.name))


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


def is_mask_folder(path: str) -> bool:
    """Whether a folder is named as those are that hold masks."""
    return _MASK_FOLDER.fullmatch(os.path.basename(os.path.abspath(path)).lower()) is not None


def mask_files(folder: str) -> tuple[list[str], int]:
    """The masks below ``folder``, sorted, and how many other pictures lie there: what the masks were drawn on, or drawings.

    Where some pictures lie in folders for masks, the others are none. JPEG does not keep ids: beside other formats it is
    no mask. Of the pictures that Cityscapes has of a scene, one is the mask.
    """
    every = list(pictures_below(folder))
    tests: list[Callable[[str], bool]] = [lambda file: not is_photo(file)]
    if not is_mask_folder(folder):
        inside = cache(lambda parent: any(map(is_mask_folder, os.path.relpath(parent, folder).split(os.sep))))
        tests.append(lambda file: inside(os.path.dirname(file)))
    tests += [methodcaller("endswith", ending) for ending in _CITYSCAPES]
    masks = every
    for test in tests:
        masks = list(filter(test, masks)) or masks
    return masks, len(every) - len(masks)
