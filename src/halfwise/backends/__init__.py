"""What runs models and builds engines: ONNX Runtime, TensorRT, PyTorch."""

import os

# Its Linux packages (1.30, 1.31) send usage data and leave files in the temporary folder
# (https://github.com/microsoft/onnxruntime/pull/27379), unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
