"""Splits samples into a part for the search and a part for the verdict."""

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
