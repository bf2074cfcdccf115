"""Engines with INT8: their time against plain FP16, and whether emulation predicts what passes.

    python -m bench.gpu.int8 --trt-python PYTHON [--seconds S] [NAME …]

First, models of the size of ResNet-50 and ViT-B/16: FP16, and INT8 with FP16, timed in turns. Then
small models: an engine with everything possible in INT8, and one of the plan that
`bench.gpu.int8_plans` found; does each pass or fail as the typed emulation of its file predicts?
Weights are drawn here, and ranges are found here, on images that no judgement uses. The result,
`gpu_int8.json` (`gpu_int8_decisions.json` for small models alone), is rewritten after every engine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx_ir as ir

from bench.figures import Figure, Result, at_least, machine, reported, table
from bench.gpu.figures import RESULTS
from bench.gpu.int8_plans import FILE, REL_MAX, SMALL, Planned, read
from bench.gpu.jobs import BATCH, Host, add_host, host_of
from bench.gpu.pipe import Pipe, Refused, shape_profile
from bench.gpu.race import Racer, take_turns
from bench.gpu.repair_plans import SCALED
from bench.gpu.repairs import MAKING, ROUNDS, errors
from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.fixing.int8.placing import quantisable, quantised
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, node_name
from halfwise.graph.quantised import quantised_nodes, residuals
from halfwise.graph.roles import Role, roles_of
from halfwise.inputs import load_inputs
from halfwise.judging.judge import judge, judge_outputs
from halfwise.metrics import Outputs
from halfwise.options.loading import input_specs
from halfwise.records import Criterion, NodeName, Verdict
from halfwise.reporting.remarks import reasons
from halfwise.tensorrt.constrain import constraints, quantised_types, readable
from halfwise.tensorrt.layers import engine_layers
from halfwise.tensorrt.prove import prove
from tests.unit.fixing.int8.products import peaks_of

SIZES = tuple(SCALED)
SEEN, SEEN_SEED, JUDGED_SEED = 2, 2, 1
"""Number of images for the ranges of the large models; their seed, and that of judged images."""
NAME, DECISIONS = "gpu_int8", "gpu_int8_decisions"
"""Names of the results: with large models, and with small ones alone."""
MOST_MISSED = 1
"""How many small models may pass or fail otherwise than predicted."""
Arrays = Mapping[str, np.ndarray]


@dataclass
class Entrant:
    """One engine of a model.

    Attributes:
        racer: The engine; its `excess` is the error over what is allowed.
        model: Its model, in FP32 with Q/DQ pairs.
        foretold: The verdict of the emulation; None if there is none.
        measured: The verdict of the engine.
        errors: Further errors of the engine.
        shown: Share of the nodes meant for INT8, by precision that the inspector shows.
        remarks: What else it shows, including names of fused blocks.
        layers: Number of its layers, by type and precision.
    """

    racer: Racer
    model: Network
    foretold: Verdict | None = None
    measured: Verdict | None = None
    errors: dict[str, float] = field(default_factory=dict)
    shown: dict[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    layers: dict[str, int] = field(default_factory=dict)

    @property
    def decided(self) -> bool | None:
        """Whether the engine passes or fails as predicted; None if either is unknown."""
        if self.foretold is None or self.measured is None:
            return None
        return self.foretold.passed is self.measured.passed

    def told(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        verdicts = {"foretold": self.foretold, "measured": self.measured}
        return {
            **self.racer.told(),
            "errors": {name: repr(value) for name, value in self.errors.items()},
            "shown": self.shown,
            "remarks": self.remarks,
            "layers": self.layers,
            **{name: _brief(verdict) for name, verdict in verdicts.items()},
        }


def _brief(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    off = {name: repr(error.rel_max) for name, error in verdict.outputs.items()}
    return {"passed": verdict.passed, "rel_max": off, "reasons": list(reasons(verdict.failures))}


class Field:
    """All engines of one model."""

    def __init__(self, name: str, entrants: Sequence[Entrant], samples: Sequence[Arrays]) -> None:
        """Take the engines, and the samples to judge them on; the first one is for timing."""
        self.name, self.entrants, self.samples = name, list(entrants), samples

    def build(self, entrant: Entrant, pipe: Pipe, end: float) -> None:
        """Build an engine, and record what its inspector shows, or the failure."""
        racer, first = entrant.racer, self.samples[0]
        if time.monotonic() > end - MAKING:
            racer.failure = "no time left"
            return
        profile = shape_profile({name: (a.shape,) * 3 for name, a in first.items()})
        config: dict[str, Any] = {"low": racer.low, "tf32": racer.tf32, "keep": racer.asked}
        try:
            proto = ir.serde.serialize_model(entrant.model.model).SerializeToString()
            built = pipe.build(proto, cached=True, profiles=[profile], **config)
            racer.engine, racer.seconds = built.header["engine"]["sha256"], built.seconds
            self._judge(entrant, [pipe.run(racer.engine, sample) for sample in self.samples])
            inspected = pipe.on_arrays("inspect", racer.engine, first)
            entrant.shown, entrant.remarks = _shown(entrant.model, inspected.payload.decode())
            entrant.layers = _layers(entrant.model, inspected.payload.decode())
        except Refused as refused:
            racer.failure = "\n".join([str(refused), *refused.answer.get("log", ())])[:3000]

    def _judge(self, entrant: Entrant, found: Sequence[Outputs]) -> None:
        raise NotImplementedError

    def run(self, pipe: Pipe, end: float, step: Callable[[], None]) -> None:
        """Build and judge all, then time them in turns; `step` is called after each."""
        for entrant in self.entrants:
            self.build(entrant, pipe, end)
            step()

    def figures(self) -> Iterator[Figure]:
        """Yield what is known of each engine."""
        for entrant in self.entrants:
            racer = entrant.racer
            if not racer.failure and racer.engine is None:
                continue
            times = f"{median(racer.medians):.4g} ms, " if racer.medians else ""
            shown = ", ".join(f"{kind} {share:.0%}" for kind, share in entrant.shown.items())
            rest = ", ".join(f"{what} {value:.4g}" for what, value in entrant.errors.items())
            note = f"{times}{rest}; of the nodes asked for: {shown or 'none'}"
            note += f"; built in {racer.seconds:.1f} s"
            verdict = entrant.measured.passed if entrant.measured else racer.passed
            yield reported(f"{self.name}: {racer.name}: passes", verdict, racer.failure or note)


def _shown(network: Network, inspected: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the shares of INT8 candidates by precision, as far as shown, and remarks."""
    asked = quantised_types(network)
    proof = prove(engine_layers(inspected, network), network, roles_of(network), asked, None)
    kinds = [node.precision for node in proof.nodes if node.node in asked]
    shares: dict[str, float] = {
        kind: kinds.count(kind) / len(kinds) for kind in dict.fromkeys(kinds)
    }
    return shares, proof.remarks


