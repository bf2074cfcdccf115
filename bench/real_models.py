"""Three published models, each with the metric of its task, through the command line."""

from __future__ import annotations

from bench.figures import Figure, at_least, at_most, equal, reported
from bench.runs import Ran, Workbench

MAGIKA_SECONDS = 20.0


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures of the models that are here, and which are not."""
    figures: list[Figure] = []
    for name, judge in (("magika", magika), ("ppocr_v3_det", ppocr), ("yolox_nano", yolox)):
        if bench.real(name):
            figures += judge(bench, name)
    return figures, bench.missing()


def magika(bench: Workbench, name: str) -> list[Figure]:
    """File types: few nodes, every file as in FP32, quick."""
    fixed, right, files = _fixed_and_verified(bench, name)
    return [
        *_passed(name, fixed),
        at_most(f"{name}: kept nodes", _kept(fixed), 4),
        equal(f"{name}: files of {files} with the class of FP32", round(right * files), files),
        at_most(f"{name}: whole run (s)", fixed.seconds, MAGIKA_SECONDS),
    ]


def ppocr(bench: Workbench, name: str) -> list[Figure]:
    """Text masks: as in FP32 but for a hundredth."""
    fixed, iou, images = _fixed_and_verified(bench, name)
    return [
        *_passed(name, fixed),
        at_least(f"{name}: mask IoU with FP32 over all {images} images", iou, 0.99),
        reported(f"{name}: kept nodes", _kept(fixed)),
        reported(f"{name}: whole run (s)", fixed.seconds),
    ]


def yolox(bench: Workbench, name: str) -> list[Figure]:
    """Boxes: FP16 changes none of them, so nothing may be kept."""
    fixed, f1, images = _fixed_and_verified(bench, name)
    return [
        *_passed(name, fixed),
        equal(f"{name}: kept nodes", _kept(fixed), 0),
        equal(f"{name}: F1 of the boxes against FP32 over all {images} images", f1, 1.0),
        reported(f"{name}: whole run (s)", fixed.seconds),
    ]


def _fixed_and_verified(bench: Workbench, name: str) -> tuple[Ran, float, int]:
    """Return the run, and the metric over all samples, of which there are so many."""
    subject = bench.real(name)
    assert subject is not None
    fixed = bench.fix(subject)
    verdict = bench.verify(subject, subject.inputs, subject.judging).run.verdict
    assert verdict.metric is not None
    return fixed, verdict.metric.candidate, len(verdict.samples)


def _passed(name: str, fixed: Ran) -> list[Figure]:
    search = fixed.run.search
    assert search is not None
    passed = fixed.run.verdict.passed and fixed.code == 0
    within = passed and not search.exhausted
    note = f"{search.spent:.0f} of {search.budget:g} inferences over the data"
    return [
        equal(f"{name}: verdict passed", passed, wanted=True),
        equal(f"{name}: passed within the budget", within, wanted=True, note=note),
    ]


def _kept(fixed: Ran) -> int:
    assert fixed.run.plan is not None
    return len(fixed.run.plan.keep)
