import pytest

from tests.faults import FAULTS, linted
from tests.unit.linting.said import said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "layer_norm",
            "9 nodes, ReduceMean to Add, write out LayerNormalization; opset 13 has no ",
        ),
        ("layer_norm_of_a_late_opset", "; opset 18 has LayerNormalization"),
        ("layer_norm_over_channels", " over axis 1, which is not the last; opset 17 has "),
        ("group_norm", "4 nodes, Reshape to Mul, write out GroupNormalization; opset 17 has no "),
        ("gelu_by_tanh", "8 nodes, Pow to Mul, write out Gelu; opset 17 has no Gelu"),
        ("attention", "5 nodes, MatMul to MatMul, write out Attention; opset 17 has no Attention"),
    ],
)
def test_what_is_written_out(name, message, tmp_path):
    assert message in said(name, tmp_path)


def test_channels_have_a_fix_of_their_own(tmp_path):
    fault = next(f for f in FAULTS if f.name == "layer_norm_over_channels")
    (finding,) = linted(fault.make(True), tmp_path).findings
    assert "put a Transpose before and after it" in finding.fix
