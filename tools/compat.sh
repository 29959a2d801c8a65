#!/usr/bin/env bash
# Run the guard part of the suite on other releases of torch, each in its own venv: tests/contracts, tests/guard and
# `preassert doctor`.
#
#   tools/compat.sh                     the releases below: the oldest, the first with torch.library.get_kernel, the newest
#   tools/compat.sh 3.11:2.6.0          others, as PYTHON:TORCH
#
# Downloads several gigabytes for releases that come with CUDA libraries; PREASSERT_COMPAT_DIR (default: a folder under
# the system's temporary one) keeps the venvs. Prints one line a release, last.
set -uo pipefail
cd "$(dirname "$0")/.."

home=${PREASSERT_COMPAT_DIR:-${TMPDIR:-/tmp}/preassert-compat}
releases=("$@")
[ ${#releases[@]} -gt 0 ] || releases=(3.10:2.2.2 3.11:2.9.0 3.11:2.15.0)
mkdir -p "$home"
summary=()

for release in "${releases[@]}"; do
  python=${release%%:*}
  torch=${release##*:}
  venv=$home/py$python-torch$torch
  numpy=numpy transformers=transformers
  case $torch in 2.2.*|2.3.*) numpy='numpy<2' ;; esac
  case $torch in 2.[2-5].*) transformers= ;; esac  # transformers of today wants 2.6; without it, its tests are skipped
  if [ ! -x "$venv/bin/pytest" ]; then
    "python$python" -m venv "$venv" &&
      "$venv/bin/pip" install -q "torch==$torch" "$numpy" $transformers pytest hypothesis rich &&
      "$venv/bin/pip" install -q --no-deps -e . ||
      { summary+=("$release: could not be installed"); continue; }
  fi
  without=()
  # Where the guard is a mode, compiled code is not guarded (docs/compatibility.md), and the programs include compiled ones.
  "$venv/bin/python" -c 'import sys, torch; sys.exit(hasattr(torch.library, "get_kernel"))' &&
    without=(--ignore=tests/guard/test_programs.py)
  log=$home/torch$torch.log
  OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/contracts tests/guard \
    --ignore=tests/guard/test_op_db.py "${without[@]}" >"$log" 2>&1
  tests=$(tail -n 1 "$log")
  OMP_NUM_THREADS=1 "$venv/bin/python" -m preassert doctor >>"$log" 2>&1
  summary+=("$release: $tests; doctor: $(tail -n 1 "$log") (log: $log)")
done
printf '%s\n' "${summary[@]}"
