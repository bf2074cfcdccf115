"""TensorRT without a GPU, for tests of what is around it: a module `tensorrt` and a libcuda.

The worker process of a test imports `tests/fake_tensorrt/tensorrt`, whose engines compute in
float64 and round what they store: an overflow overflows, a constraint helps. Nothing here is
halfwise's, so that no test of what halfwise predicts confirms itself: `precision.py` decides what
is stored and read in which type, `rounding.py` rounds, `operators.py` computes, and the parser
refuses operators that it lacks. It has the names, signatures and failures of the version that it
plays; what TensorRT really computes, fuses and supports it knows nothing of. Layers of an engine
are nodes of the model one to one, but for Casts, which vanish, and for what `FUSED` names.

Knobs, all environment variables of the worker:

================================= ================================================================
`HALFWISE_FAKE_TENSORRT`          the version: "8.6.1" (default), "10.0.1", "10.16.1", "11.4.0";
                                  "1.7.1" is TensorRT for RTX, the module `tensorrt_rtx`
`HALFWISE_FAKE_TENSORRT_FAULTS`   what fails when: a JSON list of `faults.Fault`
`HALFWISE_FAKE_TENSORRT_COUNTS`   a folder where builds, runs and faults are counted, so that they
                                  count on in the next process
`HALFWISE_FAKE_TENSORRT_VARY`     "P:SEED": each free node is FP32 with probability P, drawn anew
                                  for each build
`HALFWISE_FAKE_TENSORRT_FUSED`    JSON lists of nodes: each is one layer "{ForeignNode[a...b]}" that
                                  computes in FP32 inside and tells nothing of its parts
`HALFWISE_FAKE_TENSORRT_IGNORED`  a JSON list of nodes whose constraints are not honoured
`HALFWISE_FAKE_TENSORRT_LOSSY`    a JSON map, node to factor: what a low node gives is multiplied
`HALFWISE_FAKE_TENSORRT_BROKEN`   the same for a node in any precision: a fault of a kernel
`HALFWISE_FAKE_TENSORRT_WRONG`    what is compiled wrongly: a JSON list of `regions.Wrong`:
                                  operators or fusions, everywhere or where nothing is marked
`HALFWISE_FAKE_TENSORRT_PACE`     a JSON map: milliseconds of a layer in "fp32", "low" or, a product
                                  with TF32, "tf32", and of a "border" between them; "jitter": by
                                  which share one use of an engine differs from the next. None takes
                                  such time: the clock of the GPU is moved on
`HALFWISE_FAKE_CUDA_…`            what the GPU is like: see `libcuda.c`
================================= ================================================================
"""
