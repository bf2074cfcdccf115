"""Observe the FP32 reference: what its tensors reach, and what happens inside its ops."""

from halfwise.observing.reference import DETAIL_SAMPLES, Observer, observe_network

__all__ = ["DETAIL_SAMPLES", "Observer", "observe_network"]
