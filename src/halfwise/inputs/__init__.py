"""Inputs: turns the user's data into samples that fit the model, and reports how it was read.

`loading` finds out what the user named and reads it, and `halfwise.options.loading` builds a case
from the result. `samples` splits arrays into samples, holds some out, and finds those that differ
from all that the search has seen; `fitting` fits each sample to the model's inputs, and finds which
files form one sample.

* `array_files` and `functions` open array files and user code.
* `recorded` opens Polygraphy's files, makes random samples, and tells generated from real data.

User data is untrusted: nothing is unpickled. A `file.py:function` does run, as requested.
"""

from halfwise.case import hash_together
from halfwise.inputs.array_files import load_labels
from halfwise.inputs.fitting import InputSpec, split_sources
from halfwise.inputs.loading import RANDOM, load_inputs, load_samples
from halfwise.inputs.recorded import (
    fit_recorded,
    holds_outputs,
    judge_inputs,
    load_recorded,
    random_samples,
)
from halfwise.inputs.samples import LoadedSamples, Rows, split_heldout, unseen
from halfwise.user_code import UserFunction, load_function

__all__ = [
    "RANDOM",
    "InputSpec",
    "LoadedSamples",
    "Rows",
    "UserFunction",
    "fit_recorded",
    "hash_together",
    "holds_outputs",
    "judge_inputs",
    "load_function",
    "load_inputs",
    "load_labels",
    "load_recorded",
    "load_samples",
    "random_samples",
    "split_heldout",
    "split_sources",
    "unseen",
]
