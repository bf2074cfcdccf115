import pytest

from halfwise.records import Unjudged
from halfwise.reporting.unjudged import not_judged


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Unjudged(kind="non-finite", name="y"), "output y: FP32 itself gives nothing finite"),
        (Unjudged(kind="empty", name="y"), "output y: it is empty on every sample"),
        (Unjudged(kind="zeros", name="y"), "zeros would pass in place of its values"),
        (Unjudged(kind="zeros", name="y", reference=0.5), "of its values, whose largest is 0.5"),
        (Unjudged(kind="constant", name="y"), "psnr has no peak"),
        (
            Unjudged(kind="never-ran", name="choose", body="then_branch", op="If"),
            "If node choose: then_branch never ran",
        ),
        (
            Unjudged(kind="never-ran", name="a", body="then_branch", op="If", inputs=("rate",)),
            "on any sample; whether it runs goes by input rate",
        ),
        (
            Unjudged(kind="metric", name="epe", reference=-0.5, other=-0.6, allowed=0.1),
            "epe would accept values next to zero in place of all outputs: they have 0.6, FP32's "
            "own have 0.5, and a rise of 0.1 is allowed",
        ),
        (
            Unjudged(kind="guessing", name="top1", reference=0.1, other=0.1, labelled=True),
            "have 0.1, no more than guessing would have, 0.1. Do the labels fit?",
        ),
    ],
)
def test_what_is_not_judged_is_told_with_its_numbers(found, words):
    told = not_judged(found)
    assert told.startswith("not judged: ")
    assert words in told
