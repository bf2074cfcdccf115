"""A repaired model is believed what it says of itself only as far as that holds."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from halfwise import api
from halfwise.errors import CaseError
from halfwise.fixing.repair import making
from halfwise.fixing.repair.making import KEY, marked
from halfwise.records import Run
from halfwise.reporting.remarks import reasons
from halfwise.reporting.view import report
from tests.unit.fixing.repair.sluices import WIDE, Sluice, sluiced

ILL = sluiced(WIDE, WIDE)


@pytest.fixture(scope="module")
def fixed() -> onnx.ModelProto:
    """What `fix` writes where a rule repairs two places, with an entry of the user's own."""
    proto = onnx.ModelProto()
    proto.CopyFrom(ILL.proto)
    proto.metadata_props.add(key="author", value="me")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "RULES", (Sluice(),))
        model = api.fix(proto, dict(ILL.inputs)).model
    assert model is not None
    assert {p.key for p in model.metadata_props} == {"author", KEY}
    return model


@pytest.fixture
def written(fixed, monkeypatch) -> onnx.ModelProto:
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    proto = onnx.ModelProto()
    proto.CopyFrom(fixed)
    return proto


def verified(candidate: onnx.ModelProto, original: onnx.ModelProto = ILL.proto) -> Run:
    return api.verify(original, candidate, dict(ILL.inputs)).run


def failures(run: Run) -> list[str]:
    assert not run.verdict.passed
    return [failure.kind for failure in run.verdict.failures]


def test_what_fix_repaired_holds_and_is_told(written):
    run = verified(written)
    assert run.verdict.passed
    assert run.remade is not None
    assert run.remade.holds
    assert [repair.rule for repair in run.remade.repairs] == ["scale", "scale"]
    assert run.remade.proof is not None
    assert run.remade.proof.repaired < 1e-6
    assert "metadata lists 2 repairs (scale): repeated" in str(report(run))


def test_a_second_fix_repairs_nothing_and_keeps_what_the_file_says(written):
    again = api.fix(written, dict(ILL.inputs))
    assert again.run.plan is not None
    assert not again.run.plan.repairs
    assert not again.run.plan.keep
    assert again.model is not None
    one, other = (marked(ir.serde.deserialize_model(m)) for m in (written, again.model))
    assert len(one) == 2
    assert one == other
    # All are in the original already, so nothing is claimed of it.
    run = verified(again.model, written)
    assert run.verdict.passed
    assert run.remade is None


def entry(proto):
    return next(p for p in proto.metadata_props if p.key == KEY)


def other_weights(proto: onnx.ModelProto) -> None:
    for constant in proto.graph.initializer:
        if len(constant.dims) == 2:
            array = onnx.numpy_helper.to_array(constant).copy()
            array[0, 0] = np.nextafter(array[0, 0], np.inf, dtype=array.dtype)
            constant.CopyFrom(onnx.numpy_helper.from_array(array, constant.name))


def fewer(proto: onnx.ModelProto) -> None:
    text = entry(proto).value
    entry(proto).value = text[: text.rindex(',{"rule"')] + "]}"


def of_nodes_that_are_not(proto: onnx.ModelProto) -> None:
    entry(proto).value = entry(proto).value.replace("wide_0", "gone")


def of_a_rule_that_is_not_known(proto: onnx.ModelProto) -> None:
    entry(proto).value = entry(proto).value.replace("scale", "mask")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (other_weights, "other-graph"),
        (fewer, "other-graph"),
        (of_nodes_that_are_not, "unmade"),
        (of_a_rule_that_is_not_known, "unmade"),
    ],
)
def test_what_is_not_what_it_says_fails(
    change: Callable[[onnx.ModelProto], None], kind: str, written
):
    change(written)
    run = verified(written)
    assert failures(run) == [kind]
    assert "2 repairs" in str(report(run)) or "1 repair " in str(report(run))
    assert "not hold" in str(report(run))


def test_repairs_that_change_the_function_fail(written, monkeypatch):
    # The same record, and a rule that makes something else of it by now.
    monkeypatch.setattr(making, "RULES", (Sluice(off=1.001),))
    run = verified(written)
    assert failures(run) == ["other-graph", "unproven"]
    assert "of an output's largest value, 0.0002 is allowed" in reasons(run.verdict.failures)[-1]


def test_metadata_that_cannot_be_read_is_one_clear_sentence(written):
    entry(written).value = "{"
    with pytest.raises(CaseError, match="is not a list of repairs"):
        verified(written)


def test_a_repaired_model_whose_metadata_is_gone_is_told(written):
    written.metadata_props.remove(entry(written))
    run = verified(written)
    assert run.verdict.passed
    assert run.remade is not None
    assert run.remade.differs
    assert "differs from the original, first at" in str(report(run))
    # What differs in types alone does not.
    plain = api.fix(ILL.proto, dict(ILL.inputs), no_repair=True).model
    assert plain is not None
    assert verified(plain).remade is None
