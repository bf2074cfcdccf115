"""What a ladder asks before anything is searched."""

import numpy as np

from halfwise.api import ladder
from tests import tasks


def test_what_fp32_gives_is_judged_before_all_else(tmp_path):
    ill = tasks.classifier()
    np.savez(tmp_path / "expected.npz", probs_out=np.full((12, 1, 10), 0.1, np.float32))
    found = ladder(ill.proto, dict(ill.inputs), expected=tmp_path / "expected.npz")
    assert (found.run.plan, found.folder) == (None, None)
    (rung,) = found.run.rungs
    assert (rung.rung, rung.passed, rung.by) == ("fp32", False, "expected")
    assert rung.failures == found.run.verdict.failures
