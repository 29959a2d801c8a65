"""ImageFolder: the name of a folder is the class, its position among the sorted folders the id (torchvision)."""

from __future__ import annotations

import os

from preassert.data.layouts.pictures import SPLITS, has_pictures, pictures_below, subfolders
from preassert.data.rules import Report, Rule
from preassert.data.scan import Options
from preassert.data.wording import note
from preassert.errors import UsageError
from preassert.model import Finding, Where


def splits_of(path: str) -> dict[str, str]:
    """Split -> folder: the sub-folders if all that hold pictures are named like splits, else the folder itself as ``""``."""
    names = [name for name in subfolders(path) if name.lower() in SPLITS]
    return {name: os.path.join(path, name) for name in names} if names else {"": path}


def check(path: str, rule: Rule, options: Options) -> Report:
    """Compare the class folders of the splits with each other, and with the classes that the caller gave.

    Raises:
        UsageError: no folders of pictures.
    """
    splits = splits_of(path)
    classes = {split: subfolders(folder) for split, folder in splits.items()}
    if not any(classes.values()):
        raise UsageError(f"{path}: no folders of pictures in it")
    report = Report(scanned={"files": 0})
    for split in [split for split, names in classes.items() if not names and has_pictures(splits[split])]:
        report.findings.append(note(splits[split], "pictures without class folders: they have no labels; not checked"))
        del splits[split], classes[split]
    report.scanned["classes"] = {split or ".": names for split, names in classes.items()}
    if list(splits) == [""]:
        report.scanned["class_folders"] = {path: classes[""]}
    reference = next((split for split in classes if split.lower().startswith("train")), next(iter(classes)))
    for split, folder in splits.items():
        if split != reference:
            compare(report, path, (reference, classes[reference]), (split, classes[split]))
        _against_rule(report, folder, classes[split], rule)
        counts = {name: sum(1 for _ in pictures_below(os.path.join(folder, name))) for name in classes[split]}
        report.scanned["files"] += sum(counts.values())
        report.scanned.setdefault("columns", {})[split or "."] = {
            "histogram": [[name, count] for name, count in counts.items()],
            "empty_classes": [name for name, count in counts.items() if not count],
        }
        for name, count in counts.items():
            if not count:
                report.findings.append(note(os.path.join(folder, name), "a class folder without a picture", severity="warning"))
        if options.progress:
            options.progress(folder, report.scanned["files"], None)
    return report


def compare(report: Report, path: str, reference: tuple[str, list[str]], other: tuple[str, list[str]]) -> None:
    """One finding when two splits number their classes differently."""
    (known_split, known), (split, names) = reference, other
    extra = [name for name in names if name not in known]
    lacking = [name for name in known if name not in names]
    if not extra and not lacking:
        return
    shifted = [name for name in names if name in known and names.index(name) != known.index(name)]
    moves = ", ".join(f"{name}={names.index(name)} (in {known_split} {known.index(name)})" for name in shifted[:5])
    parts = []
    if extra:
        parts.append(f"{split} has {_names(extra)}, which {known_split} lacks")
    if lacking:
        parts.append(f"{split} lacks {_names(lacking)}")
    if moves:
        parts.append(f"so ids move: in {split} {moves}")
    if extra and len(names) > len(known):
        parts.append(f"ids of {split} run to {len(names) - 1}, a model built for {known_split} ends at {len(known) - 1}")
    values = tuple(extra or lacking)
    report.findings.append(
        Finding(
            hazard="target-out-of-range",
            severity="error" if extra or shifted else "warning",  # without its last folders a split numbers the others alike
            where=Where(file=path),
            message="; ".join(parts),
            value=values[0],
            values=values,
            valid=f"the {len(known)} class folders of {known_split}",
            count=len(values),
            fix=f"make the class folders of all splits the same, or take class_to_idx of {known_split} for {split} too",
            extra={"split": split, "reference": known_split},
        )
    )


def _against_rule(report: Report, folder: str, names: list[str], rule: Rule) -> None:
    """One finding when there are more folders than classes, or folders that the class list does not name."""
    if rule.names is not None:
        wrong: list[str | int] = [name for name in names if name not in rule.names]
        message = f"{_names(wrong)}: not in the class list" if wrong else ""
    else:
        lowest, highest = rule.limits()
        wrong = [at for at in range(len(names)) if (highest is not None and at > highest) or (lowest is not None and at < lowest)]
        shown = ", ".join(f"{names[at]}={at}" for at in wrong[:5] if isinstance(at, int))
        message = f"{len(names)} class folders give ids 0..{len(names) - 1}: {shown} outside {rule.valid}" if wrong else ""
    if wrong:
        report.findings.append(
            Finding(
                hazard="target-out-of-range",
                severity="error",
                where=Where(file=folder),
                message=message,
                value=wrong[0],
                values=tuple(wrong),
                valid=rule.valid,
                count=len(wrong),
                fix="remove the folders that are no classes (hidden ones count too), or widen the model's head",
            )
        )


def _names(names: list[str] | list[str | int]) -> str:
    return ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
