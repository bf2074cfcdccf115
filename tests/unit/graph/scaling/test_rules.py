import onnx
import pytest

from halfwise.graph.scaling.rules import HOMOGENEOUS, INVARIANT, RULES


@pytest.mark.parametrize("op_type", sorted({*RULES, *HOMOGENEOUS, *INVARIANT}))
def test_every_operator_has_the_places_that_its_equations_name(op_type: str):
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type]
    inputs = max(s.max_input for s in schemas)
    outputs = max(s.max_output for s in schemas)
    attributes = {name for s in schemas for name in s.attributes}
    for equation in RULES.get(op_type, ()):
        for place in equation:
            if isinstance(place, str):
                assert place in attributes
            else:
                assert place < inputs
                assert ~place < outputs
