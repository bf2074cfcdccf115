"""The models of `bench/scale.py`: as many nodes and faults as asked for, each fault found."""

from __future__ import annotations

from collections import Counter

import onnx

from bench import repeated_blocks
from halfwise import fix


def test_models_are_repeatable_and_hold_what_was_asked_for() -> None:
    one, other = (repeated_blocks.model(300, 8) for _ in range(2))
    onnx.checker.check_model(one, full_check=True)
    assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
    assert 300 <= len(one.graph.node) < 360
    places = {n.name.partition("/")[0] for n in one.graph.node}
    kinds = Counter(p.rpartition("_")[2] for p in places if p.startswith("fault_"))
    assert kinds == dict.fromkeys(repeated_blocks.FAULTS, 2)


def test_every_fault_is_found_and_nothing_else() -> None:
    samples = {"x": repeated_blocks.samples(8)}
    run = fix(repeated_blocks.model(60, 4), samples, allow_random=True, no_repair=True).run
    assert run.plan is not None
    assert run.verdict.passed
    assert {k.node.partition("/")[0] for k in run.plan.keep} == {
        f"fault_{i}_{kind}" for i, kind in enumerate(repeated_blocks.FAULTS)
    }
