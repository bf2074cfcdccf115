"""No rule changes what a generated model computes, on what it saw and on what it did not."""

from hypothesis import HealthCheck, given, settings

from halfwise.fixing.repair.making import RULES
from halfwise.fixing.repair.proof import LIMIT
from halfwise.graph.loading import network_from_proto
from tests import repairing
from tests.fp64 import in_fp64
from tests.repair_graphs import Drawn, repair_graphs

LUCK = 2.0
"""Other roundings may err more than the original's, by chance."""


@settings(suppress_health_check=list(HealthCheck))
@given(repair_graphs())
def test_the_function_stays(drawn: Drawn) -> None:
    network = network_from_proto(drawn.proto)
    after, repairs = repairing.mended(network, drawn.seen, RULES)
    samples = (*drawn.seen, *drawn.unseen) if repairs else ()
    pairs = zip(repairing.run_all(network, samples), repairing.run_all(after, samples), strict=True)
    for sample, (before, now) in zip(samples, pairs, strict=True):
        if repairing.error(before, now) > LIMIT:
            exact = in_fp64(network.model, sample)
            limit = max(LIMIT, LUCK * repairing.error(exact, before))
            assert repairing.error(exact, now) <= limit
