"""Demands that a function of the user's makes the same of a sample each time."""

from collections.abc import Callable, Sequence

from halfwise.case import Sample, Samples
from halfwise.errors import CaseError
from halfwise.inputs.hashing import hash_sample


def repeatable(load: Callable[[int], Sample], ids: Sequence[str], spec: str) -> Samples:
    """Return samples that a function makes anew whenever they are asked for.

    The first is made twice at once; from then on each must be what it was before, to the bit. Takes
    a hash of each, which is quick beside decoding an image.

    Args:
        load: Makes sample i.
        ids: One identifier per sample; at least one.
        spec: `file.py:function`, for messages.

    Raises:
        CaseError: A sample is another than before, here or when it is loaded.
    """
    before: dict[int, str] = {}

    def checked(index: int) -> Sample:
        sample = load(index)
        found = hash_sample(sample)
        if before.setdefault(index, found) != found:
            raise CaseError(
                f"{spec} made something else of {ids[index]} than before, expected the same each "
                "time: samples are made anew when they are needed.",
                "Leave random augmentation out, as at inference.",
            )
        return sample

    for _ in range(2):
        checked(0)
    return Samples(tuple(ids), checked)
