"""Observe the FP32 reference: what its tensors reach, and what happens inside its ops."""

from halfwise.observing.reference import observe

__all__ = ["observe"]
