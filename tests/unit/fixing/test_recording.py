"""Records of plans."""

import pytest

from tests import models
from tests.unit.fixing.test_loop import found

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_the_record_tells_what_keeps_a_node():
    """A rule about ranges keeps what makes large values, and what reads those that overflow."""
    plan = found(models.layer_norm(), keep_above=4000.0).plan
    why = {k.node: k.because for k in plan.keep}
    assert why
    assert all(b is not None and b.rule == "--keep-above 4000" for b in why.values())
    assert {k.kept_by for k in plan.keep} == {"rule"}
    assert plan.repairs == ()
