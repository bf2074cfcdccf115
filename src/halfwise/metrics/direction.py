"""Which way a metric's own value moves as outputs get worse.

Every metric of halfwise is such that higher is better, so one that is an error is its negative.
"""

_ERRORS = ("epe",)


def rises(name: str) -> bool:
    """Return whether what a metric's field calls by that name rises as outputs get worse."""
    return name in _ERRORS


def usual(name: str, value: float) -> float:
    """Return a metric's value as its field writes it: of one that `rises`, minus the value.

    Zero is 0.0, never -0.0, NaN stays NaN, and infinities change sign with all others.
    """
    return (0.0 - value if rises(name) else value) + 0.0
