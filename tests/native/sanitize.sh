#!/usr/bin/env bash
# The compiled kernels under AddressSanitizer (or valgrind where gcc has no libasan), on buffers of exact size.
# A planted over-read must be caught, or the run proves nothing. SANITIZE_ROUNDS and SANITIZE_WITH=asan|valgrind adjust it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
rounds=${SANITIZE_ROUNDS:-1500}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

asan=$(gcc -print-file-name=libasan.so)
with=${SANITIZE_WITH:-}
if [ -z "$with" ]; then
  if [ -e "$asan" ]; then with=asan; else with=valgrind; fi
fi
command -v "${with/asan/gcc}" >/dev/null || { echo "neither AddressSanitizer nor valgrind is here"; exit 1; }

# Sources are copied, so that the working tree keeps its ordinary kernels.
copy() { # DIR
  mkdir -p "$1/_native" "$1/fleetlog"
  ln -s ../_native "$1/fleetlog/_native"
  cp "$root"/fleetlog/__init__.py "$1/fleetlog/"
  cp "$root"/setup.py "$root"/pyproject.toml "$root"/README.md "$1/"
  cp "$root"/_native/*.py "$root"/_native/*.pyx "$root"/_native/*.pxi "$1/_native/"
}
build() { # DIR CFLAGS
  local flags=(FLEETLOG_CYTHON_WERROR=1)
  if [ "$with" = asan ]; then flags=(FLEETLOG_SANITIZE=address); fi
  (cd "$1" && env CFLAGS="$2" "${flags[@]}" "$python" setup.py -q build_ext --inplace >build.log 2>&1) || { cat "$1/build.log"; exit 1; }
}
check() { # DIR ROUNDS
  if [ "$with" = asan ]; then
    env PYTHONPATH="$1" PYTHONMALLOC=malloc LD_PRELOAD="$asan" ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 \
      "$python" "$root/tests/native/memory.py" "$2"
  else
    env PYTHONPATH="$1" PYTHONMALLOC=malloc valgrind -q --undef-value-errors=no --error-exitcode=9 --exit-on-first-error=yes \
      "$python" "$root/tests/native/memory.py" "$2"
  fi
}

echo "== the kernels, checked by $with"
copy "$work/clean"
build "$work/clean" ""
if [ "$with" = valgrind ]; then rounds=$((rounds / 20 + 1)); fi
check "$work/clean" "$rounds"

echo "== the same with an over-read of one byte planted: must be caught"
cp -a "$work/clean" "$work/planted"
find "$work/planted" \( -name 'batch_cy.o' -o -name 'batch_cy.*.so' \) -delete # only this kernel is built again
build "$work/planted" "-DFLEETLOG_PLANTED_OVERREAD"
if check "$work/planted" 20 >"$work/planted.log" 2>&1; then
  echo "the planted over-read was not noticed: this check checks nothing"
  exit 1
fi
grep -qE "heap-buffer-overflow|Invalid read" "$work/planted.log" || { cat "$work/planted.log"; exit 1; }
echo "caught: $(grep -m1 -E 'heap-buffer-overflow|Invalid read' "$work/planted.log")"
