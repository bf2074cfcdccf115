"""Quantised models: values read through QuantizeLinear and DequantizeLinear, and without them."""
