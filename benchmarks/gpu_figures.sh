#!/usr/bin/env bash
# Every figure that oxide is held to, as PASS or FAIL, on a machine with an NVIDIA GPU: under five minutes. Writes JSON
# and a page to the folder $1, each group to a folder of its own, so that a slow one does not take the rest.
set -u
out=${1:?a folder for the results}
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH="${PYTHONPATH:-}:$PWD" OXIDE_DEVICE=cuda
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for group in launch:40 completion:50 pipeline:120 startup:60; do
    name=${group%:*}
    timeout "${group#*:}" "$python" -m benchmarks "$name" --seconds 2 --output "$out" --name "$name" >"$out/$name.log" 2>&1
    echo "== $name: exit $?"
    grep -E '^(PASS|FAIL|BROKEN)|WRONG|skipped: [^n]|kernels take' "$out/$name.log"
done
