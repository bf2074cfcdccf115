"""Predicted cost of plans beside what TensorRT for RTX's builder makes of their files.

Plans of networks of many kinds are written with halfwise's own writer and built ahead of time. The
builder lists which tensors each kernel reads and writes, whose bytes are a plan's traffic. A price
is right if it is to the price of everything low what traffic is to the traffic of everything low.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from scipy.stats import spearmanr

from bench.figures import Figure, at_least, at_most, reported
from bench.gpu import models as made
from bench.gpu.networks import NETWORKS
from bench.runs import REAL_MODELS, Workbench
from halfwise.case import Case, Settings
from halfwise.errors import HalfwiseError
from halfwise.fixing.int8.placing import quantisable, quantised
from halfwise.fixing.loop import fix
from halfwise.fixing.plan.plan import NONE, Nodes, Plan, Quantisation, Variant
from halfwise.graph.model import Network, node_name
from halfwise.graph.norms import NORMALISATIONS
from halfwise.graph.written_out import attentions, written_out
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import NodeName, replace
from halfwise.targets.rtx import PRODUCTS, Kernel, traffic
from halfwise.targets.runners import InRtx
from tests import models as classes
from tests.judges import RtxBuilder
from tests.unit.fixing.int8.products import peaks_of

SM = "SM86"
RANK, FACTOR = 0.9, 1.25
TESTED = (
    "audio_encoder", "depthwise_cnn", "feed_forward", "flow_transformer", "mel_classifier",
    "mixer", "needs_constraints", "resnet50", "two_norms", "yolox_nano",
)  # fmt: skip
"""A third of the models: the price was made without looking at their kernels."""
RECURRENT = ("gru", "lstm")
"""Left out: the builder lists the kernels of a loop's body once, however often it runs."""
REPAIRED = ("digits", "text_encoder", "residual_cnn")
"""Models that are fixed, with repairs and without."""
ILL = ("conv_chain", "deep", "feed_forward", "log_mel", "query_key", "two_norms")
"""Failure classes."""
INTAKE = {"needs_constraints": "Polygraphy__tests__models__needs_constraints"}
"""Models of the intake folder, without data."""
GATES = ("Erf", "Gelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Softplus", "Mish")
DRAWN = (0.1, 0.3, 0.6)
"""Shares of the nodes in sets that are drawn."""


@dataclass(frozen=True)
class Subject:
    """A network to plan for.

    Attributes:
        name: Its name in the results.
        model: The model, or its file.
        inputs: Its samples, or their file.
    """

    name: str
    model: Any
    inputs: Any


