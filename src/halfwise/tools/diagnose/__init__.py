"""The ladder of a diagnosis: each rung asks one question, and the first that fails ends it.

`command` climbs; `harness` looks at the inputs, `export` at the ONNX file, `kernels` at FP32
engines and at engines of a plan that is right in emulation, `tf32` and `precision` at rounding;
`reproducer` cuts out what goes wrong.
"""
