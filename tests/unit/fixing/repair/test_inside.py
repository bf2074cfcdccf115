"""The part that a repair changes begins at the last tensors that both compute alike."""

from halfwise.case import CPU
from halfwise.fixing.repair.inside import changed_part
from tests.unit.fixing.repair.test_proof import ids, samples, stream


def test_both_parts_take_what_is_in_front_of_the_change() -> None:
    before, after = stream(0, table=True), stream(0, 4, table=True)
    found = changed_part(before, after, ids(), runtime=CPU)
    assert found is not None
    one, other, given = found
    assert [v.name for v in one.graph.inputs] == [v.name for v in other.graph.inputs]
    assert {name.partition("::")[0] for name in given[0]} == {"Gather_0_out", "ids"}
    assert "Gather" not in {node.op_type for node in one.nodes()}


def test_there_is_none_where_nothing_is_shared_or_inputs_can_be_widened() -> None:
    assert changed_part(stream(0), stream(0, 4), samples(), runtime=CPU) is None
    same = stream(0, table=True)
    assert changed_part(same, same, ids(), runtime=CPU) is None
