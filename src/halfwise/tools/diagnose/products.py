"""What TF32 does in the kernels of single products: one engine has them all, cut apart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.graph.cut import giving_out, read_by, varying_tensors
from halfwise.graph.model import node_name, normalise, tensor_name
from halfwise.metrics.relative import relative_rms
from halfwise.records import NodeName
from halfwise.tools.compare.making import EngineMaker
from halfwise.tools.compare.regions import Regions
from halfwise.tools.diagnose.parts import part
from halfwise.tools.diagnose.subject import Subject

IN_TF32 = 1e-5
"""Relative RMS error of a product above which its kernel used TF32: FP32 in another order gives
1e-7, rounding both factors to 11 bits 1e-4 (bench/gpu/tf32_ranks.py)."""
FOLLOWED = 32
"""Products whose results are followed to the outputs; each takes a session of its own."""


@dataclass(frozen=True)
class Ran:
    """A product that ran in an engine with TF32, on the inputs that it has in FP32.

    Attributes:
        own: Relative RMS error of its result.
        effect: What that alone does to the outputs: the largest relative RMS error of one. 0 where
            the kernel used no TF32; None where it was not followed.
    """

    own: float
    effect: float | None


def in_kernels(
    subject: Subject, engines: EngineMaker, names: Sequence[NodeName], index: int
) -> dict[NodeName, Ran]:
    """Return what TF32 does in each of the products `names`, on sample `index`.

    That is one build. In the whole engine, or the next build, a product may have another kernel.
    Of those that ran in TF32, the first `FOLLOWED` in the order of `names` are followed.

    Raises:
        HalfwiseError: no such engine can be built or run.
    """
    network, sample = subject.case.network, subject.samples[index]
    runtime = subject.settings.runtime
    nodes = [node for node in network.nodes() if node_name(node) in names]
    results = {node_name(node): tensor_name(node.outputs[0]) for node in nodes}
    computed = {tensor_name(v) for node in network.nodes() for v in node.outputs if v.name}
    # What is constant stays so: kernels for weights are others than those for inputs.
    inside = computed & varying_tensors(network)
    given = list(dict.fromkeys(n for node in nodes for n in read_by(node) if n in inside))
    wanted = list(dict.fromkeys((*given, *results.values())))
    right = Session(giving_out(network.model, wanted), runtime=runtime).run(sample, wanted)
    model, feed = part(network, list(results.values()), given, right, sample)
    case = replace(
        engines.case,
        network=normalise(model, path=None, sha256=""),
        calibration=Samples(("products",), lambda _: feed),
        metric=None,
    )
    _, (made,) = engines.of(case).side("tf32").plain()
    references = subject.references[index]
    # An output may be an input or a constant.
    ends = [n for v in network.graph.outputs if (n := tensor_name(v)) in computed]
    found: dict[NodeName, Ran] = {}
    for name in names:
        tensor = results[name]
        own = relative_rms(right[tensor], made[tensor])
        followed = sum(bool(ran.effect) for ran in found.values())
        if own <= IN_TF32 or followed >= FOLLOWED:
            found[name] = Ran(own, 0.0 if own <= IN_TF32 else None)
            continue
        after = Regions(network, ends, [tensor], runtime=runtime).run(sample, made)
        if tensor in ends:
            after = {**after, tensor: made[tensor]}
        # What cannot be run on the engine's result is as wrong as can be.
        errors = [relative_rms(references[n], after[n]) if n in after else inf for n in ends]
        effect = max(errors, default=0.0)
        found[name] = Ran(own, effect)
    return found
