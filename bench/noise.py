"""Whether data in files are taken for noise: real data must not be, noise must.

Real data are the inputs of published models and the data sets of scikit-learn: as measured,
normalised, standardised, cut into patches. Whitened tables are only reported, since no value tells
a whitened normal table from noise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from bench.figures import Figure, at_most, equal, reported
from bench.runs import ROOT, Workbench
from halfwise.case import Samples
from halfwise.inputs import InputSpec, judge_inputs

DRAWS = 1000
MISSED = 0.01
TABLES = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
"""ImageNet's mean and deviation, per channel."""

Arrays = dict[str, NDArray[np.generic]]


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return how many real data sets are taken for noise, and how much noise for real data."""
    kinds = {"real": dict(_real(bench)), "whitened": dict(_whitened())}
    alarms = {
        k: [n for n, data in found.items() if not looks_real(data)] for k, found in kinds.items()
    }
    missed = sum(looks_real({"x": data}) for data in _noise()) / DRAWS
    return [
        equal(
            "sets of real data taken for noise",
            len(alarms["real"]),
            0,
            f"of {len(kinds['real'])}{': ' * bool(alarms['real'])}{', '.join(alarms['real'])}",
        ),
        reported(
            "whitened tables taken for noise",
            len(alarms["whitened"]),
            f"of {len(kinds['whitened'])}: {', '.join(alarms['whitened']) or 'none'}",
        ),
        at_most("share of noise taken for real", missed, MISSED, f"of {DRAWS} draws"),
    ], bench.missing()


def looks_real(data: Arrays) -> bool:
    """Return whether inputs, each an array with samples on its first axis, are not all noise."""
    count = len(next(iter(data.values())))
    specs = [InputSpec(name, array.dtype, array.shape[1:]) for name, array in data.items()]
    samples = Samples(
        tuple(map(str, range(count))), lambda i: {name: array[i] for name, array in data.items()}
    )
    return judge_inputs(samples, specs)[1]


def _real(bench: Workbench) -> Iterator[tuple[str, Arrays]]:
    for subject in bench.subjects():
        path = subject.inputs if subject.inputs.is_absolute() else ROOT / subject.inputs
        with np.load(path) as stored:
            yield subject.name, dict(stored)
    for name in TABLES:
        table = getattr(datasets, f"load_{name}")().data.astype(np.float32)
        scaled = StandardScaler().fit_transform(table)
        yield f"{name}, as measured", {"x": table}
        yield f"{name}, standardised", {"x": scaled}
        yield f"{name}, standardised, one sample", {"x": scaled[None]}
        yield (
            f"{name}, scaled to [0, 1]",
            {"x": (table - table.min(0)) / np.ptp(table, axis=0).clip(1e-9)},
        )
    photos = np.stack([image[:416, :640] for image in datasets.load_sample_images().images])
    for name, pixels in {
        "photos": photos.astype(np.float32),
        "photos, normalised": ((photos / 255 - MEAN) / DEVIATION).astype(np.float32),
        "photos, standardised": ((photos - photos.mean()) / photos.std()).astype(np.float32),
    }.items():
        yield name, {"x": pixels}
        yield f"patches of {name}", {"x": pixels[:, :, :8].reshape(-1, 8, 8, 3)}
        yield f"rows of {name}", {"x": pixels[:, ::40, :, 1].reshape(-1, 640)}


def _whitened() -> Iterator[tuple[str, Arrays]]:
    for name in TABLES:
        table = StandardScaler().fit_transform(getattr(datasets, f"load_{name}")().data)
        yield name, {"x": PCA(0.95, whiten=True).fit_transform(table).astype(np.float32)}


def _noise() -> Iterator[NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    for draw in range(DRAWS):
        shape = ((8, 3, 32, 32), (4, 512), (16, 1, 64), (2, 3, 64, 64))[draw % 4]
        kinds = (
            rng.standard_normal(shape),
            rng.random(shape),
            rng.uniform(-1, 1, shape),
            rng.integers(0, 256, shape),
        )
        yield kinds[draw // 4 % 4].astype(np.float32)
