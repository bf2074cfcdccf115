"""What runs models and builds engines: ONNX Runtime, TensorRT, PyTorch."""

import os

# Its Linux packages send usage data and leave a file in the temporary folder from version 1.30 on
# (https://github.com/microsoft/onnxruntime/pull/27379), unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
