"""What runs models: ONNX Runtime, and on it the emulation of low precision."""