def _layers(network: Network, inspected: str) -> dict[str, int]:
    """Return the number of an engine's layers by type and precision."""
    return dict(Counter(f"{x.type} {x.precision}" for x in engine_layers(inspected, network)))


class Sized(Field):
    """A large model: FP16, and INT8 with FP16; errors are reported, times are compared."""

    def __init__(self, name: str) -> None:
        """Draw the model and its images, and quantise it."""
        network = network_from_proto(SCALED[name].plain())
        (given,) = (str(value.name) for value in network.graph.inputs)
        images = SCALED[name].images
        sample = {given: images(BATCH, JUDGED_SEED)}
        self.reference = Session(network.model).run(sample)
        seen = samples_of(network, {given: images(SEEN, SEEN_SEED)[None]})
        entrants = [Entrant(_racer("fp16"), network)]
        for kind, nodes in choices(network).items():
            entrants.append(Entrant(_racer(kind), _quantised(network, seen, nodes)))
        super().__init__(name, entrants, [sample])

    def _judge(self, entrant: Entrant, found: Sequence[Outputs]) -> None:
        entrant.errors = errors(self.reference, found[0])
        entrant.racer.excess = entrant.errors["error / limit"]

    def run(self, pipe: Pipe, end: float, step: Callable[[], None]) -> None:
        """Build and judge all, then time them in turns."""
        super().run(pipe, end, step)
        racers = [e.racer for e in self.entrants if e.racer.engine and not e.racer.failure]
        take_turns(racers, self.samples[0], pipe, end, ROUNDS)
        step()

    def figures(self) -> Iterator[Figure]:
        """Yield what is known of each engine, and the ratios of times."""
        yield from super().figures()
        plain, *others = (entrant.racer for entrant in self.entrants)
        for racer in others if plain.medians else ():
            pairs = zip(racer.medians, plain.medians, strict=False)
            told = [one / other for one, other in pairs]
            if told:
                note = f"{len(told)} rounds, ratios {min(told):.4f} to {max(told):.4f}"
                yield reported(f"{self.name}: time of {racer.name} / fp16", median(told), note)


def choices(network: Network) -> dict[str, frozenset[NodeName]]:
    """Return different sets of nodes to quantise: all products, those with weights, all nodes.

    All nodes, including residual sums, is where `fix --to int8` begins.
    """
    every = frozenset(quantisable(network))
    products = every - residuals(network).keys()
    nodes = {node_name(n): n for n in network.nodes()}
    weighted = frozenset(
        name for name in products if any(v.const_value is not None for v in nodes[name].inputs if v)
    )
    others = {"int8 with weights": weighted, "int8 with sums": every}
    return {"int8": products} | {kind: n for kind, n in others.items() if n != products}


def _racer(name: str, asked: Sequence[str] = ()) -> Racer:
    return Racer(name, (), "fp16", tf32=False, asked=tuple(asked))


def samples_of(network: Network, arrays: Arrays) -> Samples:
    """Return samples of arrays [samples, *shape of an input] by input."""
    return load_inputs(dict(arrays), input_specs(network)).samples


def _quantised(network: Network, samples: Samples, nodes: frozenset[NodeName]) -> Network:
    """Return the model with pairs, as TensorRT 8.6 reads it."""
    made = quantised(network, nodes, peaks_of(network, samples))
    return readable(made, "8.6")


