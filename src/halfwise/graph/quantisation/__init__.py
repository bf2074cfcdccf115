"""Quantised models: reading values through QuantizeLinear and DequantizeLinear, or without them."""
