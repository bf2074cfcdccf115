import numpy as np
import onnx_ir as ir
import pytest

from halfwise.graph.loading import network_from_proto, read_unchecked
from halfwise.linting import RULES, examine
from halfwise.linting.rule import Extent, Subject, extents, standard_nodes
from tests.faults import FAULTS
from tests.unit.graph.sketch import Sketch, f32


@pytest.fixture
def found():
    def found(array):
        s = Sketch()
        kind = ir.DataType.from_numpy(array.dtype)
        x = s.input("x", list(array.shape), int(kind))
        values = extents(network_from_proto(s.proto(s.op("Add", x, s.constant(array, "c")))))
        return {value.name: extent for value, extent in values.items()}

    return found


def test_numbers_are_counted(found):
    array = f32([0, 1e-9, 1e-6, 1, -1e5, np.inf, -np.inf, np.nan])
    assert found(array) == {
        "c": Extent(
            elements=8,
            least=-np.inf,
            largest=float(np.float32(1e5)),
            beyond=1,
            nonzero=4,
            subnormal=2,
            zeroed=1,
        )
    }


def test_empty_and_fp16_constants(found):
    assert found(f32([])) == {"c": Extent()}
    assert found(np.ones(2, np.float16)) == {}


@pytest.fixture
def ill(tmp_path):
    def ill(name):
        fault = next(f for f in FAULTS if f.name == name)
        (tmp_path / "m.onnx").write_bytes(fault.make(True).SerializeToString())
        return read_unchecked(tmp_path / "m.onnx")

    return ill


def test_ids_are_unique():
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_findings_carry_the_rule_and_the_place(ill):
    findings, skipped = examine(Subject(ill("logarithm")))
    assert skipped == ()
    (finding,) = findings
    assert (finding.node, finding.op, finding.place) == ("eps", "Add", 1)
    assert finding.tensor == "constant_0"
    assert finding.source == next(r.source for r in RULES if r.id == finding.rule)


def test_ignored_rules_are_not_looked_for(ill):
    assert examine(Subject(ill("logarithm")), ignored=("eps-vanishes",)) == ((), ())


def test_nodes_of_other_domains_are_not_onnxs(ill):
    subject = Subject(ill("contributed"), None)
    assert not list(standard_nodes(subject))
    assert subject.opset == 17
