"""If inputs cannot be widened, such as token ids: the part that a repair changes, on its own."""

from dataclasses import replace

from halfwise.case import Runtime, Samples
from halfwise.emulation.ort import Session
from halfwise.fixing.repair.widening import varying
from halfwise.graph.dataflow import GIVEN, giving_out, region_model, varying_tensors
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.sameness import shared_tensors
from halfwise.records import TensorName


def changed_part(
    original: Network, repaired: Network, samples: Samples, *, runtime: Runtime
) -> tuple[Network, Network, Samples] | None:
    """Return both networks from the tensors that they compute alike, and their values.

    Args:
        original: A network.
        repaired: The same with repairs.
        samples: At least one.
        runtime: Where the original runs.

    Returns:
        Both with these tensors as inputs; None if there are no such tensors, or if every input
        that these depend on can be widened.
    """
    outputs = [tensor_name(v) for v in original.graph.outputs]
    shared = sorted(shared_tensors(original, repaired).difference(outputs))
    widened = [TensorName(name) for name in varying(list(samples))]
    if varying_tensors(original, widened).isdisjoint(shared):
        return None
    if any(v.producer() is None for v in original.graph.outputs):
        return None
    parts = [replace(n, model=region_model(n, outputs, shared)) for n in (original, repaired)]
    session = Session(giving_out(original.model, shared), runtime=runtime)
    taken = [
        {**sample, **{f"{name}{GIVEN}": array for name, array in session.run(sample).items()}}
        for sample in samples
    ]
    wanted = {str(v.name) for n in parts for v in n.graph.inputs}
    given = [{name: sample[name] for name in wanted} for sample in taken]
    return parts[0], parts[1], Samples(samples.ids, lambda i: given[i])
