#!/usr/bin/env bash
# Run the guard part of the suite on other releases of torch: tests/contracts and tests/guard, each release in its own venv.
#
#   tools/compat.sh                     the releases below
#   tools/compat.sh 3.11:2.14.1         others, as PYTHON:TORCH
#
# Downloads several gigabytes for releases that come with CUDA libraries; PREASSERT_COMPAT_DIR (default: a folder under
# the system's temporary one) keeps the venvs. Prints one line a release, last.
set -uo pipefail
cd "$(dirname "$0")/.."

home=${PREASSERT_COMPAT_DIR:-${TMPDIR:-/tmp}/preassert-compat}
releases=("$@")
[ ${#releases[@]} -gt 0 ] || releases=(3.10:2.2.2 3.11:2.6.0 3.11:2.14.1)
mkdir -p "$home"
summary=()

for release in "${releases[@]}"; do
  python=${release%%:*}
  torch=${release##*:}
  venv=$home/py$python-torch$torch
  numpy=numpy
  case $torch in 2.2.*|2.3.*) numpy='numpy<2' ;; esac
  if [ ! -x "$venv/bin/pytest" ]; then
    "python$python" -m venv "$venv" &&
      "$venv/bin/pip" install -q "torch==$torch" "$numpy" pytest hypothesis rich &&
      "$venv/bin/pip" install -q --no-deps -e . ||
      { summary+=("$release: could not be installed"); continue; }
  fi
  without=()
  # Where the guard is a mode, compiled code is not guarded (docs/compatibility.md); the programs include compiled ones.
  "$venv/bin/python" -c 'import sys, torch; sys.exit(hasattr(torch.library, "get_kernel"))' &&
    without=(--ignore=tests/guard/test_compiled.py --ignore=tests/guard/test_programs.py)
  log=$home/torch$torch.log
  OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/contracts tests/guard \
    --ignore=tests/guard/test_op_db.py "${without[@]}" >"$log" 2>&1
  summary+=("$release: $(tail -n 1 "$log") (log: $log)")
done
printf '%s\n' "${summary[@]}"
