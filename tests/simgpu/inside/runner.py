"""Run every ``check_*`` function of one file on the simulated GPU; the answers go to a JSON file."""

from __future__ import annotations

import json
import runpy
import sys
import traceback
import warnings

import preassert.simgpu as simgpu


def main(path: str, answers: str) -> None:
    simgpu.activate(notice=False)
    functions = {name: value for name, value in runpy.run_path(path).items() if name.startswith("check_")}
    results: dict[str, str | None] = {}
    for name, function in functions.items():
        try:
            with simgpu.device(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function()
            results[name] = None
        except BaseException:
            results[name] = traceback.format_exc()
    with open(answers, "w", encoding="utf-8") as handle:
        json.dump(results, handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
