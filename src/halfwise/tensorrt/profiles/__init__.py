"""Optimization profiles: from the samples, or from the user's options in trtexec's notation.

* `profiles_from_data` and `profiles_from_options` make them, `check_covered` holds samples to them.
* `profile_of` tells which profile a sample runs in.
* `parse_shapes` and `format_shapes` are the notation.
"""

from halfwise.tensorrt.profiles.notation import format_shapes, parse_shapes
from halfwise.tensorrt.profiles.ranges import (
    check_covered,
    profile_of,
    profiles_from_data,
    profiles_from_options,
)

__all__ = [
    "check_covered",
    "format_shapes",
    "parse_shapes",
    "profile_of",
    "profiles_from_data",
    "profiles_from_options",
]
