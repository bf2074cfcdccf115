"""The ladder of a diagnosis: each rung asks one question, and the first that fails ends it.

`command` climbs; `harness` looks at the inputs, `export` at the ONNX file, `kernels` at FP32
engines and at engines of a plan that is right in emulation, `tf32` and `precision` at rounding.

`faults` says where an engine is wrong: `localise` searches, an oracle answers (`transplant`, which
builds what `pieces` cuts out), and `twins` are the other places. `cures` tries other builds;
`reproducer` writes what goes wrong, with the script `reproduce`.
"""
