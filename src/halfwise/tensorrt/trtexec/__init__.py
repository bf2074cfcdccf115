"""Precision constraints in trtexec's notation: read, checked against a model, corrected."""

from halfwise.tensorrt.trtexec.check import check
from halfwise.tensorrt.trtexec.kinds import kinds_of
from halfwise.tensorrt.trtexec.layers import layers_of, producers_of
from halfwise.tensorrt.trtexec.notation import Given, read, unsayable

__all__ = ["Given", "check", "kinds_of", "layers_of", "producers_of", "read", "unsayable"]
