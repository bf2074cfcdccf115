"""Benches on a GPU, with real TensorRT engines."""
