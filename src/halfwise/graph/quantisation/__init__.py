"""Quantised models: what is read through QuantizeLinear and DequantizeLinear, and without them."""
