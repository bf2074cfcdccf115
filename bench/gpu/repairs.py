"""Engines of repaired models against plain FP16 and against plans that keep nodes, in turns.

    python -m bench.gpu.repairs --trt-python PYTHON --work DIR [NAME …]

Each model has a planted factor that does not change its function. "plain" is the model without it
in FP16; "repaired" the model with it, repaired, in FP16; "kept" the same with some nodes in FP32
instead. Plans come from `bench.gpu.repair_plans`, weights are drawn here. `gpu_repairs.json` is
updated as results come in.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bench.figures import Figure, Result, equal, machine, reported, table
from bench.gpu.figures import RESULTS
from bench.gpu.jobs import BATCH, Host, add_host, host_of
from bench.gpu.pipe import Pipe, Refused, shape_profile
from bench.gpu.race import Racer, against, take_turns
from bench.gpu.repair_plans import FILE, SCALE, SCALED, Planned, Scaled, read
from halfwise.emulation.ort import Session
from halfwise.fixing.repair.making import repaired
from halfwise.graph.loading import network_from_proto
from halfwise.graph.movement import carried
from halfwise.graph.roles import roles_of
from halfwise.metrics import totals
from halfwise.metrics.measures import Excess
from halfwise.records import Criterion, NodeName
from halfwise.tensorrt.constrain import constraints

ROUNDS = 28
SEED = 1
"""Seed of the images that engines are judged and timed on; plans were found on others."""
REACH = {"plain": 1.02, "kept": 1.0}
"""Largest time of the repaired engine over another's, unless the interval holds 1."""
MAKING = 60.0
"""Seconds that a build may take; none begins when less is left."""

Arrays = Mapping[str, np.ndarray]


@dataclass
class Entrant:
    """One engine of a model.

    Attributes:
        racer: What it is.
        make: Makes its model.
        errors: Errors on the held-out images, by measure.
    """

    racer: Racer
    make: Callable[[], onnx.ModelProto]
    errors: dict[str, float] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        errors = {name: repr(value) for name, value in self.errors.items()}
        return {**self.racer.told(), "errors": errors}


@dataclass
class Field:
    """All engines of one model, with the sample for judging and timing.

    Attributes:
        name: Name of the model.
        sample: One sample of `BATCH` images.
        reference: Its outputs in FP32, by ONNX Runtime.
        entrants: The engines; those before the last are timed.
    """

    name: str
    sample: Arrays
    reference: Arrays
    entrants: list[Entrant]

    def build(self, entrant: Entrant, pipe: Pipe, end: float) -> None:
        """Build an engine and judge it on all images; record a failure, or that time ran out."""
        racer = entrant.racer
        if time.monotonic() > end - MAKING:
            racer.failure = "no time left"
            return
        profile = shape_profile({name: (a.shape,) * 3 for name, a in self.sample.items()})
        config: dict[str, Any] = {"low": racer.low, "tf32": racer.tf32, "keep": racer.asked}
        try:
            built = pipe.build(
                entrant.make().SerializeToString(),
                cached=True,
                profiles=[profile],
                **config,
            )
            racer.engine, racer.seconds = built.header["engine"]["sha256"], built.seconds
            found = pipe.run(racer.engine, self.sample)
        except Refused as refused:
            racer.failure = str(refused)[:300]
            return
        entrant.errors = errors(self.reference, found)
        racer.excess = entrant.errors["error / limit"]


def errors(reference: Arrays, found: Arrays) -> dict[str, float]:
    """Return the errors of outputs: over the default limit, the largest, and top-1 as in FP32."""
    excess = Excess(Criterion(), totals([reference]))
    excess.update(reference, found)
    with np.errstate(invalid="ignore"):
        largest = [np.abs(a - found[n]).max() for n, a in reference.items()]
    same = [np.mean(a.argmax(-1) == found[n].argmax(-1)) for n, a in reference.items()]
    return {
        "error / limit": excess.final(),
        "max abs": float(np.max(largest)),
        "same top-1": float(min(same)),
    }


