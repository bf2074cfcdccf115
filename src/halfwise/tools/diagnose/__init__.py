"""The ladder of a diagnosis: each rung asks one question, and the first that fails ends it.

`harness` checks the inputs, `export` the ONNX file. `command` climbs, and checks TF32, the low
format, FP32 engines, and engines of a plan that is right in emulation, and where they are wrong.
"""
