"""Inputs: turns what the user gave into samples that fit the model, and says how it was read.

The way of a sample: `loading` finds out what was named, `reading` reads each form of it, and
`halfwise.options.loading` puts what comes back into a case. `samples` makes samples of the arrays,
each fitted to its input by `fitting`.

* `array_files`, `recorded` and `functions` open files of arrays, Polygraphy's, and the user's code.
* `pairs` finds which files make one sample, where inputs have sources of their own.
* `pipelines` reads raw samples, and what a pipeline made of them, without a model.
* `synthetic` makes random samples, and tells made-up data from real data.
* `heldout` splits samples, and tells what the search has not seen, nor anything near to it.

User data is untrusted: nothing is unpickled. A `file.py:function` runs, as the user asked.
"""

from halfwise.inputs.fitting import InputSpec, fit_to
from halfwise.inputs.functions import UserFunction, load_function
from halfwise.inputs.heldout import sketch_each, split_heldout, unseen
from halfwise.inputs.labels import load_labels
from halfwise.inputs.loading import RANDOM, load_inputs, load_samples
from halfwise.inputs.pairs import split_sources
from halfwise.inputs.pipelines import RawSamples, load_made, load_raw
from halfwise.inputs.recorded import fit_recorded, holds_outputs, load_recorded
from halfwise.inputs.samples import LoadedSamples, hash_together
from halfwise.inputs.synthetic import judge_inputs, random_samples

__all__ = [
    "RANDOM",
    "InputSpec",
    "LoadedSamples",
    "RawSamples",
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
