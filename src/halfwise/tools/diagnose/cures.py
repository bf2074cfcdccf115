"""Rebuild a wrong engine in other ways, and measure which is right."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from halfwise.case import Case
from halfwise.emulation.runner import Arithmetic
from halfwise.emulation.settling import settled
from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.workbench import save
from halfwise.graph.dataflow import read_by
from halfwise.graph.model import Network, is_standard, node_name, normalise
from halfwise.graph.roles import is_float
from halfwise.graph.unroll import refusal, unrolled
from halfwise.interruption import interruption
from halfwise.metrics import Outputs
from halfwise.records import (
    BuildOutcome,
    Criterion,
    Cure,
    EngineDiagnosis,
    NodeName,
    TensorName,
    Verdict,
)
from halfwise.reporting.engine_faults import named
from halfwise.tensorrt.worker.failures import EngineFailed
from halfwise.tools.compare.engine_maker import EngineMaker

LEAST = 2
"""Builds for cures even if finding the place used up its own: a right engine is worth more than
the place. Our choice."""
ENGINE, MODEL = "cured.engine", "cured.onnx"
_CONVOLUTIONS = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")


@dataclass(frozen=True)
class Cures:
    """Tries other builds of one model.

    Attributes:
        engines: Engine maker of the model.
        kind: Their arithmetic.
        references: Right outputs by sample.
        criterion: Criterion for acceptable outputs.
        seconds: Time limit of a build; see `seconds_for`.
        folder: For the fastest right engine, and its model if it differs.
    """

    engines: EngineMaker
    kind: Arithmetic
    references: Sequence[Outputs]
    criterion: Criterion
    seconds: float
    folder: Path

    def tried(self, found: EngineDiagnosis, wrong: Collection[NodeName]) -> EngineDiagnosis:
        """Return a diagnosis with the results of other builds, `LEAST` or what the budget allows.

        Args:
            found: The diagnosis.
            wrong: The nodes at fault; empty if unknown.

        Raises:
            EngineFailed: the worker is lost.
        """
        cures: list[Cure] = []
        left = range(max(LEAST, found.most_builds - found.builds))
        delivered: dict[str, str | None] = {}
        tries = () if interruption().asked else self._all(wrong)
        for _, (cure, maker, build) in zip(left, tries, strict=False):
            if interruption().asked and cure.right is None:
                break
            cures.append(cure)
            found = found.model_copy(update={"cures": tuple(cures)})
            if found.best is cure and build is not None and build.engine is not None:
                maker.worker.fetch(build.engine, self.folder / ENGINE)
                delivered = {"delivered": ENGINE, "delivered_model": None}
                (self.folder / MODEL).unlink(missing_ok=True)
                if maker is not self.engines:
                    save(maker.case.network.model, self.folder / MODEL)
                    delivered["delivered_model"] = MODEL
            if interruption().asked:
                break
        return found.model_copy(update={**delivered, "interrupted": interruption().asked})

    def _all(
        self, wrong: Collection[NodeName]
    ) -> Iterator[tuple[Cure, EngineMaker, BuildOutcome | None]]:
        level = 0 if self.engines.engine_settings.optimization_level != 0 else 3
        written = _recurrent(self.engines.case.network, wrong)
        inside = _inside(self.engines.case.network, wrong)
        fusion = len(wrong) > len(inside) > 0
        if written:
            yield self._try(Cure(kind="written-out", nodes=written))
        case = self.engines.case
        if (network := settled(case.network, case.calibration)) is not None:
            yield self._try(Cure(kind="settled"), self.engines.of(self._case(network)))
        if fusion:
            yield self._try(Cure(kind="marks", marks=inside))
        yield self._try(Cure(kind="level", level=level))
        if self.engines.engine_settings.tactic_sources != _CONVOLUTIONS:
            yield self._try(Cure(kind="tactics", tactic_sources=_CONVOLUTIONS))
        if inside and not fusion:
            yield self._try(Cure(kind="marks", marks=inside))
        yield self._try(Cure(kind="anew"))

    def _try(
        self, cure: Cure, maker: EngineMaker | None = None
    ) -> tuple[Cure, EngineMaker, BuildOutcome | None]:
        """Build as a cure says, with `maker` if it has a model of its own; return the result."""
        maker, build = maker or self.engines, None
        settings = replace(maker.engine_settings, build_timeout=self.seconds)
        if cure.level is not None:
            settings = replace(settings, optimization_level=cure.level)
        if cure.tactic_sources is not None:
            settings = replace(settings, tactic_sources=cure.tactic_sources)
        told: dict[str, object] = {}
        try:
            if cure.nodes:
                maker = self._written_out(cure.nodes)
            fresh, what = cure.kind == "anew", named(cure)
            side = maker.side(self.kind, settings=settings, fresh=fresh, what=what)
            build = side.build(cure.marks)
            told = {"status": build.status, "message": build.message}
            if build.engine is not None:
                verdict = maker.judge(build, self.references, self.criterion)
                told |= {"right": verdict.passed, "snr_db": _smallest(verdict)}
            if build.engine is not None and told["right"]:
                told["median_ms"] = maker.measure.latency(build.engine).median_ms
        except HalfwiseError as error:
            if isinstance(error, EngineFailed) and error.status == "lost":
                raise
            told["message"] = error.message
        return cure.model_copy(update=told), maker, build

    def _written_out(self, nodes: tuple[NodeName, ...]) -> EngineMaker:
        model = unrolled(self.engines.case.network.model, nodes)
        maker = self.engines.of(self._case(normalise(model, path=None, sha256="")))
        # Its inputs are the same, so the user's profiles apply.
        maker.measure.engine_settings = self.engines.engine_settings
        return maker

    def _case(self, network: Network) -> Case:
        return replace(self.engines.case, network=network)


def _smallest(verdict: Verdict) -> float | None:
    """Return the smallest SNR of an output."""
    snrs = [
        -inf if output.nonfinite or output.misshapen else output.snr_db
        for output in verdict.outputs.values()
    ]
    return min(snrs, default=None)


def _recurrent(network: Network, wrong: Collection[NodeName]) -> tuple[NodeName, ...]:
    """Return the nodes at fault that can be unrolled."""
    nodes = (n for n in network.nodes() if n.name in wrong and is_standard(n, "GRU", "LSTM"))
    return tuple(node_name(n) for n in nodes if refusal(n) is None)


def _inside(network: Network, wrong: Collection[NodeName]) -> tuple[TensorName, ...]:
    """Return the tensors between nodes at fault; for a single node, its outputs."""
    nodes = [node for node in network.nodes() if node.name in wrong]
    given = {TensorName(str(v.name)): v for n in nodes for v in n.outputs if is_float(v) and v.name}
    read = {name for node in nodes for name in read_by(node)}
    ends = {v.name for v in network.graph.outputs}
    return tuple(n for n in given if n not in ends and (n in read or not read & given.keys()))
