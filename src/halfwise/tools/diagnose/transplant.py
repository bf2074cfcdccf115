"""Test whether parts of a model are wrong in an engine, on the true values of their inputs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log2, sqrt

from halfwise.case import Sample, Samples
from halfwise.emulation.runner import (
    OTHER_KERNELS,
    TOLERANCES,
    Arithmetic,
    ModelRunner,
    tensor_bytes,
)
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.dataflow import read_by
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network
from halfwise.interruption import interruption
from halfwise.metrics import Outputs
from halfwise.metrics.difference import relative_rms
from halfwise.records import BuildOutcome, SymptomKind, TensorName
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.log import explain
from halfwise.tools.compare import comparable
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.compare.sides import UNITS, Regions
from halfwise.tools.compare.walk import WIGGLED
from halfwise.tools.diagnose.localise import ENOUGH, Spent
from halfwise.tools.diagnose.pieces import NEGATED, Part, Piece, Pieces, Values

MOST_BYTES = 1 << 29
"""Largest size of the inputs and outputs of side-by-side parts: bounds memory here and on the
worker."""


LEAST_SECONDS = 60.0
LONGER = 5.0
"""A build may take this many times as long as the engine itself, and this many seconds in any case.
Our choice: a part is less than the whole, but an input and an output per node are more."""


def seconds_for(plain: float, most: float) -> float:
    """Return the seconds a build may take if the engine itself took `plain`.

    `most` is the limit for any build.
    """
    return min(most, max(LEAST_SECONDS, LONGER * plain))


def most_builds(nodes: int) -> int:
    """Return the budget of builds for finding what is wrong among `nodes` (≥ 1)."""
    return 4 + int(2 * log2(nodes))


@dataclass(frozen=True)
class Symptom:
    """How an engine is wrong: its outputs are off, or it does not build or run.

    Attributes:
        kind: Kind of symptom.
        status: How a build or run ended.
        signal: The signal that ended it.
        said: Kinds of errors in the builder's log.
    """

    kind: SymptomKind
    status: str = ""
    signal: str | None = None
    said: frozenset[str] = frozenset()

    @property
    def late(self) -> bool:
        """Whether it was stopped because it took too long."""
        return self.status == "timeout"


OFF = Symptom("outputs")


def symptom_of(build: BuildOutcome) -> Symptom:
    """Return the symptom of a build without an engine."""
    said = frozenset(f.kind for f in explain(build.log) if f.severity == "error")
    return Symptom("build", build.status, build.signal, said)


@dataclass
class Transplants:
    """Tests parts of a model in engines, on one sample.

    Attributes:
        engines: Engine maker of the model.
        kind: Their arithmetic, as for `EngineMaker.side`.
        right: The right side.
        sample: The sample's index.
        symptom: How the whole model's engine is wrong.
        seconds: Time limit of a build; see `seconds_for`.
        late: Builds that took longer.
        builds: Builds used, including the whole model's.
        known: Whether parts are wrong; None if unknown.
        errors: The largest relative RMS error of a part's outputs, if an engine ran.
        single: Parts tested in engines of their own.
        spare: Builds that `ask` leaves for the proof.
        right_outputs: Outputs that the whole model's engine has right, on all samples.
    """

    engines: EngineMaker
    kind: Arithmetic
    right: ModelRunner
    sample: int
    symptom: Symptom
    seconds: float
    late: int = 0
    builds: int = 1
    known: dict[Part, bool | None] = field(default_factory=dict)
    errors: dict[Part, float] = field(default_factory=dict)
    single: set[Part] = field(default_factory=set)
    spare: int = 1
    right_outputs: frozenset[TensorName] = frozenset()

    @cached_property
    def most(self) -> int:
        """The budget of builds."""
        return most_builds(len(list(self.engines.case.network.nodes())))

    @cached_property
    def pieces(self) -> Pieces:
        """Cuts parts out of the model."""
        return Pieces(self.engines.case.network, self.values)

    def values(self, names: Sequence[TensorName]) -> Values:
        """Return the true values of tensors."""
        alone = self.right.samples.select([self.sample])
        right = replace(self.right, samples=alone, failures={})
        return {**self.one, **next(right.get(list(names)))}

    @property
    def tolerance(self) -> float:
        """Relative RMS error up to which a tensor is right: its arithmetic's in kernels."""
        return max(OTHER_KERNELS, TOLERANCES[self.kind])

    @property
    def one(self) -> Sample:
        """The sample."""
        return self.engines.case.calibration[self.sample]

    @property
    def together(self) -> bool:
        """Whether an engine of side-by-side parts shows which are wrong."""
        network = self.engines.case.network
        names = [n for n in comparable(network) if n in self.pieces.varying]
        sizes = tensor_bytes(network.model, names, self.one)
        return self.symptom == OFF and sum(sizes.values()) <= MOST_BYTES

    def ask(self, parts: Sequence[Part]) -> list[bool | None]:
        """Return whether each part is wrong; None if unknown.

        Raises:
            Spent: no more builds may be used.
        """
        new = [part for part in parts if part not in self.known]
        if new and self.builds + self.spare >= self.most:
            raise Spent
        if new:
            self._look(new, f"{_named(new, self.engines.case.network)} on true inputs")
        return [self.known[part] for part in parts]

    def alone(self, part: Part) -> bool | None:
        """Return whether a part is wrong in an engine of its own.

        Raises:
            Spent: no more builds may be used.
        """
        if part not in self.single:
            self._look([part], f"{_named([part], self.engines.case.network)} alone")
        return self.known[part]

    def inside(self, part: Part) -> bool | None:
        """Return whether a part is wrong if its outputs are read in the engine, and are not output.

        None if unknown.

        Raises:
            Spent: no more builds may be used.
        """
        try:
            piece = self.pieces.cut([part], read=True)
            ending, given = self._run(
                piece, f"{_named([part], self.engines.case.network)}, read by others"
            )
        except EngineFailed:
            raise
        except (CaseError, RunFailed):
            return None
        if ending != OFF or not given:
            return None
        outputs = {name.removesuffix(NEGATED): -array for name, array in given.items()}
        self._compare(part, piece, self.values(piece.outputs[part]), outputs)
        del self.errors[part]
        return self.known.pop(part)

    def without(self, parts: Collection[Part]) -> tuple[bool | None, float | None]:
        """Return whether the model is wrong with the true outputs of `parts` fed in.

        Also the largest relative RMS error of its outputs then, including inputs of `parts`, if
        there is an engine.

        Raises:
            Spent: no more builds may be used.
        """
        rest = frozenset(self.pieces.reads).difference(*parts)
        self._look([rest], "the model with true values fed in")
        return self.known.pop(rest), self.errors.pop(rest, None)

    def _look(self, parts: Sequence[Part], what: str, *, again: bool = True) -> None:
        """Test all parts in one engine; if that fails, half of them in each of two."""
        self.known |= dict.fromkeys(parts)
        try:
            piece = self.pieces.cut(parts)
            shown = [part for part in parts if part in piece.outputs]
            if not shown:
                return
            ending, outputs = self._run(piece, what)
        except EngineFailed:
            raise
        except (CaseError, RunFailed):
            return
        if len(parts) == 1:
            self.single.update(parts)
        if self.symptom != OFF:
            if ending == self.symptom or not ending.late:
                self.known |= dict.fromkeys(parts, ending == self.symptom)
        elif ending == OFF:
            right = self.values([name for names in piece.outputs.values() for name in names])
            for part in shown:
                self._compare(part, piece, right, outputs)
        elif len(shown) > 1 and again:
            half = len(shown) // 2
            self._look(shown[:half], f"the first half of {what}", again=False)
            self._look(shown[half:], f"the other half of {what}", again=False)

    def built(
        self, maker: EngineMaker, what: str, marks: Sequence[TensorName], sample: Sample
    ) -> tuple[Symptom, Outputs]:
        """Build and run another engine; return how it ends, and its outputs.

        Args:
            maker: Engine maker.
            what: Description.
            marks: Tensors to mark as outputs.
            sample: Inputs to run on.

        Raises:
            Spent: no more builds may be used, or Ctrl-C came.
            EngineFailed: the worker is lost.
        """
        if self.builds >= self.most or interruption().asked:
            raise Spent
        self.builds += 1
        settings = replace(maker.engine_settings, build_timeout=self.seconds)
        side = maker.side(self.kind, settings=settings, what=what)
        build = side.build(marks)
        self.late += build.status == "timeout"
        if build.status == "interrupted":
            raise Spent
        if build.status == "lost":
            raise EngineFailed(build.message, status="lost")
        if build.engine is None:
            return symptom_of(build), {}
        try:
            return OFF, side.run(build, sample)
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            return Symptom("run", failed.status), {}

    def _run(self, piece: Piece, what: str) -> tuple[Symptom, Outputs]:
        """Build and run an engine of a piece; return how it ends, and its outputs."""
        network = normalise(piece.model.clone(), path=None, sha256="")
        samples = Samples(("part",), lambda _: piece.feed)
        case = replace(self.engines.case, network=network, calibration=samples, metric=None)
        maker = self.engines.of(case)
        try:
            return self.built(maker, what, (), piece.feed)
        finally:
            maker.forget()
            self.engines.others.remove(maker)

    def _compare(self, part: Part, piece: Piece, right: Values, outputs: Outputs) -> None:
        names = [name for name in piece.outputs[part] if name in outputs]
        errors = {name: relative_rms(right[name], outputs[name]) for name in names if name in right}
        self.errors[part] = max(errors.values(), default=0.0)
        above = [name for name, error in errors.items() if error > self.tolerance]
        natural = self._natural(part, above) if above else {}
        self.known[part] = any(errors[name] > natural[name] for name in above)

    def _natural(self, part: Part, names: Sequence[TensorName]) -> dict[TensorName, float]:
        """Return the largest error that rounding in a part and of its inputs explains."""
        network = self.engines.case.network
        nodes = [node for node in network.nodes() if node.name in part]
        made = {v.name for node in nodes for v in node.outputs}
        computed = {v.name for node in network.nodes() for v in node.outputs}
        read = dict.fromkeys(n for node in nodes for n in read_by(node) if n not in made)
        given = [n for n in read if n in computed and n in self.pieces.varying]
        regions = Regions(network, names, given, runtime=self.engines.settings.runtime)
        values = self.values(given)
        right = regions.run(self.one, values)
        wiggled = regions.run(self.one, values, UNITS[self.kind])
        factor = WIGGLED * sqrt(len(part))
        return {n: factor * relative_rms(right[n], wiggled[n]) for n in names}


def _named(parts: Sequence[Part], network: Network) -> str:
    """Return a short description of parts."""
    if len(parts) > 1:
        what = "nodes" if all(len(part) == 1 for part in parts) else "parts"
        return f"{len(parts)} {what}"
    types = [n.op_type for n in network.nodes() if n.name in parts[0]]
    return " and ".join(types) if len(types) <= ENOUGH else f"{len(types)} nodes"
