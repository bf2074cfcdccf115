from halfwise.records import (
    Exported,
    LeftAlone,
    Modernized,
    NodeName,
    ParityCheck,
    Rewriting,
    TensorName,
)


def test_an_export_survives_json():
    record = Exported(
        module="net.py:make",
        model="m.onnx",
        exporter="dynamo",
        opset=18,
        nodes=16,
        inputs=("x batch×3",),
        outputs=("y",),
        tolerance=1e-4,
        checks=(ParityCheck(sizes={"batch": 2}, error=float("inf"), problem="it does not run"),),
        passed=False,
    )
    assert Exported.model_validate_json(record.model_dump_json()) == record


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
