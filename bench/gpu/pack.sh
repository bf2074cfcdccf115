#!/usr/bin/env bash
# Packs what a host without network lacks to run halfwise and its GPU benches there, TensorRT apart.
# Usage: pack.sh OUT MODELS [PACKAGE...]
#   MODELS   folder of folders with model.onnx and inputs.npz, perhaps heldout.npz and autocast.json: published
#            models, and what bench.gpu.networks and bench.gpu.autocast make; "" for none
#   PACKAGE  packages that the host lacks; without any, all that halfwise needs at run time. Versions are those of
#            requirements.lock, or as given: onnxruntime-gpu==1.31.1
# Makes OUT/0, OUT/1, … of wheels for CPython 3.12 on x86-64 Linux and OUT/models, each at most 60 MB, for hosts
# that take files in small pieces; a larger wheel is cut, and run.sh joins it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd); models=$2; shift 2
if [ $# = 0 ]; then
  set -- annotated-doc annotated-types click flatbuffers markdown-it-py mdurl ml-dtypes mpmath msgspec numpy \
    onnx onnx-ir onnxruntime packaging protobuf pydantic pydantic-core pygments rich scipy \
    shellingham sympy typer typing-extensions typing-inspection
fi
rm -rf "$out"/[0-9] "$out"/[0-9][0-9] "$out/models"; mkdir "$out/0"
pins=()
for package in "$@"; do
  case $package in *==*) pins+=("$package"); continue ;; esac
  # Where the lock has two versions, the last is for Python 3.12 and later.
  pins+=("$(grep -E "^$package==" "$root/requirements.lock" | tail -n 1 | grep -oE '^[^ ;]+')")
done
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 3.12 --implementation cp \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
  -d "$out/0" "${pins[@]}"
number=0 size=0
for wheel in "$out"/0/*.whl; do
  bytes=$(stat -c %s "$wheel")
  if ((bytes > 60000000)); then
    split -b 60000000 -d "$wheel" "$wheel."
    rm "$wheel"
    for piece in "$wheel".*; do
      number=$((number + 1)) size=0; mkdir "$out/$number"; mv "$piece" "$out/$number/"
    done
    number=$((number + 1)); mkdir "$out/$number"
    continue
  fi
  if ((size + bytes > 60000000 && size > 0)); then
    number=$((number + 1)) size=0; mkdir "$out/$number"
  fi
  size=$((size + bytes))
  [ $number = 0 ] || mv "$wheel" "$out/$number/"
done
if [ -n "$models" ]; then
  for model in "$models"/*/model.onnx; do
    folder=$(dirname "$model") name=$(basename "$(dirname "$model")")
    mkdir -p "$out/models/$name"
    for file in model.onnx inputs.npz heldout.npz autocast.json; do
      [ ! -e "$folder/$file" ] || cp -L "$folder/$file" "$out/models/$name/"
    done
  done
fi
rmdir --ignore-fail-on-non-empty "$out"/[0-9]* # what a cut wheel left empty
du -sm "$out"/*