class Small(Field):
    """A small model: everything possible in INT8, and a plan; each as predicted, or not."""

    def __init__(self, name: str, plan: Planned) -> None:
        """Make the model, quantise it twice, and emulate both."""
        made = SMALL[name]()
        network = network_from_proto(made.model)
        seen, self.heldout = (samples_of(network, a) for a in (made.inputs, made.heldout))
        session = Session(network.model)
        self.references = [session.run(sample) for sample in self.heldout]
        self.criterion = Criterion(rel_max=REL_MAX)
        kept = frozenset(map(NodeName, (*plan.keep, *plan.movement)))
        entrants = []
        for kind, nodes in {"all": (*plan.int8, *plan.left_out), "plan": plan.int8}.items():
            int8 = frozenset(map(NodeName, nodes))
            entrants.append(self._entrant(kind, _quantised(network, seen, int8), kept))
            if not plan.left_out:
                break
        super().__init__(name, entrants, list(self.heldout))

    def _entrant(self, kind: str, network: Network, kept: frozenset[NodeName]) -> Entrant:
        roles = roles_of(network)
        pinned = frozenset(name for name, role in roles.items() if role.role is Role.PINNED)
        fp32 = kept | pinned | frozenset(quantised_nodes(network))
        mixed = rewrite(network, roles, fp32, FP16, fixed=frozenset(), low_io=frozenset())
        told = judge(mixed.model, self.heldout, self.references, self.criterion, None)
        asked = constraints(network, fp32) if kept else ()
        return Entrant(_racer(kind, asked), network, told.verdict)

    def _judge(self, entrant: Entrant, found: Sequence[Outputs]) -> None:
        judged = judge_outputs(found, self.heldout, self.references, self.criterion, None)
        entrant.measured = judged.verdict
        off = max(error.rel_max for error in judged.verdict.outputs.values())
        entrant.racer.excess = off / REL_MAX
        assert entrant.foretold is not None
        before = max(error.rel_max for error in entrant.foretold.outputs.values())
        entrant.errors = {"error / limit": off / REL_MAX, "foretold": before / REL_MAX}

    @property
    def as_foretold(self) -> bool | None:
        """Whether all its engines pass or fail as predicted; None if one is unknown."""
        decided = [entrant.decided for entrant in self.entrants]
        return None if None in decided else all(decided)


def figures(fields: Sequence[Field]) -> Iterator[Figure]:
    """Yield all figures that are known by now."""
    for one in fields:
        yield from one.figures()
    decided = [one.as_foretold for one in fields if isinstance(one, Small)]
    known = [each for each in decided if each is not None]
    if known:
        note = f"{len(known)} of {len(decided)} small models are known"
        right = sum(known)
        yield at_least("models decided as foretold", right, len(known) - MOST_MISSED, note)


def measure(
    names: Sequence[str],
    plans: Mapping[str, Planned],
    host: Host,
    end: float,
    save: Callable[[Result], None],
) -> Result:
    """Return the results of all models' engines; `save` receives intermediate results."""
    with Pipe([host.trt_python], host.sources()) as pipe:
        command = "python -m bench.gpu.int8 --trt-python PYTHON " + " ".join(names)
        result = Result(
            NAME if any(name in SIZES for name in names) else DECISIONS,
            command,
            [],
            None,
            machine={**machine(), **pipe.told()},
            details={},
        )
        fields: list[Field] = []

        def step() -> None:
            result.figures = list(figures(fields))
            for one in fields:
                result.details[one.name] = [entrant.told() for entrant in one.entrants]
            save(result)

        for name in names:
            if time.monotonic() > end - MAKING:
                break
            started = time.monotonic()
            one = Sized(name) if name in SIZES else Small(name, plans[name])
            print(f"{name}: made in {time.monotonic() - started:.0f} s", flush=True)
            fields.append(one)
            one.run(pipe, end, step)
        step()
    return result


def _save(folder: Path, result: Result) -> None:
    result.save(folder)


def main() -> int:
    """Run the models that the command line names, by default all; return the exit code."""
    plans = read(FILE) if FILE.exists() else {}
    every = (*SIZES, *(name for name in SMALL if name in plans))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = f"among {', '.join(every)}; small: all but {' and '.join(SIZES)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    add_host(parser)
    parser.add_argument("--work", type=Path, help="unused: nothing is kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="takes gpu_int8.json")
    parser.add_argument("--seconds", type=float, default=520.0, help="begins nothing later")
    given = parser.parse_args()
    if given.names == ["small"]:
        given.names = [name for name in every if name not in SIZES]
    end = time.monotonic() + given.seconds
    if unknown := [n for n in given.names if n not in every]:
        parser.error(f"there is no {', '.join(unknown)}, but {', '.join(every)}")
    save = partial(_save, given.results)
    result = measure(given.names or every, plans, host_of(given), end, save)
    print(table([result]), flush=True)
    return 0 if result.reached else 1


if __name__ == "__main__":
    sys.exit(main())
