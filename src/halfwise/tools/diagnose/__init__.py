"""The ladder of a diagnosis: each rung asks one question, and the first that fails ends it.

`command` climbs; `harness` checks the inputs, `export` the ONNX file, `kernels` FP32 engines and
engines of a plan that is right in emulation, `precision` TF32 and the low format. `region` finds
where an engine is wrong.
"""
