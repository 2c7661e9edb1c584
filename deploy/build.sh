#!/usr/bin/env bash
# Builds fleetlog's image: deploy/build.sh [--tag NAME] [--commit COMMIT] [--base IMAGE]
#   --tag     what the image is called (fleetlog:latest)
#   --commit  build this commit instead of the checkout as it stands
#   --base    an image with python3, of the same minor version as $PYTHON
#             (python:3.N-slim of $PYTHON's version)
#   --wheels  only collect what goes into the image, in the directory that is named
# PYTHON is the checkout's environment when there is one, else python3. It needs pip, and a C compiler for the kernels.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
tag=fleetlog:latest commit="" base="" context=""
while [ $# -gt 0 ]; do
  case "$1" in
    --tag) tag=$2 ;;
    --commit) commit=$2 ;;
    --base) base=$2 ;;
    --wheels) context=$2 ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done

python=${PYTHON:-$top/.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
only_wheels=$context
context=${context:-$work/context}
mkdir -p "$work/source" "$context/wheels"

# A copy of the sources: the checkout's own kernels and build directory stay as they are.
if [ -n "$commit" ]; then
  git -C "$top" archive "$commit" | tar -x -C "$work/source"
else
  (cd "$top" && git ls-files -z --cached --others --exclude-standard --deduplicate |
    tar -c --null --ignore-failed-read -T - 2>/dev/null) | tar -x -C "$work/source"
fi

isolation=()
if "$python" -c 'import Cython, setuptools' 2>/dev/null; then isolation=(--no-build-isolation); fi
"$python" -m pip wheel -q --disable-pip-version-check --no-deps "${isolation[@]}" -w "$context/wheels" "$work/source"
"$python" -m pip download -q --disable-pip-version-check --only-binary=:all: -d "$context/wheels" \
  pip "$(echo "$context"/wheels/fleetlog-*.whl)[apply,bucket,console,oidc,schemas]"
cp "$top/deploy/Dockerfile" "$top/deploy/broker.properties" "$context/"
[ -z "$only_wheels" ] || exit 0

docker build -q --build-arg "BASE=${base:-python:$version-slim}" -t "$tag" "$context"
