"""Inputs: turns the user's data into samples that fit the model, and reports how it was read.

`loading` finds out what the user named, `reading` reads each kind of data, and
`halfwise.options.loading` builds a case from the result. `samples` splits arrays into samples, and
`fitting` fits each sample to the model's inputs.

* `array_files`, `recorded` and `functions` open array files, Polygraphy files and user code.
* `pairs` finds which files form one sample if inputs have separate sources.
* `pipelines` reads raw samples and the results of pipelines, without a model.
* `synthetic` makes random samples, and tells generated from real data.
* `heldout` splits samples, and finds those that differ from all that the search has seen.

User data is untrusted: nothing is unpickled. A `file.py:function` does run, as requested.
"""

from halfwise.case import hash_together
from halfwise.inputs.array_files import load_labels
from halfwise.inputs.fitting import InputSpec, fit_to, split_sources
from halfwise.inputs.functions import UserFunction, load_function
from halfwise.inputs.loading import RANDOM, load_inputs, load_samples
from halfwise.inputs.pipelines import RawSamples, load_made, load_raw
from halfwise.inputs.recorded import (
    fit_recorded,
    holds_outputs,
    judge_inputs,
    load_recorded,
    random_samples,
)
from halfwise.inputs.samples import LoadedSamples, Rows, sketch_each, split_heldout, unseen

__all__ = [
    "RANDOM",
    "InputSpec",
    "LoadedSamples",
    "RawSamples",
    "Rows",
    "UserFunction",
    "fit_recorded",
    "fit_to",
    "hash_together",
    "holds_outputs",
    "judge_inputs",
    "load_function",
    "load_inputs",
    "load_labels",
    "load_made",
    "load_raw",
    "load_recorded",
    "load_samples",
    "random_samples",
    "sketch_each",
    "split_heldout",
    "split_sources",
    "unseen",
]
