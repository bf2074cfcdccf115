"""Judge a candidate against the FP32 model."""
