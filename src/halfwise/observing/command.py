"""`observe`: statistics of every float tensor of the FP32 model."""

from typing import Unpack

from halfwise.declarations import Inputs, Options
from halfwise.emulation.bounded import sized
from halfwise.formats import BF16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.conversion import BF16_OPSET
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles, roles_of
from halfwise.judging.reference import check, frozen_named
from halfwise.observing.reference import observe as run_observe
from halfwise.options.loading import load_asked, nodes_of
from halfwise.options.options import Model, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import Observations


@bounded
def observe(
    model: Model,
    inputs: Inputs,
    *,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Observations:
    """Return statistics of every float tensor of the FP32 model on the samples.

    Args:
        model: The model: path or proto.
        inputs: Samples, as for `fix`.
        watcher: Receives progress.
        options: See `Options`.
    """
    watcher = watcher or Silent()
    request = understand(inputs, options)
    settings = request.settings
    case = load_asked(model, request, watcher, split=False)
    check(case.network, runtime=settings.runtime)
    watcher.stage("observe")
    with sized("observe", nodes_of(case.network)), frozen_named(case, settings):
        return run_observe(
            case.network,
            case.calibration,
            settings.fmt,
            roles=_roles(case.network, settings.fmt),
            runtime=settings.runtime,
            progress=watcher.step,
        )[0]


def _roles(network: Network, fmt: Format) -> Roles:
    """Return the roles at the opset to which `fix` would raise the model."""
    opset = max(network.opset, BF16_OPSET) if fmt == BF16 else None
    return roles_of(network, low_type(fmt), opset=opset)
