"""Compare TensorRT's calibration cache with the ranges of a model's tensors on samples."""

from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.probe import View, observable
from halfwise.errors import CaseError
from halfwise.graph.model import Network, graphs_of
from halfwise.graph.normal_form import values_of
from halfwise.observing.quantised import Counter, Reach, look
from halfwise.records import CalibratedRange, CalibrationCheck, TensorName
from halfwise.tensorrt.calibration_cache import CalibrationCache, read_cache
from halfwise.wording import listed

_LEVELS = -128.0, 127.0
_MADE_UP = "(Unnamed"
"""Prefix of the names that TensorRT makes up for its own layers."""
_OWN = 0.5
"""Least share of a cache's names that its own model has; an exporter may have renamed the rest."""


def calibrated(
    network: Network, samples: Samples, path: Path, *, runtime: Runtime = CPU
) -> CalibrationCheck:
    """Return how the ranges of a cache fit the samples.

    Raises:
        CaseError: not a cache, or a cache of another model: it lacks most of the cache's names.
        RunFailed: ONNX Runtime failed on a sample.
    """
    cache = read_cache(path)
    tensors = observable(network.model)
    unknown = _unknown(cache, network, path)
    shared = [name for name in tensors if name in cache.scales]
    counters = {n: Counter(_LEVELS, s if _is_set(s := cache.scales[n]) else 1.0) for n in shared}
    look(network, [_view(*each) for each in counters.items()], samples, runtime=runtime)
    return CalibrationCheck(
        source=str(path),
        tensorrt=cache.version,
        calibrator=cache.calibrator,
        samples=len(samples),
        tensors=tuple(_range(n, cache.scales[n], c.reach()) for n, c in counters.items()),
        unknown=unknown,
        uncalibrated=tuple(name for name in tensors if name not in cache.scales),
    )


def _unknown(cache: CalibrationCache, network: Network, path: Path) -> tuple[str, ...]:
    own = {v.name for graph in graphs_of(network.model) for v in values_of(graph)}
    named = [name for name in cache.scales if not name.startswith(_MADE_UP)]
    unknown = tuple(name for name in named if name not in own)
    if named and len(unknown) > (1 - _OWN) * len(named):
        raise CaseError(
            f"{path} is a cache for another model: {len(unknown)} of its {len(named)} tensors are "
            f"not in {network.path or 'the model'}, such as {listed(unknown, 2)}.",
            "Give a cache calibrated with exactly this ONNX file; calibrate again after each "
            "export.",
        )
    return unknown


def _view(name: TensorName, counter: Counter) -> View:
    def visit(_: int, array: NDArray[np.generic]) -> None:
        counter.add(array)

    return View((name,), visit)


def _is_set(scale: float) -> bool:
    return isfinite(scale) and scale > 0


def _range(name: TensorName, scale: float, reach: Reach) -> CalibratedRange:
    # A tensor that is zero on all samples needs no scale.
    unset = not _is_set(scale)
    return CalibratedRange(
        tensor=name,
        scale=scale,
        limit=scale * _LEVELS[1],
        reach=reach.largest,
        usual=reach.usual,
        beyond=float(reach.largest > 0) if unset else reach.beyond,
        fault=("unset" if reach.largest else None) if unset else reach.fault,
    )
