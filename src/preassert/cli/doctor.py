"""``preassert doctor``: is the guard active here, how, and does it fire? A guard that does not fire is an error."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

from preassert import lazy
from preassert.errors import PreassertError, UsageError
from preassert.model import EXIT_FINDINGS
from preassert.report.text import clean, clean_line

SUMMARY = "is the guard active here, and does it fire?"
SCHEMA = "preassert.doctor/1"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="preassert doctor",
        description="Show the environment; plant bad values at every contract family in every mode and require our exception.",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:CALLABLE",
        help="plant bad values in this model too; CALLABLE() returns (model, inputs), inputs being a tensor, a tuple or a dict",
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out (it takes up to a minute)")
    parser.add_argument("--device", action="append", help="device to test; default: cpu, and cuda where it is available")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)

    lazy.need("torch", extra="torch", purpose="test the guard")
    report: dict[str, Any] = {"schema": SCHEMA, "environment": environment(), "self_test": [], "problems": []}

    def tell(text: str) -> None:
        if not options.json:
            print(text, flush=True)

    tell(environment_text(report["environment"]))
    for device in options.device or _devices():
        for entry in _self_test(device, compiled=not options.no_compile):
            report["self_test"].append(entry)
            report["problems"] += entry["problems"]
            tell(_entry_text(entry))
    if options.model is not None:
        entry = _model_test(options.model)
        report["self_test"].append(entry)
        report["problems"] += entry["problems"]
        tell(_entry_text(entry))
    if options.json:
        print(json.dumps(report, indent=2))
    elif report["problems"]:
        print(f"\nThe guard does NOT protect this environment: {len(report['problems'])} problems.")
    else:
        print("\nThe guard fires.")
    return EXIT_FINDINGS if report["problems"] else 0


# --- environment -------------------------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """What decides how an assert shows itself here."""
    import torch

    import preassert
    from preassert.guard import guard, intercepted, interception

    with guard():
        how, operators = interception(), len(intercepted())
    has_cuda = torch.cuda.is_available()
    build = torch.__config__.show()
    return {
        "preassert": preassert.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
        "cuda_available": has_cuda,
        "driver": _driver() if has_cuda else None,
        "devices": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if has_cuda else [],
        "device_side_assertion_records": "USE_CUDA_DSA=1" in build or "TORCH_USE_CUDA_DSA" in build,
        "launch_blocking": os.environ.get("CUDA_LAUNCH_BLOCKING"),
        "interception": how,
        "interception_reason": _reason(how),
        "operators": operators,
    }


def _reason(how: str) -> str:
    if how == "kernels":
        return "torch.library.get_kernel is there: the kernels of the contract table are replaced, nothing else costs anything"
    return (
        "this torch has no torch.library.get_kernel: a dispatch mode is used; it costs more and sees the installing thread only"
    )


def _driver() -> str | None:
    import torch

    internals: Any = torch._C  # CPU builds do not declare it
    version = internals._cuda_getDriverVersion()  # 12040 is 12.4
    return f"supports CUDA {version // 1000}.{version % 1000 // 10}"


def environment_text(found: dict[str, Any]) -> str:
    gpu = ", ".join(found["devices"]) or "none visible"
    build = (
        f"CUDA {found['cuda_build']}" if found["cuda_build"] else f"ROCm {found['hip_build']}" if found["hip_build"] else "CPU"
    )
    blocking = found["launch_blocking"]
    records = "yes" if found["device_side_assertion_records"] else "no (released wheels never have them)"
    lines = [
        f"preassert {found['preassert']}, Python {found['python']}, torch {found['torch']} ({build} build)",
        f"GPU: {gpu}" + (f"; driver {found['driver']}" if found["driver"] else ""),
        f"CUDA_LAUNCH_BLOCKING: {blocking if blocking is not None else 'not set'}",
        f"device-side assertion records (TORCH_USE_CUDA_DSA) in the build: {records}",
        f"interception: {found['interception']}, {found['operators']} kernels. {found['interception_reason']}.",
        "",
    ]
    return clean("\n".join(lines))


# --- self-test ---------------------------------------------------------------------------------------------------------


def _devices() -> list[str]:
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _self_test(device: str, *, compiled: bool) -> list[dict[str, Any]]:
    from preassert.guard import selftest

    entries = []
    for mode in selftest.MODES:
        why_not = None
        if mode == "compiled":
            why_not = selftest.compiled_unavailable() if compiled else "left out by --no-compile"
        if why_not is not None:
            entries.append(_entry(device, mode, [], skipped=why_not))
            continue
        entries.append(_entry(device, mode, list(selftest.check_mode(mode, device))))
    return entries


def _entry(device: str, mode: str, outcomes: list[Any], skipped: str | None = None) -> dict[str, Any]:
    problems = [f"{device} {mode}: {_outcome_text(outcome)}" for outcome in outcomes if outcome.problem is not None]
    planted = sum(outcome.value is not None for outcome in outcomes)
    return {"device": device, "mode": mode, "planted": planted, "problems": problems, "skipped": skipped}


def _outcome_text(outcome: Any) -> str:
    planted = "nothing planted" if outcome.value is None else f"planted {outcome.value}"
    return f"{outcome.plant.name}: {planted}: {outcome.problem}"


def _entry_text(entry: dict[str, Any]) -> str:
    name = f"{entry['device']} {entry['mode']}"
    if entry["skipped"]:
        return f"  {name:<16} not tested: {entry['skipped']}"
    if not entry["problems"]:
        return f"  {name:<16} {entry['planted']} bad values planted, {entry['planted']} caught"
    shown = [f"    {clean_line(problem, 200)}" for problem in entry["problems"][:20]]
    return "\n".join([f"  {name:<16} FAILED", *shown])


# --- a model of the user's -----------------------------------------------------------------------------------------------


def load(target: str) -> Any:
    """What ``module:callable`` returns, the current folder being importable.

    Raises:
        UsageError: no such module or callable; the message says which.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not name:
        raise UsageError(f"{target!r} is not MODULE:CALLABLE")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise
        raise UsageError(f"no module named {module_name!r} (looked in the current folder and the installed packages)") from None
    finally:
        sys.path.remove(os.getcwd())
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{module_name} has no callable {name!r}")
    return function()


def _model_test(target: str) -> dict[str, Any]:
    from preassert.guard import selftest

    made = load(target)
    if not (isinstance(made, tuple) and len(made) == 2):
        raise UsageError(f"{target} must return (model, inputs), not {type(made).__name__}")
    outcomes = selftest.check_model(*made)
    if not outcomes:
        raise PreassertError(f"{target}: no integer tensor among the inputs, so nothing can be planted")
    return _entry("model", "immediate", outcomes)
