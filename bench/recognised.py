"""What the outputs of models are recognised as, against what they are.

For the published models, the bundled one and layouts of others, the answers are written here by
hand, from their authors' descriptions. The failure classes' models are random, so only what follows
from their last operators can be right: unit vectors and probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.attacks.imaged import IMAGED
from bench.attacks.layouts import save
from bench.attacks.lies import SAMPLES, samples
from bench.figures import Figure, equal, reported
from bench.runs import Workbench
from halfwise.emulation.ort import Session
from halfwise.metrics.kinds import LOOKED_AT, recognise
from halfwise.options.loading import load_case
from halfwise.options.options import Data, Model
from halfwise.records import Criterion, Kind

PUBLISHED: Mapping[str, Kind] = {
    "digits": "class-scores",
    "magika": "class-scores",
    "ppocr_v3_det": "mask",
    "yolox_nano": "boxes",
}
"""What the one output of each model is."""
DRAWN: Mapping[str, Kind] = {
    "l2_norm": "embedding",
    "l2_norm_sums": "embedding",
    "l2_norm_op": "embedding",
    "inner_squares": "embedding",
    "softmax_op": "class-scores",
    "long_softmax": "class-scores",
}
"""Kinds of the outputs of those drawn models whose outputs have one. Those of "softmax" vary
smoothly under a neutral name, as bins of an axis do too."""
LAID_OUT: Mapping[str, Kind] = {
    "FastestDet": "cells",
    "YOLOX maps": "cells",
    "YOLOv3 maps": "cells",
    "YOLOv5 maps": "cells",
    "YOLO rows of logits": "cells",
    "segmenter, channels last": "segmentation",
    "pose heat maps": "heatmap",
    "pose heat maps, channels last": "heatmap",
    "restorer": "image",
    "restorer, 8 bits, channels last": "image",
    "grey restorer": "image",
    "keypoints": "keypoints",
    "keypoints, descriptors in columns": "keypoints",
}
"""Kinds of the outputs of layouts beside an image (`bench.attacks.imaged`)."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures, and which models are missing."""
    # Only a checkout has them.
    from tests import models  # noqa: PLC0415

    figures: list[Figure] = []
    for subject in bench.subjects():
        wanted, found = PUBLISHED[subject.name], kinds(subject.model, Data(subject.inputs))
        told = ", ".join(f"{name}: {kind}" for name, kind in found.items()) or "nothing"
        right = set(found.values()) == {wanted}
        figures.append(equal(f"{subject.name}: {wanted}", right, wanted=True, note=told))
    wrong, hinted = [], 0
    for make in models.CLASSES:
        ill = make()
        wanted_here = DRAWN.get(ill.name)
        found = kinds(ill.proto, Data(dict(ill.inputs)))
        wrong += [ill.name] if set(found.values()) != ({wanted_here} - {None}) else []
        hinted += bool(found)
    count = len(models.CLASSES)
    note = ", ".join(wrong)
    figures += [
        equal(f"of {count} drawn models, recognised as something else", len(wrong), 0, note),
        reported("drawn models of which something is recognised", hinted),
    ]
    misread = [name for name, kind in LAID_OUT.items() if _laid_out(bench, name) != {kind}]
    count, note = len(LAID_OUT), ", ".join(misread)
    figures.append(
        equal(f"of {count} layouts, recognised as something else", len(misread), 0, note)
    )
    return figures, bench.missing()


def _laid_out(bench: Workbench, name: str) -> set[Kind]:
    path, layout = bench.folder / "layout.onnx", IMAGED[name]
    save(path, layout)
    return set(kinds(path, Data(layout.inputs(samples(SAMPLES)))).values())


def kinds(model: Model, data: Data) -> dict[str, Kind]:
    """Return the kind of every output that is recognised."""
    case = load_case(model, data, Criterion(), split=False)
    session = Session(case.network.model)
    samples = case.calibration
    references = [session.run(samples[i]) for i in range(min(LOOKED_AT, len(samples)))]
    found = recognise(references, case.input_shapes)
    return {name: one.kind for one in found for name in one.outputs}
