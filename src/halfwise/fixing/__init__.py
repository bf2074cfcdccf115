"""The main job: observe, attribute, then plan, rewrite and judge until held-out samples agree.

`loop` runs the stages in order; `evidence` is what the reference shows on the calibration samples;
`plan` turns evidence into a plan; `engines` does the same with real engines.
"""
