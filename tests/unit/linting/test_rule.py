import pytest

from halfwise.graph.loading import read_unchecked
from halfwise.linting import RULES, examine
from halfwise.linting.rule import Subject, standard_nodes
from tests.faults import FAULTS


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
    findings, skipped = examine(Subject(ill("huge_weights")))
    assert skipped == ()
    (finding,) = findings
    assert (finding.node, finding.op, finding.place) == ("matmul", "MatMul", 1)
    assert finding.tensor == "constant_0"
    assert finding.source == next(r.source for r in RULES if r.id == finding.rule)


def test_ignored_rules_are_not_looked_for(ill):
    assert examine(Subject(ill("huge_weights")), ignored=("constant-beyond-fp16",)) == ((), ())


def test_nodes_of_other_domains_are_not_onnxs(ill):
    subject = Subject(ill("contributed"), None)
    assert not list(standard_nodes(subject))
    assert subject.opset == 17
