"""ONNX graphs: loading, precision slots, data movement, patterns, and the rewriting of precision."""
