"""The three kinds of `bench/large.py`, small, treated like models of gigabytes."""

import numpy as np
import pytest

from bench import large
from halfwise.emulation import ort
from halfwise.fixing.loop import fix
from halfwise.graph import weights
from halfwise.graph.weights import MappedTensor
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import replace


@pytest.mark.parametrize("repair", [False, True], ids=["kept", "repaired"])
@pytest.mark.parametrize("kind", large.KINDS)
def test_an_overflow_is_mended_with_weights_that_leave_memory(kind, repair, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "LARGE_MODEL_BYTES", 0)
    monkeypatch.setattr(large, "WORDS", 200)
    model, samples, broken = large.make_kind(tmp_path, kind, 1, width=64)
    with np.load(samples) as arrays:
        request = understand(dict(arrays), {"no_repair": not repair})
    case = load_case(model, request.data, request.criterion)
    fixed = fix(case, replace(request.settings, large_from=0), Silent())
    assert fixed.verdict.passed
    assert fixed.plan is not None
    held = {k.node for k in fixed.plan.keep}
    mended = {node for r in fixed.plan.repairs for node in r.nodes}
    assert held == (set() if repair else broken)
    assert ("ffn_2_up" in mended) == repair
    head = fixed.rewritten.model.graph.initializers["head"].const_value
    assert isinstance(head, MappedTensor)
    assert head.numpy().dtype == np.float16


@pytest.fixture(params=large.KINDS)
def planted(request, tmp_path, monkeypatch):
    """A model of a kind, about 3 MB, its samples, and a device that takes 1.8 MB of weights."""
    monkeypatch.setattr(large, "WORDS", 200)
    made = large.make_kind(tmp_path, request.param, 3, width=64)
    monkeypatch.setattr(ort, "_in_place", lambda *_: {})
    monkeypatch.setattr(ort, "_room", lambda _: 1_800_000)
    return made


def test_an_overflow_is_mended_part_by_part(planted, call):
    model, samples, _ = planted
    given = ("--inputs", samples, "--allow", "random")
    ended = call("fix", model, *given, "-o", "run")
    assert ended.code == 0, ended.out + ended.err
    assert ended.record["verdict"]["passed"]
    assert ended.kept == set()
    verified = call("verify", model, ended.model, *given)
    assert verified.code == 0, verified.out + verified.err


def test_a_device_too_small_for_any_part_is_one_sentence(planted, monkeypatch, refused):
    model, samples, _ = planted
    monkeypatch.setattr(ort, "_room", lambda _: 20_000)
    said = refused(6, "fix", model, "--inputs", samples, "--allow", "random", "-o", "run")
    assert "cannot be divided further and reads" in said
