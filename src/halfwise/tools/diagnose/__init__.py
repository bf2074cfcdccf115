"""The ladder of a diagnosis: each rung asks one question, and the first that fails ends it.

`command` climbs; `harness` checks the inputs, `export` the ONNX file, `kernels` FP32 engines and
engines of a plan that is right in emulation, and finds where they are wrong, `precision` TF32 and
the low format. `decided` says whether decisions that flip explain an error.
"""
