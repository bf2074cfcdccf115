import numpy as np

from halfwise.case import Case, Samples, Settings
from halfwise.graph.model import network_from_proto
from halfwise.graph.modern.candidates import FIRST_OPSET
from halfwise.progress import Silent
from halfwise.records import Criterion
from halfwise.tools.modernize.judged import MOST_SAMPLES, modernize
from tests.models import normalisation


def case(real=True, count=20):
    ill = normalisation.layer_norm()
    samples = Samples(tuple(map(str, range(count))), lambda _: ill.sample(0))
    network = network_from_proto(ill.proto)
    return Case(
        network,
        samples,
        samples.select(()),
        Criterion(),
        None,
        ("a note", "warning: b"),
        "",
        real=real,
    )


def run(case):
    return modernize(
        case,
        Settings(),
        Silent(),
        opset=20,
        available=tuple(FIRST_OPSET),
        target="TensorRT 10.0",
        transposes=False,
    )


def test_what_overflows_in_fp16_does_not_as_one_node():
    network, record = run(case())
    assert [r.op for r in record.rewritings] == ["LayerNormalization"]
    assert record.names["square"] == record.rewritings[0].added
    assert (record.opset, record.new_opset) == (17, 20)
    assert (record.nodes, record.new_nodes) == (8, len(list(network.nodes())))
    assert len(record.samples) == MOST_SAMPLES
    assert record.fp16_before is not None
    assert record.fp16_after is not None
    assert (record.fp16_before.passed, record.fp16_after.passed) == (False, True)
    assert record.notes == ("warning: b",)
    assert np.isfinite(record.error)


def test_random_numbers_say_nothing_of_fp16():
    _, record = run(case(real=False, count=2))
    assert (record.real, record.fp16_before, record.fp16_after) == (False, None, None)
