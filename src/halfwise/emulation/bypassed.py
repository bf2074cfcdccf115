"""A quantised model in which each pair can be left out or rescaled without reloading it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from halfwise.case import CPU, Runtime, Sample
from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import new_node
from halfwise.emulation.typed import emulate_typed
from halfwise.graph.excluding import RawInputs
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.quantised import Pair, pairs_of
from halfwise.metrics import Outputs
from halfwise.records import NodeName, TensorName


@dataclass(frozen=True, eq=False)
class Site:
    """Pairs that quantise one tensor alike and are left out together; each reader may have its own.

    Attributes:
        name: The DequantizeLinear of the first pair.
        pairs: All pairs of the site.
    """

    name: NodeName
    pairs: tuple[Pair, ...]

    @property
    def pair(self) -> Pair:
        """The first pair."""
        return self.pairs[0]

    @property
    def tensor(self) -> TensorName:
        """The quantised tensor; for stored integers, the dequantised one."""
        source = self.pair.source
        return tensor_name(self.pair.dequantise.outputs[0] if source is None else source)

    @property
    def readers(self) -> tuple[ir.Node, ...]:
        """Nodes that read the pairs, each once."""
        return tuple(dict.fromkeys(node for pair in self.pairs for node, _ in pair.readers))


def sites_of(network: Network, original: Network | None = None) -> tuple[Site, ...]:
    """Return the pairs that can be left out, in graph order.

    Stored integers can be left out if there is an original to take weights from. Tensors that are
    dequantised to a type other than the one they were quantised from cannot.
    """
    found: dict[object, list[Pair]] = {}
    for pair in pairs_of(network):
        given = pair.dequantise.outputs[0]
        if pair.source is None and original is None:
            continue
        if pair.source is not None and pair.source.dtype != given.dtype:
            continue
        layout = (pair.scale.tobytes(), pair.zero_point.tobytes(), pair.axis, pair.block)
        key = given if pair.source is None else (pair.source, pair.dtype, layout)
        found.setdefault(key, []).append(pair)
    return tuple(Site(node_name(p[0].dequantise), tuple(p)) for p in found.values())


class BypassRunner:
    """A quantised model in ONNX Runtime, with any of its sites left out or rescaled.

    Attributes:
        sites: The sites that can be left out.
        foreign: Stored integers that are not rounded floats of the original.
    """

    def __init__(
        self,
        network: Network,
        original: Network | None = None,
        *,
        accumulate: str = "fp32",
        runtime: Runtime = CPU,
    ) -> None:
        """Load the model; raises as `Session` does.

        Args:
            network: The quantised model; not changed.
            original: The model before quantisation, for its weights.
            accumulate: As for `emulate_typed`, which emulates the model's FP16 and BF16 parts.
            runtime: Where it runs.
        """
        copy = replace(network, model=network.copy())
        self.sites = sites_of(network, original)
        self._scales: dict[NodeName, np.ndarray] = {}
        raw = RawInputs(copy, original)
        twins = {node_name(pair.dequantise): pair for pair in pairs_of(copy)}
        for number, site in enumerate(self.sites):
            self._switch([twins[node_name(p.dequantise)] for p in site.pairs], site, number, raw)
        foreign = {node_name(pair.dequantise) for pair in raw.foreign}
        self.foreign = tuple(site.tensor for site in self.sites if site.name in foreign)
        self._numbers = {site.name: number for number, site in enumerate(self.sites)}
        model = emulate_typed(copy.model, accumulate=accumulate)
        self._session = Session(model, runtime=runtime)

    def prepare(self, left_out: frozenset[NodeName]) -> None:
        """Do nothing: one session runs everything."""

    def release(self) -> None:
        """Do nothing: the session is as large as the model."""

    def run(
        self,
        sample: Sample,
        left_out: Iterable[NodeName] = (),
        factors: Mapping[NodeName, float] | None = None,
    ) -> Outputs:
        """Return the outputs with some sites left out.

        Args:
            sample: The inputs.
            left_out: Names of sites.
            factors: Factors by which to multiply the scales of other sites that have one scale.

        Raises:
            RunFailed: as `Session.run`.
        """
        gone, factors = set(left_out), factors or {}
        flags = {_flag(n): np.asarray(name in gone) for name, n in self._numbers.items()}
        scales = {
            _scale(self._numbers[name]): np.asarray(scale * factors.get(name, 1.0), scale.dtype)
            for name, scale in self._scales.items()
        }
        return self._session.run({**sample, **flags, **scales})

    def _switch(self, pairs: list[Pair], site: Site, number: int, raw: RawInputs) -> None:
        graph = raw.network.graph
        flag = ir.val(_flag(number), ir.DataType.BOOL, ir.Shape([]))
        graph.inputs.append(flag)
        scale = self._rescalable(pairs, site, number)
        for place, pair in enumerate(pairs):
            node = pair.dequantise
            given, name = node.outputs[0], tensor_name(node.outputs[0])
            given.name = f"{name}::quantised"
            assert given.dtype is not None
            chosen = new_node(
                "Where", [flag, raw.before(pair), given], f"{name}::{place}", dtype=given.dtype
            )
            graph.insert_after(node, chosen)
            given.replace_all_uses_with(chosen.outputs[0], replace_graph_outputs=True)
            chosen.replace_input_with(2, given)
            chosen.outputs[0].name, chosen.outputs[0].shape = name, given.shape
            for end in (pair.quantise, node) if scale is not None else ():
                assert end is not None
                end.replace_input_with(1, scale)
        if scale is not None:
            graph.inputs.append(scale)

    def _rescalable(self, pairs: list[Pair], site: Site, number: int) -> ir.Value | None:
        """Return a graph input for the pairs' scale; None for weights and for several scales."""
        given = pairs[0].dequantise.inputs[1]
        if pairs[0].source is None or pairs[0].axis is not None or given is None:
            return None
        assert given.const_value is not None
        self._scales[site.name] = np.asarray(given.const_value.numpy())
        return ir.val(_scale(number), given.dtype, given.shape)


def _flag(number: int) -> str:
    return f"halfwise::raw_{number}"


def _scale(number: int) -> str:
    return f"halfwise::scale_{number}"
