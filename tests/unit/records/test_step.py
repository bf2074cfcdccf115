from halfwise.records import Step, said
from tests.unit.reporting.runs import run


def test_a_sentence_of_an_older_record_is_read_as_one() -> None:
    made = run(next_step=())
    older = made.model_dump() | {"next_step": ("Build it: trtexec --onnx=a",)}
    assert type(made).model_validate(older).next_step == said("Build it: trtexec --onnx=a")
    step = Step(kind="lint", command=("halfwise", "lint", "m.onnx"))
    assert Step.model_validate_json(step.model_dump_json()) == step
