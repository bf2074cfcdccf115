"""A recipe that passes samples, references and a limit to trtexec's tuning of build routes.

From 11.1 on trtexec builds an engine per route (a combination of settings inside the compiler),
runs each on pairs of inputs and references, drops those whose loss on an output reaches a
threshold, and saves the fastest of the rest. Options, metrics and their handling of NaN are from
`samples/trtexec/README.md`, `samples/common/sampleInference.cpp` and `sampleUtils.cpp` of
NVIDIA/TensorRT 11.1. All pairs go through the same buffers, so they have the same shapes. The
available settings differ between versions: the script asks trtexec for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError, UsageError
from halfwise.metrics import Outputs
from halfwise.metrics.measures import effective
from halfwise.records import Criterion, Recipe, Run, TensorName
from halfwise.tensorrt.recipes.commands import arguments, shell_script
from halfwise.tensorrt.recipes.programs import facts
from halfwise.tensorrt.trtexec.notation import Shape, format_shapes, quoted
from halfwise.tensorrt.versions import NEWEST_CHECKED, has, known_version, since, text_of
from halfwise.wording import count, number

Algorithm = Literal["lInf", "l2", "cos"]
"""trtexec's names for largest absolute error, mean squared error and 1 − cosine similarity, each
for one output on one sample."""

KNOBS, ROUTES = "knobs.py", "routes.txt"
SECONDS = 3600
"""Time after which no further route starts; a convention. 11.1 has 209 settings, so this means
a few hundred builds."""
_KNOBS = '''"""Print every setting with a choice, from what `trtexec --helpBuildRoute` prints."""
import json
import re
import sys

text = sys.stdin.read()
begin = re.search(r"^\\s*{", text, re.MULTILINE)
if begin is None:
    sys.exit("error: trtexec printed no settings: tuning needs trtexec 11.1 or later on Linux")
found, _ = json.JSONDecoder().raw_decode(text[begin.start() :].lstrip())
for setting in found["tuner_options"]:
    choice = setting["allowed_values"]
    if re.match(r"-[^\\s=]+=\\[[^][|]+(\\|[^][|]+)+\\]$", choice) and "..." not in choice:
        print(choice)
'''


@dataclass(frozen=True)
class Gate:
    """The criterion by which trtexec accepts an engine.

    Attributes:
        algorithm: The loss.
        threshold: Its limit, > 0: an engine must stay below on every output and pair.
        notes: Differences from halfwise's own verdict, one sentence each.
    """

    algorithm: Algorithm
    threshold: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Handed:
    """What trtexec receives.

    Attributes:
        pairs: Inputs and references per sample: paths of raw files by tensor name.
        shapes: Shapes of the inputs, the same for all samples.
        gate: The criterion.
        notes: What is not passed on, one sentence each.
    """

    pairs: Sequence[tuple[Mapping[TensorName, str], Mapping[TensorName, str]]]
    shapes: Mapping[TensorName, Shape]
    gate: Gate
    notes: tuple[str, ...] = ()


def tuned_by(run: Run, version: str | None) -> str:
    """Return the version of the trtexec that tunes: the named one, the run's, or the newest.

    Raises:
        UsageError: the named one is unknown, or has no build routes to tune.
    """
    built = run.engines.worker.tensorrt if run.engines else None
    if version is None and has("--tuneBuildRoutes", built):
        version = built
    chosen = version or text_of(NEWEST_CHECKED)
    if not has("--tuneBuildRoutes", known_version(chosen)):
        raise UsageError(
            f"trtexec {chosen} cannot tune build routes; {since('--tuneBuildRoutes')} and later "
            "can.",
            "Give --trt-version 11.1 or later.",
        )
    return chosen


def gate(
    criterion: Criterion, references: Sequence[Outputs], seen: Mapping[TensorName, float]
) -> Gate:
    """Return the strictest limit of all outputs, since trtexec has one for all.

    Of several thresholds only one is passed on: `rel_max` and `max_abs` before `snr_db` before
    `cosine`. A ratio over all samples becomes one per sample, which is stricter.

    Args:
        criterion: The run's criterion.
        references: Float outputs of the FP32 model, per sample; at least one.
        seen: Largest error per output of the plan that the run judged; the limit with a metric.

    Raises:
        CaseError: there is no limit above 0: an output is all zero, or nothing is known of it.
    """
    holds, names = effective(criterion), list(references[0])
    notes = []
    if holds.metric is not None:
        limits = {name: seen.get(TensorName(name), 0.0) for name in names}
        algorithm: Algorithm = "lInf"
        notes.append(
            f"The run was judged by {holds.metric}, which trtexec lacks: the limit is the largest "
            "error of the plan that passed."
        )
    elif holds.rel_max is not None or holds.max_abs is not None:
        algorithm = "lInf"
        limits = {name: _absolute(holds, [r[name] for r in references]) for name in names}
    elif holds.snr_db is not None:
        algorithm, share = "l2", 10 ** (-holds.snr_db / 10)
        limits = {n: share * min(_mean_square(r[n]) for r in references) for n in names}
    else:
        assert holds.cosine is not None
        algorithm, limits = "cos", dict.fromkeys(names, 1 - holds.cosine)
    threshold = min(limits.values())
    if not 0 < threshold < inf:
        worst = min(limits, key=lambda name: limits[name])
        raise CaseError(
            f"The limit for output {worst!r} is 0, but trtexec needs one above 0.",
            "Use --as python instead, and judge the engine with halfwise verify.",
        )
    if max(limits.values()) > threshold:
        told = ", ".join(f"{name} {number(limit)}" for name, limit in limits.items())
        notes.append(f"trtexec has one limit for all outputs: the smallest of {told}.")
    set_ = [n for n in ("max_abs", "rel_max", "snr_db", "cosine") if getattr(holds, n) is not None]
    if len(set_) > 1:
        notes.append(f"Of {', '.join(set_)}, trtexec gets only what {algorithm} can express.")
    return Gate(algorithm, threshold, tuple(notes))


def _absolute(holds: Criterion, references: Sequence[NDArray[Any]]) -> float:
    found = [] if holds.max_abs is None else [holds.max_abs]
    if holds.rel_max is not None:
        found.append(holds.rel_max * max(map(_largest, references)))
    return min(found)


def _largest(array: NDArray[Any]) -> float:
    wide = np.abs(array.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def _mean_square(array: NDArray[Any]) -> float:
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return float(np.square(finite).mean()) if finite.size else 0.0


def tuning(recipe: Recipe, handed: Handed) -> dict[str, str]:
    """Return the shell script, and the script that it calls to list the settings.

    Raises:
        CaseError: trtexec cannot express the name of a tensor.
    """
    command = [["trtexec"], *([word] for word in arguments(recipe, run=True))]
    if dynamic := _dynamic(recipe, handed):
        command.append([f"--shapes={format_shapes(dynamic)}"])
    command += [[f"--tuneBuildRouteFile={ROUTES}"], ["--tuningSearch=mixed"]]
    command += [["--tuningCacheFile=tuning.jsonl"], [f"--tuningTimeOut={SECONDS}"]]
    for place, (inputs, references) in enumerate(handed.pairs):
        # trtexec rejects a single --refPair.
        group = [f"--refPair={place}"] if len(handed.pairs) > 1 else []
        words = (f"--loadInputs={_files(inputs)}", f"--loadRefOutputs={_files(references)}")
        command.append([*group, *words])
    limit = f"--accuracyThreshold={handed.gate.threshold:.9g}"
    command.append([f"--accuracyAlgorithm={handed.gate.algorithm}", limit])
    ask = f"[ -e {ROUTES} ] || trtexec --helpBuildRoute | python3 {KNOBS} > {ROUTES} || exit 1"
    return {
        "tune_engine.sh": shell_script(_comments(recipe, handed), command, before=ask),
        KNOBS: _KNOBS,
    }


def _dynamic(recipe: Recipe, handed: Handed) -> dict[TensorName, Shape]:
    """Return the shapes of inputs with dynamic axes; trtexec rejects shapes for a static model.

    Raises:
        CaseError: an input's values determine shapes; trtexec does not read these from files.
    """
    values = sorted({name for profile in recipe.profiles for name in profile.values})
    if values:
        raise CaseError(
            f"The values of input {values[0]!r} decide shapes; trtexec cannot read them from a "
            "file.",
            "Use --as python instead, and judge the engine with halfwise verify.",
        )
    dynamic = {name for profile in recipe.profiles for name in profile.shapes}
    return {name: shape for name, shape in handed.shapes.items() if name in dynamic}


def _files(files: Mapping[TensorName, str]) -> str:
    return ",".join(f"{quoted(name, 'tensor')}:{path}" for name, path in files.items())


def _comments(recipe: Recipe, handed: Handed) -> list[str]:
    return [
        *facts(recipe),
        f"Tunes the engine: trtexec runs every route on {count(len(handed.pairs), 'sample')} with "
        "references.",
        *handed.gate.notes,
        *handed.notes,
        f"Remove settings from {ROUTES} to try fewer; after an interruption, continue with "
        "trtexec --continue --tuningCacheFile=tuning.jsonl.",
        "trtexec's comparison lets NaN pass, whatever the algorithm, and has no scales per slice: "
        "judge the saved engine before you use it.",
        "This recipe was never run with TensorRT; it follows trtexec's documentation.",
    ]
