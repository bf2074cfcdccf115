"""Emulation of low precision in FP32: explicit rounding, because a CPU runtime does none.

ONNX Runtime on a CPU computes no FP16: it inserts Casts and keeps activations in FP32, so running
an FP16 model there shows nothing. Here every value that is stored in the low format goes through a
Cast pair FP32 → low → FP32; arithmetic inside an op is FP32, or FP16 sums on request.
"""
