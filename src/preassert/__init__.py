"""preassert: stop ``CUDA error: device-side assert triggered`` before it happens, and explain it after it did.

Importing this package imports neither torch nor anything else heavy; every name below is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> module that defines it
_HOMES = {
    "Violation": "preassert.errors",
    "PreassertError": "preassert.errors",
    "UsageError": "preassert.errors",
    "InputError": "preassert.errors",
    "MissingExtra": "preassert.errors",
    "guard": "preassert.guard",
    "install": "preassert.guard",
    "uninstall": "preassert.guard",
    "flush": "preassert.guard",
    "check": "preassert.guard.learn",
    "explain": "preassert.integrations.explain",
    "install_excepthook": "preassert.integrations.excepthook",
    "validate_classification_targets": "preassert.contracts.plain",
    "safe_compute_loss_inputs": "preassert.contracts.plain",
    "LabelMap": "preassert.labels",
    "clamp_targets": "preassert.labels",
    "mask_targets": "preassert.labels",
    "load_ipython_extension": "preassert.notebook",
    "unload_ipython_extension": "preassert.notebook",
}


# a literal, for type checkers; a test holds it equal to the table above
__all__ = [
    "InputError",
    "LabelMap",
    "MissingExtra",
    "PreassertError",
    "UsageError",
    "Violation",
    "__version__",
    "check",
    "clamp_targets",
    "explain",
    "flush",
    "guard",
    "install",
    "install_excepthook",
    "load_ipython_extension",
    "mask_targets",
    "safe_compute_loss_inputs",
    "uninstall",
    "unload_ipython_extension",
    "validate_classification_targets",
]

if TYPE_CHECKING:
    from preassert.contracts.plain import safe_compute_loss_inputs, validate_classification_targets
    from preassert.errors import InputError, MissingExtra, PreassertError, UsageError, Violation
    from preassert.guard import flush, guard, install, uninstall
    from preassert.guard.learn import check
    from preassert.integrations.excepthook import install_excepthook
    from preassert.integrations.explain import explain
    from preassert.labels import LabelMap, clamp_targets, mask_targets
    from preassert.notebook import load_ipython_extension, unload_ipython_extension


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'preassert' has no attribute {name!r}")
    module = importlib.import_module(home)
    # the guard is its room, which can be called: ``preassert.guard(...)`` and ``preassert.guard.stats()``
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