@dataclass(frozen=True)
class Built:
    """A plan, and the kernels of its engine.

    Attributes:
        model: The network.
        plan: The plan.
        kept: Number of nodes in FP32.
        predicted: The bytes that its price counts, over everything low.
        kernels: Number of kernels.
        activations: Bytes that they read and write, by the builder's type.
        constants: Bytes of the constants that they read, likewise.
        error: Why it was not built.
    """

    model: str
    plan: str
    kept: int
    predicted: float
    kernels: int = 0
    activations: Mapping[str, int] | None = None
    constants: Mapping[str, int] | None = None
    error: str = ""

    @property
    def traffic(self) -> int:
        """All bytes."""
        return sum((self.activations or {}).values()) + sum((self.constants or {}).values())


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return how prices rank and how far they are off, on models for testing and on others."""
    rtx = RtxBuilder()
    if (missing := rtx.missing()) is not None:
        return [], missing
    found = list[Built]()
    with rtx:
        for subject in subjects(bench):
            print(f"  {subject.name}", file=sys.stderr, flush=True)
            found += built(subject, rtx)
        version = rtx.ask({}, 60)["version"]
    bench.details["traffic"] = {
        "builder": f"TensorRT for RTX {version}, {SM}",
        "plans": [asdict(one) for one in found],
    }
    return figures(found), bench.missing()


def figures(found: Sequence[Built]) -> list[Figure]:
    """Return the figures on what was built."""
    whole = [one for one in found if not one.error]
    refused = [f"{one.model} {one.plan}: {one.error}" for one in found if one.error]
    told = [
        reported("plans built", len(whole), f"of {len({one.model for one in whole})} models"),
        reported("plans refused", len(refused), "; ".join(refused)),
    ]
    base = {one.model: one for one in whole if one.plan == "all low"}
    mixed = [one for one in whole if one.plan != "all low" and one.model in base]
    for what, chosen in (
        ("test models", [o for o in mixed if o.model in TESTED and "INT8" not in o.plan]),
        ("other models", [o for o in mixed if o.model not in TESTED and "INT8" not in o.plan]),
        ("INT8, test models", [o for o in mixed if o.model in TESTED and "INT8" in o.plan]),
        ("INT8, other models", [o for o in mixed if o.model not in TESTED and "INT8" in o.plan]),
    ):
        ratios = [(one.predicted, one.traffic / base[one.model].traffic) for one in chosen]
        off = sorted(
            ((max(p / t, t / p), p, t, one) for (p, t), one in zip(ratios, chosen, strict=True)),
            key=lambda each: -each[0],
        )
        note = "; ".join(f"{o.model} {o.plan}: {p:.2f}, traffic {t:.2f}" for _, p, t, o in off[:8])
        rank = float(spearmanr(*zip(*ratios, strict=True)).statistic)
        median = float(np.median([each[0] for each in off]))
        told += [
            (at_least if what == "test models" else _without_goal)(
                f"{what}: rank correlation of price with traffic, over everything low",
                rank, RANK, f"{len(chosen)} plans of {len({o.model for o in chosen})} models",
            ),
            (at_most if what == "test models" else _without_goal)(
                f"{what}: worst factor between the two", off[0][0], FACTOR, note
            ),
            reported(f"{what}: median factor", median),
        ]  # fmt: skip
    return told


def _without_goal(what: str, measured: float, _: float, note: str = "") -> Figure:
    return reported(what, measured, note)


# --- models -----------------------------------------------------------------------------------


def subjects(bench: Workbench) -> Iterator[Subject]:
    """Yield the networks that are here."""
    for name in ("digits", *NETWORKS, "small_conv", "resnet50"):
        if name.startswith(RECURRENT):
            continue
        drawn = (NETWORKS.get(name) or made.MAKERS[name])()
        yield Subject(name, drawn.model, dict(drawn.inputs))
    for one in map(bench.real, REAL_MODELS):
        if one is not None:
            yield Subject(one.name, one.model, one.inputs)
    for make in classes.CLASSES:
        ill = make()
        if ill.name in ILL:
            yield Subject(ill.name, ill.proto, dict(ill.inputs))
    for name, stem in INTAKE.items():
        file = bench.models and bench.models / "intake" / f"{stem}.onnx"
        if file is not None and file.is_file():
            yield Subject(name, file, {v: [np.float32(array)] for v, array in _drawn(file).items()})


def _drawn(file: Path) -> dict[str, np.ndarray]:
    """Return normal numbers for the inputs of a model, eight where an axis is free."""
    rng, inputs = np.random.default_rng(0), ir.load(file).graph.inputs
    return {
        str(v.name): rng.standard_normal([n if isinstance(n, int) else 8 for n in v.shape or ()])
        for v in inputs
    }


def case_of(subject: Subject) -> tuple[Case, Settings]:
    """Return a network with samples of the size to build for."""
    request = understand(subject.inputs, {})
    case = load_case(subject.model, request.data, request.criterion)
    return case, replace(request.settings, targets=(InRtx(RtxBuilder(), SM),))


# --- plans ------------------------------------------------------------------------------------


def plans(case: Case, settings: Settings, name: str) -> Iterator[tuple[str, Plan]]:
    """Yield plans of a network, none twice."""
    variant = Variant(case, settings)
    seen = set[Nodes]()
    for what, nodes in islands(variant):
        kept = nodes & variant.computing
        if kept not in seen:
            seen.add(kept)
            yield what, variant.plan(kept)
    if name in REPAIRED:
        yield "fixed", fix(case, replace(settings, targets=()), Silent()).assigned
    yield from _int8(variant)


def islands(variant: Variant) -> Iterator[tuple[str, Nodes]]:
    """Yield what is kept in FP32."""
    network, computing = variant.case.network, variant.computing
    order = [node_name(n) for n in network.nodes() if node_name(n) in computing]
    ops = {node_name(n): n.op_type for n in network.nodes()}
    yield "all low", NONE
    yield "all FP32", computing
    yield "norms", _patterns(network, NORMALISATIONS) | _of(ops, *NORMALISATIONS)
    yield "softmax", _patterns(network, ("Softmax",)) | _of(ops, "Softmax", "LogSoftmax")
    yield "activations", _around(network, GATES)
    cores = [frozenset(map(node_name, nodes)) for nodes in attentions(network)]
    yield "attention", NONE.union(*cores)
    yield "first attention", NONE.union(*cores[:1])
    yield "Q·K and softmax", NONE.union(*map(_up_to_softmax, (network,) * len(cores), cores))
    products = [name for name in order if ops[name] in PRODUCTS]
    yield "products", frozenset(products)
    yield "all but products", computing - frozenset(products)
    yield "first and last product", frozenset((*products[:1], *products[-1:]))
    yield "additions", _of(ops, "Add")
    rng = np.random.default_rng(0)
    for share in DRAWN:
        count = max(1, int(share * len(order)))
        chosen = rng.choice(len(order), count, replace=False)
        yield f"{share:.0%} drawn", frozenset(order[i] for i in chosen)
        start = rng.integers(len(order))
        yield f"a stretch of {share:.0%}", frozenset(order[start : start + count])


def _patterns(network: Network, ops: Sequence[str]) -> Nodes:
    return NONE.union(*(nodes for op in ops for nodes in written_out(network, op)))


def _of(ops: Mapping[NodeName, str], *wanted: str) -> Nodes:
    return frozenset(name for name, op in ops.items() if op in wanted)


def _around(network: Network, ops: Sequence[str]) -> Nodes:
    """Return nodes of some operators with the pointwise neighbours of each."""
    near = (*ops, "Add", "Div", "Mul", "Sub")
    found = set[NodeName]()
    for node in network.nodes():
        if node.op_type in ops:
            beside = [*node.predecessors(), *node.successors()]
            found |= {node_name(n) for n in (node, *beside) if n.op_type in near}
    return frozenset(found)


def _up_to_softmax(network: Network, core: Nodes) -> Nodes:
    """Return an attention without the product with the values."""
    inside = [node_name(n) for n in network.nodes() if node_name(n) in core]
    ops = {node_name(n): n.op_type for n in network.nodes()}
    last = max(i for i, name in enumerate(inside) if ops[name] in PRODUCTS)
    return frozenset(inside[:last])


def _int8(variant: Variant) -> Iterator[tuple[str, Plan]]:
    """Yield plans with every product in INT8, and with every other one."""
    network = variant.case.network
    candidates = [n for n in quantisable(network) if n in variant.computing]
    convs = any(n.op_type == "Conv" for n in network.nodes())
    if not candidates or not convs:
        return
    found = peaks_of(network, variant.case.calibration.select((0,)))
    place: Callable[[Nodes], Network] = lambda nodes: quantised(network, nodes, found)  # noqa: E731
    quantisation = Quantisation(place, frozenset(candidates))
    for what, nodes in (("INT8", quantisation.nodes), ("half INT8", frozenset(candidates[::2]))):
        int8 = nodes & quantisation.nodes
        if int8:
            yield what, Plan(variant, int8=int8, quantisation=quantisation)


# --- building ---------------------------------------------------------------------------------


def built(subject: Subject, rtx: RtxBuilder) -> Iterator[Built]:
    """Yield what becomes of each plan."""
    case, settings = case_of(subject)
    sample = case.calibration[0]
    shapes = {name: [array.shape] * 3 for name, array in sample.items()}
    for what, plan in plans(case, settings, subject.name):
        made_of = (subject.name, what, len(plan.kept), predicted(plan))
        kernels = kernels_of(plan, rtx, shapes)
        if isinstance(kernels, str):
            yield Built(*made_of, error=kernels)
            continue
        yield Built(
            *made_of,
            len(kernels),
            traffic(tensor for k in kernels for tensor in (*k.inputs, *k.outputs)),
            traffic(tensor for k in kernels for tensor in k.constants),
        )


def predicted(plan: Plan) -> float:
    """Return the bytes that a plan is predicted to move, over those of the model all low.

    Arithmetic, which prices count too where it takes longer, does not show in a builder's log.
    """
    variant = plan.of
    first = variant.original or variant

    def moved(of: Variant, kept: Nodes, int8: Nodes) -> float:
        assert of.prices is not None, "no shapes"
        return of.prices.model.traffic(of.resolve(kept), plan.bf16, int8)

    return moved(variant, plan.kept, plan.int8) / moved(first, NONE, NONE)


def kernels_of(plan: Plan, rtx: RtxBuilder, shapes: Mapping[str, Any]) -> Sequence[Kernel] | str:
    """Return the kernels of a plan's engine, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        try:
            ir.save(plan.of.write(plan)[0].model, file)
        except HalfwiseError as error:
            return error.message
        build = rtx.build(file, SM, shapes, seconds=120)
    if not build.built:
        return "; ".join(error.text for error in build.errors[:1]) or "not built"
    return build.kernels
