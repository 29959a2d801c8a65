"""Schema of ``kinds/*.toml``: what is accepted, and what an error says."""

from __future__ import annotations

from pathlib import Path

import pytest

from preassert.errors import InputError
from preassert.hazards import decode
from preassert.hazards.source import catalogue, read

GOOD = """
slug = "a-fault"
title = "something is wrong"
since = "1.0"
restart = "required"
meaning = '''
One line
and its continuation.

A second paragraph.
'''
causes = ["the first", "the second"]
confirm = ['''
    # why
    x = 1
    ''']
fixes = ["correct it"]
sources = ["pytorch/pytorch@v2.13.0:a/b.cu"]

[[printed]]
file = "A.cu"
expression = "x < y"
kernels = ["f"]
operators = ["aten::f"]
argument = "x"
versions = "1.0"
source = "s"

[[host]]
pattern = 'bad \\d+'
example = "RuntimeError: bad 7"
operators = []
"""


def write(folder: Path, text: str, name: str = "a-fault.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_file(tmp_path: Path) -> None:
    hazard = decode(read(write(tmp_path, GOOD)))
    assert hazard.meaning == "One line and its continuation.\n\nA second paragraph."
    assert hazard.confirm == ("# why\nx = 1",)
    assert hazard.until is None
    assert hazard.not_this is None
    assert (hazard.printed[0].operators, hazard.printed[0].valid) == (("aten::f",), None)
    assert (hazard.host[0].pattern, hazard.host[0].argument) == (r"bad \d+", None)


SECOND = """
[[printed]]
file = "{file}"
expression = "{expression}"
kernels = ["f"]
operators = []
versions = "1.0"
source = "s"
"""

FAULTS = {
    # (replace, by, what the error says after the file)
    "not TOML": ('slug = "a-fault"', "slug = ", "not TOML"),
    "missing": ('since = "1.0"\n', "", "since: missing"),
    "unknown key": ('since = "1.0"', 'since = "1.0"\nsinse = "1.0"', "sinse: unknown key"),
    "unknown key of a record": ('argument = "x"', 'arguments = "x"', "printed[0].arguments: unknown key"),
    "missing in a record": ('kernels = ["f"]\n', "", "printed[0].kernels: missing"),
    "missing in a host record": ("operators = []\n", "", "host[0].operators: missing"),
    "slug and name": ('slug = "a-fault"', 'slug = "another"', "slug: 'another' differs from the file name"),
    "not a slug": ('slug = "a-fault"', 'slug = "A Fault"', "slug: 'A Fault' is not a slug"),
    "number": ('since = "1.0"', "since = 1.0", "since: a string is needed, not float"),
    "empty": ('title = "something is wrong"', 'title = " "', "title: empty"),
    "two lines": ('title = "something is wrong"', 'title = "a\\nb"', "title: one line is needed"),
    "restart": ('restart = "required"', 'restart = "yes"', "restart: 'yes' is not one of required, not-required, depends"),
    "no list": ('fixes = ["correct it"]', 'fixes = "correct it"', "fixes: a list is needed, not str"),
    "empty list": ('fixes = ["correct it"]', "fixes = []", "fixes: empty"),
    "item": ('causes = ["the first", "the second"]', 'causes = ["the first", 2]', "causes[1]: a string is needed, not int"),
    "twice": ('causes = ["the first", "the second"]', 'causes = ["a", "a"]', "causes: an item is there twice"),
    "operator": ('operators = ["aten::f"]', 'operators = ["F.f"]', "printed[0].operators[0]: 'F.f' is not an operator name"),
    "pattern": ("pattern = 'bad \\d+'", "pattern = 'bad ('", "host[0].pattern: 'bad (' is not a regular expression"),
    "example": ('example = "RuntimeError: bad 7"', 'example = "good"', "host[0].example: the pattern does not match it"),
    "no table": ("[[host]]", "[host]", "host: a list is needed, not dict"),
    "same record": (
        "[[host]]",
        SECOND.format(file="A.cu", expression="x < y") + "\n[[host]]",
        "printed: A.cu: `x < y` is there twice",
    ),
    "order": (
        "[[host]]",
        SECOND.format(file="A.cu", expression="a < b") + "\n[[host]]",
        "printed: A.cu: `a < b` is out of order",
    ),
}


@pytest.mark.parametrize(("old", "new", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_errors_name_file_and_key(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {says}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        read(tmp_path / "none.toml")


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "a-fault.toml").write_bytes(b'slug = "\xff"')
    with pytest.raises(InputError, match="not TOML"):
        read(tmp_path / "a-fault.toml")


def test_one_assertion_belongs_to_one_hazard(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, GOOD.replace("a-fault", "b-fault"), "b-fault.toml")
    with pytest.raises(InputError, match=r"b-fault\.toml: printed: A\.cu: `x < y` is in a-fault\.toml too"):
        catalogue(tmp_path)


def test_order_of_the_catalogue(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("a-fault", "b-fault").replace("x < y", "x < z"), "b-fault.toml")
    write(tmp_path, GOOD)
    built = catalogue(tmp_path)
    assert built["schema"] == "preassert.hazards/1"
    assert list(built["hazards"]) == ["a-fault", "b-fault"]
