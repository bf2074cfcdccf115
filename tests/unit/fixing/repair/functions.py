"""Compare what a repaired model gives in FP32 with the function in FP64, beside the original."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.emulation.ort import Session
from halfwise.fixing.attribute import Attribution
from halfwise.fixing.repair.making import Rule
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto, normalise
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.records import Repair
from tests.fp64 import in_fp64
from tests.models.illness import Ill
from tests.unit.fixing.attribute.observing import observe

Inputs = Mapping[str, NDArray[Any]]


def evidence(ill: Ill) -> Attribution:
    """Return what the first sample of a model shows."""
    network = network_from_proto(ill.proto)
    observations = observe(network, ill.proto, ill.sample(0), FP16)
    return Attribution(network, roles_of(network), observations, FP16, 2.0, "fp32")


def repaired(network: Network, rule: Rule, *repairs: Repair) -> Network:
    """Apply repairs that went through JSON, as those of a run do."""
    model = network.copy()
    for repair in repairs:
        rule.apply(model, Repair.from_json(repair.to_json()))
    return normalise(model, path=None, sha256="")


def errors(before: Network, after: Network, inputs: Inputs) -> tuple[float, float]:
    """Return the largest error of an output over its largest value, before and after."""
    truth = in_fp64(before.model, inputs)
    with np.errstate(invalid="ignore"):
        old, new = (
            max(
                float(
                    np.abs(proposed[n].astype(np.float64) - t).max() / np.abs(t).max(initial=1e-30)
                )
                for n, t in truth.items()
            )
            for proposed in (Session(network.model).run(inputs) for network in (before, after))
        )
    return old, new
