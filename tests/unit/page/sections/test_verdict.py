from halfwise.page.sections import Stored, verdict
from halfwise.records import Step, said
from tests.unit.page.test_document import stored
from tests.unit.reporting.diagnoses import diagnosis


def test_that_a_command_stands_apart_from_its_words() -> None:
    lint = Step(kind="lint", command=("halfwise", "lint", "a: halfwise b.onnx"))
    section = verdict(stored(next_step=(*said("Read this: halfwise fix a.onnx"), lint)))
    assert section.facts["steps"] == [
        ("Read this: halfwise fix a.onnx", ""),
        ("See what the linter finds", "halfwise lint 'a: halfwise b.onnx'"),
    ]


def test_that_a_diagnosis_tells_what_to_do() -> None:
    facts = verdict(Stored(diagnosis())).facts
    assert facts["steps"]
    assert facts["parts"]
