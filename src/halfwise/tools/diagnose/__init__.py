"""The ladder of a diagnosis: each rung asks one question, and the first that fails ends it.

`command` climbs; `harness` checks the inputs, `export` the ONNX file, `kernels` FP32 engines and
engines of a plan that is right in emulation, `tf32` and `precision` rounding.

`faults` finds where an engine is wrong: `localise` searches, an oracle answers (`transplant`, which
builds what `pieces` cuts out).
"""
