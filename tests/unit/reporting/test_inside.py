from halfwise.records import IntermediateNonfinite, TensorName, Verdict
from halfwise.reporting.inside import inside


def verdict(*harmless: bool | None) -> Verdict:
    tensors = tuple(
        IntermediateNonfinite(tensor=TensorName(f"t{i}"), producer=None, elements=1, harmless=h)
        for i, h in enumerate(harmless)
    )
    return Verdict(
        passed=True,
        level="emulated",
        samples=("s",),
        unseen=True,
        outputs={},
        worst_sample=None,
        intermediate_nonfinite=tensors,
    )


def test_nothing_is_said_where_all_is_finite():
    assert inside(verdict()) is None


def test_that_it_is_harmless_is_said_where_all_of_it_is_known_to_be():
    told = inside(verdict(True, True))
    assert told is not None
    assert "2 tensors" in told.lines[0]
    assert "no harm" in told.lines[1]
    for unknown in (None, False):
        told = inside(verdict(True, unknown))
        assert told is not None
        assert told.lines[0].endswith("the first that may do harm t1.")
        assert told.lines[1].startswith("1 of them does no harm")
