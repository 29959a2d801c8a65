"""The contract table as a whole: hazards, arguments, and the operators on record."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from preassert import hazards
from preassert.contracts.rows import Row
from preassert.contracts.table import FAMILIES, table
from preassert.contracts.unguarded import UNGUARDED
from preassert.guard.intercept import bind_row, overload_of

ROWS = list(table().values())

# Every operator whose demands on values have been looked at, one a line: by schema name with overload, or by Python name
# where it is no operator of its own.
ON_RECORD = Path(__file__).with_name("operators_on_record.txt").read_text(encoding="utf-8").splitlines()


def test_every_operator_on_record_is_guarded_or_named() -> None:
    assert len(ON_RECORD) == len(set(ON_RECORD))
    assert not [name for name in ON_RECORD if name not in table() and name not in UNGUARDED]
    assert not [name for name in UNGUARDED if name in table()]


def test_every_reason_is_a_reason() -> None:
    on_record = set(ON_RECORD)
    spare = {name for name in UNGUARDED if name not in on_record}
    # four entries are about one demand of an operator, not about an operator
    assert spare == {
        "cross_entropy_loss with probability targets",
        "multinomial num_samples",
        "grouped_mm alignment",
        "c10d collectives",
    }
    assert all(len(reason) > 8 for reason in UNGUARDED.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operator)
def test_row_is_sound(row: Row) -> None:
    assert re.fullmatch(r"aten::\w+(\.\w+)?", row.operator)
    assert row.domains
    for domain in row.domains:
        assert (domain.hazard or row.hazard) in hazards.slugs()
        assert domain.parameters[0] == domain.argument
    overload = overload_of(row.operator)
    if overload is None:
        assert row.optional, f"{row.operator} is absent from torch {torch.__version__}"
    else:
        bind_row(row, overload._schema)  # every name in the bounds is an argument of the operator


def test_operators_of_torch_are_all_there() -> None:
    """On the torch that the table was written against, no row is about nothing."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 13):
        pytest.skip("older torch lacks some of the operators")
    assert not [row.operator for row in ROWS if overload_of(row.operator) is None]


def test_every_hazard_of_a_value_has_a_row() -> None:
    """Joined the other way: hazards that the guard can raise are all raised by some row."""
    raised = {domain.hazard or row.hazard for row in ROWS for domain in row.domains}
    assert raised == {
        "ctc-target-invalid",
        "embedding-index-out-of-range",
        "gather-index-out-of-range",
        "index-out-of-range",
        "invalid-pooling-index",
        "invalid-sampling-distribution",
        "probability-outside-unit-interval",
        "target-out-of-range",
        "user-device-assert",
    }


def test_forms_with_out_come_with_their_function() -> None:
    """An ``out=`` or in-place row demands what its functional form demands."""
    for row in ROWS:
        base = re.sub(r"(_out|\.out|\.grad_input|\.output)$", "", row.operator)
        if base != row.operator and base in table():
            assert table()[base].domains == row.domains, row.operator
            assert table()[base].hazard == row.hazard, row.operator


def test_one_operator_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "again", FAMILIES["pooling"])
    table.cache_clear()
    try:
        with pytest.raises(ValueError, match="stands twice in the contract table"):
            table()
    finally:
        monkeypatch.undo()
        table.cache_clear()


def test_table_needs_no_torch() -> None:
    code = "import sys; from preassert.contracts.table import table; table(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
