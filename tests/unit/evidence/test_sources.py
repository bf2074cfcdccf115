"""Where nodes come from, told by metadata as PyTorch 2.13 writes it, or by names."""

import onnx_ir as ir
import pytest

from halfwise.evidence.sources import Sources, scope_of
from halfwise.records import Frame

STACK = (
    'File "/home/me/net.py", line 20, in forward\n    for b in self.blocks: x = b(x)\n'
    '  File "/home/me/net.py", line 7, in forward\n    q, k, v = self.qkv(x).chunk(3, -1)\n'
    '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward\n'
    "    return F.linear(input, self.weight, self.bias)"
)
NAMES = "['', 'blocks.0', 'blocks.0.attn', 'blocks.0.attn.qkv', 'linear']"
CLASSES = "['net.T', 'net.Block', 'net.Attn', 'torch.nn.modules.linear.Linear', 'aten.linear']"


def node(name="node_linear", **metadata):
    made = ir.node("Add", inputs=[], name=name)
    made.metadata_props.update({f"pkg.torch.onnx.{k}": v for k, v in metadata.items()})
    return made


def exported():
    return node(stack_trace=STACK, name_scopes=NAMES, class_hierarchy=CLASSES)


def test_the_line_is_the_innermost_one_outside_the_framework() -> None:
    sources = Sources()
    assert sources.of(exported()) == sources.of(exported()) == 0
    (source,) = sources.found
    assert (source.module, source.kind) == ("blocks.0.attn.qkv", "torch.nn.modules.linear.Linear")
    assert [sources.frames[i].line for i in source.frames] == [20, 7, 134]
    assert source.own is not None
    assert sources.frames[source.own] == Frame(
        file="/home/me/net.py",
        line=7,
        function="forward",
        text="q, k, v = self.qkv(x).chunk(3, -1)",
    )


def test_a_model_of_the_framework_itself_has_no_line_of_its_author() -> None:
    sources = Sources()
    text = 'File "/v/dist-packages/torch/nn/modules/linear.py", line 3, in forward'
    sources.of(node(stack_trace=text))
    assert sources.found[0].own is None
    assert sources.frames[0].text == ""


@pytest.mark.parametrize("text", ["", "no stack", 'File "a", line x, in f', 'File "a'])
def test_other_metadata_tells_nothing(text) -> None:
    assert Sources().of(node(stack_trace=text, name_scopes=text)) is None


@pytest.mark.parametrize(
    ("name", "scopes", "expected"),
    [
        ("node_linear", NAMES, "blocks.0/attn/qkv"),
        ("node_add", "['', 'add']", ""),
        ("/blocks.0/attn/MatMul", "", "blocks.0/attn"),
        ("StatefulPartitionedCall/model/conv/Conv2D", "", "StatefulPartitionedCall/model/conv"),
        ("/MatMul", "", ""),
        ("/stem/stem.0/stem.0.1/Conv", "", "stem/0/1"),
        ("node_Split_20", "", None),
    ],
)
def test_scopes(name, scopes, expected) -> None:
    assert scope_of(node(name, name_scopes=scopes)) == expected
