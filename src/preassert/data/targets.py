"""Tells what each target is (a table, a label layout) and checks it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from preassert.data import formats
from preassert.data.formats import hf
from preassert.data.layouts import LAYOUTS, check_of, coco, imagefolder, pictures, voc, yolo
from preassert.data.layouts.pictures import pictures_below as _below
from preassert.data.rules import Report, Rule, tidy
from preassert.data.scan import Options, Scan
from preassert.data.source import Source, expand_all, is_remote, walk
from preassert.data.wording import compare_class_names, unreadable
from preassert.errors import InputError, UsageError

_SHARDS = frozenset(formats.TABLES) - {".json"}  # beside them JSON files are descriptions
_IMAGES = re.compile(r"(?i)(?:.*[_-])?(?:images?|imgs?|jpegimages|img_dir|inputs?|frames?|photos?|pictures?|rgb)")
_CHECKPOINT = (
    "config.json",
    "adapter_config.json",
    "model_index.json",
    "modules.json",
    "model.safetensors",
    "pytorch_model.bin",
    "tokenizer.json",
    "tokenizer_config.json",
)


def check_targets(paths: Sequence[str], rules: Sequence[Rule], options: Options, kind: str | None = None) -> Report:
    """Check files and folders, each as what it is; tables and label layouts may be mixed.

    Args:
        paths: as :func:`preassert.data.scan.check_paths` takes them.
        rules: one for each column; layouts without columns use the first.
        options: how to read.
        kind: a name of ``LAYOUTS``, or ``"table"``, where the look of a target misleads. None: look.

    Raises:
        UsageError: nothing matches, a target is nothing known, or a column is missing everywhere.
    """
    if kind not in (None, "table", *LAYOUTS):
        raise UsageError(f"--as {kind}: one of {', '.join(['table', *LAYOUTS])} is expected")
    scan = Scan(rules, options)
    tables = False
    for scan.asked, target in expand_all(paths):
        for layout, place in _parts(target, rules, kind):
            if layout is None:
                tables = True
                scan.folder(place) if _is_folder(place) else scan.file(place)
                continue
            try:
                scan.report.extend(check_of(layout)(place, rules[0], options))
            except InputError as error:
                scan.report.findings.append(unreadable(error.file, error.reason))
    report = scan.finish()
    report.findings.extend(compare_class_names(report.scanned.pop("class_names", {})))
    folders = list(report.scanned.pop("class_folders", {}).items())
    for other in folders[1:]:
        imagefolder.compare(report, other[0], folders[0], other)
    report.findings = tidy(report.findings)
    if not tables and not report.scanned["rows"]:
        del report.scanned["rows"]
    return report


def _is_folder(path: str) -> bool:
    return not is_remote(path) and os.path.isdir(path)


def _parts(path: str, rules: Sequence[Rule], kind: str | None) -> list[tuple[str | None, str]]:
    """(layout or None for a table, path) of what a target consists of."""
    if kind is not None:
        return [(None if kind == "table" else kind, path)]
    if is_remote(path) or any(rule.column is not None for rule in rules):
        return [(None, path)]
    if not os.path.isdir(path):
        return [(layout_of_file(path), path)]
    return _parts_of_folder(path, rules[0])


def layout_of_file(path: str) -> str | None:
    """The layout that one file belongs to, None for tables."""
    suffix = Source(path).suffix
    if suffix in (".yaml", ".yml"):
        if yolo.is_description(path):
            return "yolo"
        raise UsageError(f"{path}: a YAML file without nc and names")
    if suffix == ".xml":
        return "voc"
    if pictures.is_picture(path):
        return "masks"
    if suffix == ".json" and coco.looks_like_coco(path):
        return "coco"
    return None


def _parts_of_folder(path: str, rule: Rule) -> list[tuple[str | None, str]]:
    if hf.is_dataset(path):
        return [(None, path)]
    if yolo.description_in(path) is not None:
        return [("yolo", path)]
    segmentation = os.path.join(path, "SegmentationClass")
    if rule.names is None and rule.bounded and os.path.isdir(segmentation):
        return [("masks", segmentation)]
    if voc.looks_like_annotations(voc.annotation_files(path)):
        return [("voc", path)]
    files = walk(path).files
    suffixes = [Source(file).suffix for file in files]
    has_shards = not _SHARDS.isdisjoint(suffixes)
    documents = [file for file, suffix in zip(files, suffixes, strict=True) if suffix == ".json"]
    if documents and not has_shards and all(map(coco.looks_like_coco, documents)):
        return [("coco", file) for file in documents]
    masks = _mask_folder(path)
    if masks is not None:
        return [("masks", masks)]
    if not has_shards and yolo.looks_like_labels(path, files):
        return [("yolo", path)]
    return [(_picture_layout(path, has_shards), path)]


def _mask_folder(path: str) -> str | None:
    """Where the masks are, if folders for masks say so: the only one in ``path``, or ``path`` with several or in its splits."""
    names = pictures.subfolders(path)
    # "mask" and "no_mask" are classes of photographs; beside a folder "images" a folder "masks" is what it says.
    beside_images = any(map(_IMAGES.fullmatch, names))
    folders = [os.path.join(path, name) for name in names if pictures.is_mask_folder(name)]
    folders = [folder for folder in folders if any(beside_images or not pictures.is_photo(file) for file in _below(folder))]
    if folders:
        return folders[0] if len(folders) == 1 else path
    splits = [folder for folder in imagefolder.splits_of(path).values() if folder != path]
    return path if any(map(_mask_folder, splits)) else None


def _picture_layout(path: str, has_shards: bool) -> str | None:
    """Masks or ImageFolder, by where the pictures lie; None without pictures, or where a table (``has_shards``) lists them."""
    if pictures.has_pictures(path):
        return None if pictures.has_photos_only(path) and has_shards else "masks"
    splits = list(imagefolder.splits_of(path).values())
    classes = {name for split in splits for name in pictures.subfolders(split) if _has_pictures_below(os.path.join(split, name))}
    if len(classes) < 2 and has_shards:
        return None
    if classes:
        return "masks" if pictures.is_mask_folder(path) else "imagefolder"
    return "masks" if any(map(pictures.has_pictures, splits)) else None


def _has_pictures_below(folder: str) -> bool:
    return any(True for _ in _below(folder))


def is_checkpoint(path: str) -> bool:
    """Whether a folder holds a model of `transformers` or an adapter of `peft`."""
    if not _is_folder(path) or hf.is_dataset(path):
        return False
    names = os.listdir(path)
    return any(name in names for name in _CHECKPOINT) or any(
        name.endswith((".safetensors.index.json", ".bin.index.json")) for name in names
    )
