#!/usr/bin/env bash
# Everything that only a GPU shows, in one run on a machine with an NVIDIA GPU. Logs go to the folder $1.
set -u
out=${1:?a folder for the logs}
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH="${PYTHONPATH:-}:$PWD"
step() { # name, seconds, command…: runs it, keeps its output, says how it ended
    local name=$1 limit=$2 start=$SECONDS
    shift 2
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    echo "== $name: exit $? in $((SECONDS - start)) s"
}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
step pytest-gpu 200 "$python" -m pytest -m gpu -q
step pytest-on-cuda 300 "$python" -m pytest --device cuda -q -x --maxfail=20 tests
step example 60 "$python" -m examples.async_mlp
step digits 60 "$python" -m examples.async_mlp --data digits
step example-cpu 60 "$python" -m examples.async_mlp --device cpu
step digits-cpu 60 "$python" -m examples.async_mlp --data digits --device cpu
# cuda.bindings asks the driver for every function it knows, also those that are newer than the driver: not our errors.
step memcheck 200 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
    "$python" -m examples.async_mlp
step memcheck-api 200 compute-sanitizer --tool memcheck "$python" -m examples.async_mlp
step overlap 100 "$python" -m benchmarks.overlap --dim 512 --batches 4
step no-thread-waits 60 "$python" -m pytest --device cuda -q -s tests/runtime/loop/test_no_thread_waits.py
step graph-replay 300 "$python" -m benchmarks.graph_replay --inputs 10000
if [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
    step peer 300 "$python" -m benchmarks.peer
    step batch-splitter 60 "$python" -m examples.batch_splitter --devices 2 --rows 8192 --dim 1024
fi
