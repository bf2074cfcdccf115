"""The three kinds of `bench/large.py`, small, treated like models of gigabytes."""

import numpy as np
import pytest

from bench import large
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
