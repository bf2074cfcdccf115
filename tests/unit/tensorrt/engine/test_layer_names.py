import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.tensorrt.engine.layer_names import foreign_region, names_in


@pytest.mark.parametrize(
    ("text", "region"),
    [
        (
            "Could not find any implementation for node {ForeignNode[177...Reshape_81 + (Unnamed "
            "Layer* 146) [Shuffle]]}.)",
            ("177", "(Unnamed Layer* 146) [Shuffle]"),
        ),
        (
            "10: Could not find any implementation for node {ForeignNode[(Unnamed Layer* 1247) "
            "[Shuffle].../layers.7/Transpose_2 + /layers.7/Reshape_4]}.",
            ("(Unnamed Layer* 1247) [Shuffle]", "/layers.7/Reshape_4"),
        ),
        ("{ForeignNode[/only/MatMul]}", ("/only/MatMul", "/only/MatMul")),
        ("cut off {ForeignNode[/a/Pow.../b/Ad", ("/a/Pow", "/b/Ad")),
        ("node Conv_3 + Relu_4.", None),
    ],
)
def test_ends_of_a_foreign_node(text, region):
    assert foreign_region(text) == region


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        (
            "Conv_620 + PWN(PWN(Sigmoid_621), Mul_622).weight",
            ("Conv_620", "Sigmoid_621", "Mul_622"),
        ),
        ("Conv_147 || Conv_145", ("Conv_147", "Conv_145")),
        ("/Constant_5_output_0 + (Unnamed Layer* 1897) [Shuffle]", ("/Constant_5_output_0",)),
        ("Conv_70[Conv] + Relu_71[Relu]", ("Conv_70", "Relu_71")),
        ("ONNXTRT_Broadcast_163_output, /a/Add", ("/a/Add",)),
        ("/n/Pow, /n/Sub, /n/Pow", ("/n/Pow", "/n/Sub")),
        (
            "{ForeignNode[/a/Pow.../b/Add + /b/Mul]} (Myelin[0x80000023])",
            ("/a/Pow", "/b/Add", "/b/Mul"),
        ),
        ("/neck/neck.1/ReduceMean_1.)", ("/neck/neck.1/ReduceMean_1",)),
        ("", ()),
    ],
)
def test_names_in_a_layer(expression, names):
    assert names_in(expression) == names


@given(st.text(alphabet="ab/(){}[]. +|,*_PWNForeignNode", max_size=80))
def test_any_text_is_read(text):
    foreign_region(text)
    assert all(name.strip() for name in names_in(text))
