"""Inputs: turns what the user gave into samples that fit the model, and says how it was read.

* `load_samples` reads files, folders, images, functions and arrays in memory (`loading` finds out
  which; `files`, `folders`, `images`, `functions`, `polygraphy` and `memory` read them).
* An array holds one or several samples by one rule (`layout`), has to fit its input (`fitting`),
  and arrays that are read together become samples (`blocks`); files of several inputs are paired
  by `pairs`.
* `load_recorded` reads outputs that something else computed on the samples.
* `load_raw` and `load_made` read raw samples, and what a pipeline made of them, without a model.
* `judge_inputs` tells made-up data from real data.
* `unseen` tells what the search has not seen, nor anything near to it.
* `split_heldout`, `load_labels` and `random_samples` do the rest.

User data is untrusted: nothing is unpickled. A `file.py:function` runs, as the user asked.
"""

from halfwise.inputs.fitting import fit_to
from halfwise.inputs.functions import UserFunction, load_function
from halfwise.inputs.hashing import hash_together
from halfwise.inputs.labels import load_labels
from halfwise.inputs.loading import load_samples
from halfwise.inputs.made import load_made
from halfwise.inputs.near import sketch_each, unseen
from halfwise.inputs.noise import judge_inputs
from halfwise.inputs.raw import RawSamples, load_raw
from halfwise.inputs.recorded import fit_recorded, holds_outputs, load_recorded
from halfwise.inputs.spec import InputSpec, LoadedSamples
from halfwise.inputs.split import split_heldout
from halfwise.inputs.synthetic import random_samples

__all__ = [
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
    "load_labels",
    "load_made",
    "load_raw",
    "load_recorded",
    "load_samples",
    "random_samples",
    "sketch_each",
    "split_heldout",
    "unseen",
]
