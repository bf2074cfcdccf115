"""The final table of a run: every engine in it is judged, timed and inspected alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from halfwise.backends.tensorrt.failures import ENGINE_FAULTS
from halfwise.case import Samples
from halfwise.graph.roles import Role, Roles
from halfwise.metrics import Outputs
from halfwise.pipeline.engines.candidates import Assignment, Candidate
from halfwise.pipeline.engines.measure import Measure, again_if_lost
from halfwise.records import BuildOutcome, EngineResult, NodeName, Precision, Verdict
from halfwise.stages.contrast import ab_remark, fp32_remark, same_outputs

FP32 = "FP32, TF32 off"
TF32 = "FP32, TF32 on"
MIXED = "mixed"


@dataclass
class Table:
    """Makes rows.

    Attributes:
        measure: Runs engines.
        roles: Roles of the model's nodes.
        low: Name of the low format, upper case; the row with nothing kept bears it.
        samples: What every engine is judged on.
        references: Reference outputs.
        unseen: Whether no search has used the samples.
        notes: Takes what to know.
    """

    measure: Measure
    roles: Roles
    low: str
    samples: Samples
    references: Sequence[Outputs]
    unseen: bool
    notes: list[str]

    def rows(
        self, fp32: BuildOutcome, tf32: BuildOutcome, plain: Candidate, mixed: Candidate | None
    ) -> tuple[EngineResult, ...]:
        """Return FP32 without and with TF32, plain low precision, and mixed, which comes last.

        Args:
            fp32: The FP32 engine without TF32.
            tf32: The FP32 engine with TF32.
            plain: The plan that keeps nothing.
            mixed: The plan to deliver; None where no plan has an engine that runs.
        """
        off = self._row(FP32, Candidate(frozenset(), "", fp32))
        rows = [off, self._row(TF32, Candidate(frozenset(), "", tf32))]
        if mixed is None or mixed.keep:
            rows.append(self._low_row(self.low, plain, off.verdict))
        if mixed is not None:
            name = MIXED if mixed.keep else self.low
            rows.append(self._low_row(name, mixed, off.verdict, shapes=True))
        if mixed is not None and mixed.keep and rows[-1].verdict is not None:
            self.notes.append(ab_remark(rows[-1], rows[-2]))
        return tuple(rows)

    def _low_row(
        self, name: str, candidate: Candidate, fp32: Verdict | None, *, shapes: bool = False
    ) -> EngineResult:
        """Return the row of a plan, and note where its engine is FP32 in truth."""
        asked = self._asked(candidate)
        row = self._row(name, candidate, asked, fp32=fp32, shapes=shapes)
        if row.verdict is not None and fp32 is not None:
            remark = fp32_remark(row.verdict, fp32)
            self.notes += [f"{name}: {remark}"] if remark else []
        return row

    def _row(
        self,
        name: str,
        candidate: Candidate,
        asked: dict[NodeName, Precision] | None = None,
        *,
        fp32: Verdict | None = None,
        shapes: bool = False,
    ) -> EngineResult:
        build = candidate.build
        row = EngineResult(name=name, build=build, kept=len(candidate.keep))
        if build.engine is None or candidate.failure:
            failure = candidate.failure or build.message
            return row.model_copy(update={"failure": failure, "latency": candidate.latency})
        try:
            return again_if_lost(lambda: self._measured(row, asked or {}, fp32, shapes=shapes))
        except ENGINE_FAULTS as failed:
            return row.model_copy(update={"failure": failed.message})

    def _measured(
        self,
        row: EngineResult,
        asked: dict[NodeName, Precision],
        fp32: Verdict | None,
        *,
        shapes: bool,
    ) -> EngineResult:
        measure, engine = self.measure, row.build.engine
        assert engine is not None
        latency = measure.latency(engine, thorough=True)
        judged = measure.judge(engine, self.samples, self.references, unseen=self.unseen).verdict
        at = measure.at_shapes(engine, self.samples) if shapes else ()
        as_fp32 = fp32 is not None and same_outputs(judged, fp32)
        proof = measure.proof(row.build, self.roles, asked, as_fp32=as_fp32)
        found = {"verdict": judged, "latency": latency, "shapes": at, "proof": proof}
        return row.model_copy(update=found)

    def _asked(self, candidate: Candidate) -> dict[NodeName, Precision]:
        """Return what nodes were asked to be; in weak typing the builder is free with the rest."""
        asked: dict[NodeName, Precision] = dict.fromkeys(candidate.keep, "fp32")
        if candidate.build.config.typing == "strong":
            asked |= dict.fromkeys(
                self._compute() - candidate.keep, "bf16" if self.low == "BF16" else "fp16"
            )
        return asked

    def _compute(self) -> Assignment:
        return frozenset(n for n, role in self.roles.items() if role.role is Role.COMPUTE)
