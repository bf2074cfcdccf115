"""The run: observe, attribute, then plan, rewrite and judge until held-out samples agree.

`loop` is the run in order; `evidence` is what the reference shows on the calibration samples;
`planner` turns evidence into a plan.
"""

from halfwise.pipeline.loop import Fixed, fix

__all__ = ["Fixed", "fix"]
