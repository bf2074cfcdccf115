from halfwise.records import Step


def test_a_step_survives_json() -> None:
    step = Step(kind="lint", command=("halfwise", "lint", "m.onnx"))
    assert Step.model_validate_json(step.model_dump_json()) == step
