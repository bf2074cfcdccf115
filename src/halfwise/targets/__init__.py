"""What runs or builds files as they are written: the targets that a verdict may hold for.

Nothing here knows halfwise's emulation. `runners` has what judges use; `webgpu` and `rtx` ask
programs of other packages, each in a process of its own (`worker`).
"""
