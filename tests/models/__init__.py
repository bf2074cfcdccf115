"""Tiny models with one illness each, and inputs that bring it out.

Node names are known, so that a test can say which ones must stay in FP32. One file per family;
docs/failure-classes.md lists them all.
"""

from tests.models import accumulation, exponentials
from tests.models.attention import mask
from tests.models.benign import saturating, small
from tests.models.cancelling import cancellation
from tests.models.constants import batch_norm, busy_product, huge_weights, tiny_weights
from tests.models.custom import microsoft
from tests.models.depth import deep, residual
from tests.models.illness import COUNT, Factory, Ill, registered, signals, weights
from tests.models.large import large_weights, saved_beside, two_bodies
from tests.models.normalisation import layer_norm
from tests.models.overflow import (
    conv_chain,
    near_the_edge,
    root_mean_square,
    small_token,
    two_readers,
)
from tests.models.positions import resize, rotary
from tests.models.recurrent import lstm
from tests.models.selection import arg_max, detector, position_bucket
from tests.models.underflow import bare_logarithm, log_mel, logarithm

CLASSES: tuple[Factory, ...] = registered()
"""One factory per model, each called without arguments; the classes of failures in order."""

__all__ = [
    "CLASSES",
    "COUNT",
    "Factory",
    "Ill",
    "accumulation",
    "arg_max",
    "bare_logarithm",
    "batch_norm",
    "busy_product",
    "cancellation",
    "conv_chain",
    "deep",
    "detector",
    "exponentials",
    "huge_weights",
    "large_weights",
    "layer_norm",
    "log_mel",
    "logarithm",
    "lstm",
    "mask",
    "microsoft",
    "near_the_edge",
    "position_bucket",
    "residual",
    "resize",
    "root_mean_square",
    "rotary",
    "saturating",
    "saved_beside",
    "signals",
    "small",
    "small_token",
    "tiny_weights",
    "two_bodies",
    "two_readers",
    "weights",
]
