from halfwise.page.sections.verdict import step, verdict
from halfwise.page.stored import Stored
from tests.unit.page.test_document import stored
from tests.unit.reporting.diagnoses import diagnosis


def test_that_a_command_stands_apart_from_its_words() -> None:
    line = "TensorRT 9 and later: trtexec --onnx='a: halfwise b' --fp16"
    assert step(line) == {
        "words": "TensorRT 9 and later",
        "command": "trtexec --onnx='a: halfwise b' --fp16",
    }


def test_that_words_alone_are_no_command() -> None:
    line = "This verdict is emulated; only the engine proves it: --target tensorrt."
    assert step(line) == {"words": line, "command": ""}


def test_that_next_steps_of_the_run_are_there() -> None:
    section = verdict(stored(next_step=("halfwise fix a.onnx",)))
    assert section.facts["title"] == "Next"
    assert section.facts["steps"] == [{"words": "", "command": "halfwise fix a.onnx"}]


def test_that_a_diagnosis_tells_what_to_do() -> None:
    facts = verdict(Stored.of(diagnosis())).facts
    assert facts["steps"]
    assert facts["parts"]
