"""Runs models: ONNX Runtime, and on top of it the emulation of low precision in FP32.

ONNX Runtime does not compute in FP16 on a CPU: it inserts Casts and keeps activations in FP32, so
running an FP16 model there shows nothing. Here every value stored in the low format goes through a
Cast pair FP32 → low → FP32; arithmetic inside an op is FP32, with FP16 sums on request.
"""

import os

# ONNX Runtime's Linux packages (1.30, 1.31) send usage data and leave files in the temporary folder
# (https://github.com/microsoft/onnxruntime/pull/27379), unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
