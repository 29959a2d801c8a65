"""Heavy libraries are imported where they are used; their absence is one sentence."""

from __future__ import annotations

import importlib
from typing import Any

from preassert.errors import MissingExtra


def need(module: str, *, extra: str, purpose: str) -> Any:
    """Import ``module`` and return it.

    Args:
        module: dotted name, for example ``"pyarrow.parquet"``.
        extra: the extra of preassert that brings it, for example ``"data"``.
        purpose: what it is needed for, in words that fit after "to": ``"read Parquet files"``.

    Raises:
        MissingExtra: the module (or its parent package) is not installed. Errors raised *inside* an installed
            module pass through unchanged.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        missing = (getattr(error, "name", None) or root).partition(".")[0]
        raise MissingExtra(missing, extra=extra, purpose=purpose) from error
