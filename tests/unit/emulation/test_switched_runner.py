from functools import partial

import numpy as np
import pytest

from halfwise.emulation.switched import Layout, SwitchedRunner, emulate_switched
from halfwise.errors import RunFailed
from halfwise.formats import FP16
from halfwise.graph.model import node_name
from halfwise.graph.roles import roles_of
from tests.unit.emulation.test_forms import chain
from tests.unit.emulation.test_late_start import NODES, sample_of


def runner(*, cuts: int) -> SwitchedRunner:
    net = chain(12)

    def make():
        return emulate_switched(net, roles_of(net), FP16, layout=Layout(size=1, cuts=cuts))

    return SwitchedRunner(make, make)


@pytest.mark.parametrize("kept", [0, 8, 12])
def test_a_late_start_and_a_release_change_no_bit(kept):
    fp32, sample = frozenset(NODES[:kept]), sample_of(3)
    expected = runner(cuts=0).run(sample, fp32)
    late = runner(cuts=3)
    for _ in range(3):
        found = late.run(sample, fp32)
        assert all(np.array_equal(found[name], array) for name, array in expected.items())
    late.release()
    found = late.run(sample, fp32)
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


@pytest.mark.parametrize("kept", [0, 12])
def test_a_sample_that_does_not_fit_fails_wherever_a_run_would_begin(kept):
    with pytest.raises(RunFailed):
        runner(cuts=3).run({"x": np.ones((2, 5), np.float32)}, frozenset(NODES[:kept]))


@pytest.mark.parametrize("kept", [0, 64, 100, 200])
def test_the_model_loaded_for_mixed_stretches_gets_switches_of_its_own(kept):
    net, sample = chain(200), sample_of(3)

    def make(*, alike: bool):
        return emulate_switched(net, roles_of(net), FP16, layout=Layout(alike=alike))

    fp32 = frozenset(map(node_name, list(net.nodes())[:kept]))
    both = SwitchedRunner(partial(make, alike=True), partial(make, alike=False))
    expected = SwitchedRunner(partial(make, alike=False)).run(sample, fp32)
    both.run(sample, frozenset())
    assert np.array_equal(both.run(sample, fp32)["y"], expected["y"])
