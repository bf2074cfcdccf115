"""Splits samples into a part for the search and a part for the verdict."""

from collections.abc import Sequence

from halfwise.case import Samples


def split_heldout(samples: Samples) -> tuple[Samples, Samples]:
    """Split samples into calibration and held-out ones, three to one.

    Every fourth sample is held out (3, 7, 11, …), so that data in some order is spread over both
    parts; of two or three samples the last one is. A single sample is not split: the held-out
    part is empty, as it is for no samples at all.

    Returns:
        Calibration and held-out samples, each in their first order.
    """
    if len(samples) < 2:
        return samples, samples.select(())
    heldout = list(range(3, len(samples), 4)) or [len(samples) - 1]
    calibration = [i for i in range(len(samples)) if i not in set(heldout)]
    return samples.select(calibration), samples.select(heldout)


def unseen(calibration: Sequence[str], heldout: Sequence[str]) -> list[int]:
    """Return which held-out samples are copies of no other, in ascending order.

    Copies of calibration samples are data that the search has seen. So would copies of one another
    be, once one of them fails and joins the calibration: of these the first is returned.

    Args:
        calibration: Hashes of the calibration samples.
        heldout: Hashes of the held-out samples.
    """
    known = set(calibration)
    chosen = []
    for i, digest in enumerate(heldout):
        if digest not in known:
            chosen.append(i)
            known.add(digest)
    return chosen
