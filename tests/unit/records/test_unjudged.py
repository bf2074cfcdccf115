from halfwise.records import Unjudged, Verdict


def test_records_of_before_judged_everything():
    old = {
        "passed": True,
        "level": "emulated",
        "samples": ["a"],
        "unseen": True,
        "outputs": {},
        "worst_sample": None,
    }
    verdict = Verdict.model_validate(old)
    assert (verdict.unjudged, verdict.judged) == ((), True)


def test_infinities_survive_a_record():
    found = Unjudged(kind="zeros", name="y", reference=float("inf"))
    assert Unjudged.model_validate_json(found.model_dump_json()) == found