def field_of(name: str, scaled: Scaled, plans: Mapping[str, Planned]) -> Field:
    """Draw a model and its images, compute the FP32 outputs, and list its engines."""
    made = scaled.make().model
    sample = {made.graph.input[0].name: scaled.images(BATCH, SEED)}
    reference = Session(network_from_proto(made).model).run(sample)
    entrants = [Entrant(_racer("plain"), scaled.plain)]
    for kind in ("repaired", SCALE, "kept"):
        if (plan := plans.get(kind)) is not None:
            network = repaired(network_from_proto(made), plan.repairs)
            keep = frozenset(map(NodeName, plan.keep))
            roles = roles_of(network)
            whole = keep | carried(network, roles, keep)
            asked = constraints(network, whole) if keep else ()
            proto = ir.serde.serialize_model(network.model) if plan.repairs else made
            entrants.append(Entrant(_racer(kind, plan.keep, asked), partial(_same, proto)))
    entrants.append(Entrant(_racer("unrepaired"), partial(_same, made)))
    return Field(name, sample, reference, entrants)


def _racer(name: str, keep: Sequence[str] = (), asked: Sequence[str] = ()) -> Racer:
    return Racer(name, tuple(keep), "fp16", tf32=False, asked=tuple(asked))


def _same(proto: onnx.ModelProto) -> onnx.ModelProto:
    return proto


def run(field: Field, pipe: Pipe, end: float, step: Callable[[], None]) -> None:
    """Build, judge and time the engines; the last one, which should fail, is only judged.

    Args:
        field: The model.
        pipe: Builds and runs.
        end: When to begin nothing more, by the monotonic clock.
        step: Called after each build and after all rounds.
    """
    *timed, last = field.entrants
    for entrant in timed:
        field.build(entrant, pipe, end)
        step()
    racers = [e.racer for e in timed if e.racer.engine and not e.racer.failure]
    take_turns(racers, field.sample, pipe, end, ROUNDS)
    step()
    field.build(last, pipe, end)
    step()


def figures(field: Field) -> Iterator[Figure]:
    """Yield the figures known so far: error and time of each engine, and ratios of times."""
    told = {entrant.racer.name: entrant for entrant in field.entrants}
    for name, entrant in told.items():
        racer = entrant.racer
        if not racer.failure and racer.engine is None:
            continue
        times = f"{median(racer.medians):.4g} ms, " if racer.medians else ""
        rest = ", ".join(f"{what} {value:.4g}" for what, value in entrant.errors.items())
        note = racer.failure or f"{times}{rest}, built in {racer.seconds:.1f} s"
        what = f"{field.name}: {name}, {len(racer.keep)} kept: passes"
        if name in ("plain", "repaired", "kept") and not racer.failure:
            yield equal(what, racer.passed, wanted=True, note=note)
        else:
            yield reported(what, racer.passed, note)
    for name in ("repaired", SCALE):
        for other, limit in REACH.items():
            pair = told.get(name), told.get(other)
            if pair[0] is not None and pair[1] is not None and pair[1].racer.medians:
                what = f"{field.name}: time of {name} / {other}"
                yield against(what, pair[0].racer, pair[1].racer, limit)


def measure(
    plans: Mapping[str, Mapping[str, Planned]],
    host: Host,
    end: float,
    save: Callable[[Result], None],
) -> Result:
    """Return the results of all models' engines; `save` receives intermediate results."""
    with Pipe([host.trt_python], host.sources()) as pipe:
        command = "python -m bench.gpu.repairs --trt-python PYTHON " + " ".join(plans)
        result = Result(
            "gpu_repairs", command, [], None, machine={**machine(), **pipe.told()}, details={}
        )
        for name in plans:
            before = list(result.figures)
            field = field_of(name, SCALED[name], plans[name])

            def step(field: Field = field, before: list[Figure] = before) -> None:
                result.figures = [*before, *figures(field)]
                result.details[field.name] = [entrant.told() for entrant in field.entrants]
                save(result)

            run(field, pipe, end, step)
    return result


def _save(folder: Path, result: Result) -> None:
    result.save(folder)


def main() -> int:
    """Run the models that the command line names, by default all; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(SCALED)}")
    add_host(parser)
    parser.add_argument("--work", type=Path, help="unused: nothing is kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="takes gpu_repairs.json")
    parser.add_argument("--seconds", type=float, default=340.0, help="begins nothing later")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    names = given.names or list(SCALED)
    if unknown := [n for n in names if n not in SCALED]:
        parser.error(f"there is no {', '.join(unknown)}, but {', '.join(SCALED)}")
    found = read(FILE)
    plans = {name: found[name] for name in names}
    result = measure(plans, host_of(given), end, partial(_save, given.results))
    print(table([result]), flush=True)
    return 0 if result.reached else 1


if __name__ == "__main__":
    sys.exit(main())
