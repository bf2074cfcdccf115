"""Constants of FP32 nodes that a builder stores in FP16.

In weak typing a constraint holds for a node's layer. The constants that it reads are layers of
their own, and the builder may store them in FP16 although the node computes in FP32. What this does
is in the log of TensorRT 8.6.0: finite values that would overflow are "converted to the closest
finite FP16 value", values below the smallest subnormal "to the FP16 minimum subnormalized value".
With that, emulation gives the errors of engines that were off without another explanation: 3.059
(3.059 measured), 3.59 (3.51 and 3.53) and 4.26 (4.33). Other builds of the same plans kept
the constants in FP32. Strong typing is not concerned.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import Trials
from halfwise.formats import Format
from halfwise.graph.model import Network, constant_array, is_standard, node_name
from halfwise.graph.weights import LowWeights
from halfwise.records import NodeName, TensorName

_OWN_WEIGHTS = ("BatchNormalization", "Conv", "ConvTranspose", "InstanceNormalization")
"""Operators whose layers hold their weights, and store them in their own type."""
LOSSY = ("constant-range", "constant-subnormal")
"""Guards of constants for which storing them in FP16 is more than one rounding."""


class StoredConstants:
    """Emulates plans of one case whose FP32 nodes read constants in the low format."""

    def __init__(self, planner: Planner) -> None:
        """Find the constants; the emulation is made when a plan needs it."""
        self._planner = planner
        network, found = planner.case.network, planner.evidence.guards
        named = {g.tensor: g.nodes for g in found if g.tensor is not None and g.kind in LOSSY}
        own = {node_name(n) for n in network.nodes() if is_standard(n, *_OWN_WEIGHTS)}
        known = network.graph.initializers
        self._readers = {t: frozenset(nodes) - own for t, nodes in named.items() if t in known}

    def concern(self, fp32: frozenset[NodeName]) -> bool:
        """Return whether some FP32 node reads such a constant.

        False for large networks: all their weights would be held once more.
        """
        if self._planner.weights.large:
            return False
        return any(map(fp32.intersection, self._readers.values()))

    @cached_property
    def trials(self) -> Trials:
        """Trials on the present samples, as `Planner.engine_trials`; low nodes read the same."""
        planner = copy(self._planner)
        network, fmt = planner.case.network, planner.settings.fmt
        planner.case = replace(planner.case, network=_stored(network, self._readers, fmt))
        planner.weights = LowWeights(planner.case.network.model, fmt)
        return planner.engine_trials()


def _stored(network: Network, names: Mapping[TensorName, object], fmt: Format) -> Network:
    model = network.copy()
    for name in names:
        value = model.graph.initializers[name]
        array = as_stored(constant_array(value).astype(np.float32), fmt)
        value.const_value = ir.tensor(array, name=name)
    return replace(network, model=model)


def as_stored(array: NDArray[np.float32], fmt: Format) -> NDArray[np.float32]:
    """Return f32[*shape] as TensorRT 8.6.0 stores it: nothing overflows, nothing becomes zero.

    Infinities and NaN stay.
    """
    least = np.copysign(np.float32(fmt.smallest_subnormal), array)
    lost = (array != 0) & (np.abs(array) < fmt.smallest_subnormal)
    return np.where(lost, least, fmt.saturate(array))
