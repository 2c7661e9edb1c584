#!/usr/bin/env bash
# Builds wheel and sdist into a folder, and looks at what the wheel has in it.
#   tests/wheel.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?a folder}
.venv/bin/python -m pip install -q build
log=$(mktemp)
trap 'rm -f "$log"' EXIT
.venv/bin/python -m build --outdir "$folder" . > "$log" 2>&1 || { tail -40 "$log"; exit 1; }
if grep -E "is absent from|no files found" "$log"; then exit 1; fi
.venv/bin/python - "$folder" <<'PY'
import glob, sys, zipfile
names = zipfile.ZipFile(glob.glob(f"{sys.argv[1]}/*.whl")[0]).namelist()
stray = [n for n in names if n.split("/")[0] in ("tests", "perf", "examples", "harness")]
assert not stray, f"not for the wheel: {stray[:3]}"
assert any(n.startswith("fleetlog/_native/batch_cy") and n.endswith(".so") for n in names), "no compiled kernels in the wheel"
assert {"fleetlog/brokers/console/templates/base.html", "fleetlog/brokers/console/static/htmx.min.js"} <= set(names), "no console's pages"
print(f"wheel: {len(names)} files")
PY
