#!/usr/bin/env bash
# Runs GPU benches on a host without network. Usage, from anywhere:
#   [TACTIC_SOURCES=A,B] [MINUTES=9] [BENCH=figures|session|triage] [OPTIONS="--engine repeat=1"] \
#     run.sh TRT_PYTHON PACK OUT NAME...
#   TRT_PYTHON  the interpreter that imports tensorrt (for the comparison, polygraphy and onnx too)
#   PACK        what pack.sh made; "" where halfwise's dependencies are installed and no models are wanted
#   OUT         gets gpu_<name>.json, and logs.tar.gz with every log and run.json, written anew
#               every 20 s, so that little is lost where the host is taken away; after a session,
#               whose results are many, they are in logs.tar.gz too, and nowhere else
#   NAME        see bench/gpu/jobs.py and session.py
# The exit code is 1 if a figure is not reached.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
trt_python=$1 pack=$2; mkdir -p "$3"; out=$(cd "$3" && pwd); shift 3
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir "$work/site"; models=()
if [ -n "$pack" ]; then
  pack=$(cd "$pack" && pwd)
  mkdir "$work/wheels"
  for first in "$pack"/[0-9]*/*.whl.00; do
    [ -e "$first" ] || continue
    name=$(basename "$first" .00)
    for n in {00..99}; do
      cat "$pack"/[0-9]*/"$name.$n" 2> /dev/null || break
    done > "$work/wheels/$name"
  done
  # Both packages have the same modules.
  gpu=$(find "$pack" "$work/wheels" -name 'onnxruntime_gpu-*.whl')
  without=(); [ -z "$gpu" ] || without=(! -name 'onnxruntime-*.whl')
  find "$pack" "$work/wheels" -name '*.whl' "${without[@]}" -print0 | xargs -0 python3 -m pip install -q \
    --disable-pip-version-check --no-index --no-deps --no-compile --target "$work/site" || exit 2
  rm -r "$work/wheels"
  [ ! -d "$pack/models" ] || models=(--models "$pack/models")
fi
# halfwise asks for its own version, so source on the path is not enough.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/pyproject.toml")
mkdir "$work/site/halfwise-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: halfwise\nVersion: %s\n' "$version" \
  > "$work/site/halfwise-$version.dist-info/METADATA"
# The packages of this Python are not for the other one.
printf '#!/bin/sh\nunset PYTHONPATH\nexec "%s" "$@"\n' "$trt_python" > "$work/trt-python"
chmod +x "$work/trt-python"
cd "$root" || exit 2
export PYTHONPATH="$work/site:$root/src:$root" PYTHONUNBUFFERED=1 HALFWISE_CACHE="$work/cache"
# Compiles what pip would have compiled, and loads TensorRT's libraries from disk once, for
# Polygraphy as well as for halfwise.
python3 -m halfwise doctor --trt-python "$work/trt-python"
mkdir "$work/runs" "$work/runs/results"
results=$out
case ${BENCH:-figures} in
  figures) further=(--minutes "${MINUTES:-inf}" --work "$work/runs" "--options=${OPTIONS:-}") ;;
  session)
    further=(--minutes "${MINUTES:-18}" --work "$work/runs" "--options=${OPTIONS:-}")
    results=$work/runs/results ;;
  triage) further=(--work "$out/triage") ;;
  *) further=() ;;
esac
pack_logs() {
  (cd "$work/runs" && find . \( -name '*.log' -o -name '*.jsonl' -o -name 'run.json*' \
    -o -name 'gpu_*.json' -o -name race.json -o -path './triage/*' -type f -size -2000k \) -print0 | tar -czf "$out/logs.new" --null -T -) 2>/dev/null
  mv "$out/logs.new" "$out/logs.tar.gz"
}
while sleep 20; do pack_logs; done &
packing=$!; trap 'kill $packing 2>/dev/null; rm -rf "$work"' EXIT
python3 -m "bench.gpu.${BENCH:-figures}" \
  --trt-python "$work/trt-python" --tactic-sources "${TACTIC_SOURCES:-}" "${models[@]}" \
  "${further[@]}" --results "$results" "$@"
code=$?
kill $packing; wait $packing 2>/dev/null
pack_logs
exit $code
