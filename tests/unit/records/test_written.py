from halfwise.records import (
    LeftAlone,
    Modernized,
    NodeName,
    Rewriting,
    TensorName,
)

NAMES = (NodeName("/a/Pow"), NodeName("/a/Div"))


def test_a_rewritten_model_survives_json():
    new = NodeName("/a/LayerNormalization")
    record = Modernized(
        model="m.onnx",
        opset=13,
        new_opset=20,
        target="TensorRT 10.0",
        rewritings=(
            Rewriting(
                op="LayerNormalization",
                output=TensorName("y"),
                removed=NAMES,
                added=(new,),
                error=1e-7,
            ),
        ),
        left=(LeftAlone(op="Gelu", nodes=NAMES, reason="the target has no Gelu"),),
        folded=(NodeName("/Shape"),),
        names=dict.fromkeys(NAMES, (new,)),
        nodes=9,
        new_nodes=1,
        samples=("x.npz[0]",),
        real=True,
        error=float("inf"),
    )
    assert Modernized.model_validate_json(record.model_dump_json()) == record
