import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halfwise.fixing.after_engines import delivered_next, diagnose_command, lower_next
from halfwise.options.options import understand
from halfwise.records import Cause, RungTried
from tests.unit.reporting.engine_runs import engines

CASE: Any = SimpleNamespace(network=SimpleNamespace(path=Path("my model.onnx")))


def test_the_command_of_diagnose_has_the_options_that_fit():
    request = understand(
        "x.npz",
        {
            "target": "tensorrt",
            "trt_command": "ssh orin python3",
            "max_builds": 3,
            "min_shapes": ("x:1x3", "x:2x3"),
            "opt_shapes": ("x:1x3", "x:4x3"),
            "max_shapes": ("x:1x3", "x:8x3"),
            "rel_max": 0.02,
            "keep": ("norm",),
            "tf32": True,
        },
    )
    words = shlex.split(diagnose_command(CASE, request, Path("runs/one")))
    assert words[:5] == ["halfwise", "diagnose", "my model.onnx", "--inputs", "x.npz"]
    assert words[words.index("--trt-command") + 1] == "ssh orin python3"
    assert [words[i + 1] for i, w in enumerate(words) if w == "--minShapes"] == ["x:1x3", "x:2x3"]
    assert words[words.index("--rel-max") + 1] == "0.02"
    assert not {"--keep", "--max-builds", "--tf32"} & set(words)
    assert words[-2:] == ["-o", "runs/one.diagnosis"]
    in_memory = understand({}, {"allow_random": True})
    assert "--inputs DATA --allow-random" in diagnose_command(CASE, in_memory, None)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no-engine", ("halfwise modernize 'my model.onnx'", "--optimization-level", "version")),
        ("not-run", ("--optimization-level",)),
        ("kernel", ("--optimization-level", "--accumulate fp16")),
        ("ignored", ("--typing strong", "--max-builds")),
        ("no-effect", ("--max-builds",)),
        ("unknown", ("--max-builds",)),
    ],
)
def test_what_may_lead_lower_fits_what_engines_showed(kind, said):
    low = RungTried(rung="fp16", end="tolerance", plans=1, builds=1, built=1, ran=1)
    found = engines().model_copy(update={"rungs": (low,), "causes": (Cause(kind=kind),)})
    lines = " ".join(lower_next(found, CASE))
    assert all(what in lines for what in said)
    assert ("modernize" in lines) == (kind == "no-engine")
    passed = found.model_copy(update={"rungs": (low.model_copy(update={"end": "slower"}),)})
    assert lower_next(passed, CASE) == ()


@pytest.mark.parametrize(
    ("end", "kinds", "said"),
    [
        ("lost", ("lost",), "The worker was lost, which tells nothing of FP16 engines"),
        ("lost", (), "The worker was lost, which tells nothing of FP16 engines"),
        ("unfetched", (), "The FP16 engine that passed could not be fetched"),
    ],
)
def test_what_was_lost_is_tried_again_not_searched_for_longer(end, kinds, said):
    low = RungTried(rung="fp16", end=end, plans=1, builds=1, built=1, ran=1)
    causes = tuple(Cause(kind=kind) for kind in kinds)
    found = engines().model_copy(update={"rungs": (low,), "causes": causes})
    (line,) = lower_next(found, CASE)
    assert line.startswith(said)
    assert "--start-from" in line


def test_where_the_engine_is():
    assert delivered_next(None) == ()
    assert "runs/one/model.engine" in delivered_next(Path("runs/one"))[0]
