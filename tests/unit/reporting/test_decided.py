from halfwise.records import Criterion, Decided
from halfwise.reporting.decided import decided_advice, decided_cause, decided_part, decided_signs

FLIP = {"node": "round", "op": "Round", "elements": 3, "of": 200}
FOUND = Decided.model_validate(
    {"flips": [FLIP], "nodes": ["exp", "round"], "error": 20, "left": 0.5, "samples": 4}
)
ALONE = FOUND.model_copy(update={"nodes": ("round",)})


def test_the_cause_has_what_was_measured():
    told = decided_cause(FOUND, "TF32 changes", Criterion())
    assert told == (
        "TF32 changes a decision: round decides 3 of 200 values differently on 4 samples; with the "
        "reference's decisions instead, the error falls from 20 × to 0.5 × what is allowed."
    )


def test_with_a_metric_errors_are_beside_the_default_tolerance():
    told = decided_cause(FOUND, "TF32 changes", Criterion(metric="top1"))
    assert told.endswith("0.5 × the default tolerance.")
    assert not any("metric" in s for s in decided_advice(FOUND, Criterion(metric="top1"), low=True))


def test_each_decision_and_what_leads_to_it():
    flip, before = decided_signs(FOUND)
    assert flip.text.startswith("Round decides 3 of 200 values (1.5 %) differently")
    assert (flip.nodes, before.nodes) == (("round",), ("exp",))
    assert len(decided_signs(ALONE)) == 1


def test_fp32_is_advised_only_where_it_would_help_and_something_leads_there():
    assert any("exp" in text for text in decided_advice(FOUND, Criterion(), low=True))
    assert not any("exp" in text for text in decided_advice(FOUND, Criterion(), low=False))
    assert not any("FP32" in text for text in decided_advice(ALONE, Criterion(), low=True))


def test_a_part_names_the_decisions():
    part = decided_part(FOUND, Criterion())
    assert (part.severity, part.nodes) == ("warning", ("round",))
