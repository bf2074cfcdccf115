from halfwise.records import Exported, ParityCheck


def test_a_record_survives_json():
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
