"""ONNX graphs: loading, precision slots, data movement, patterns, rewriting of precision."""
