"""Hypothesis profiles."""

import os

from hypothesis import settings

# A shared machine stalls now and then, so no deadline; a failure must come back on the next
# run, so the examples are the same each time.
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
