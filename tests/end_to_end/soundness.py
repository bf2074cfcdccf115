"""What must hold of every run folder, checked with other means than the run itself used."""

from collections.abc import Iterable, Set
from contextlib import suppress
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as KernelMissing

from halfwise.case import Samples
from halfwise.declarations import spelt
from halfwise.fixing.rewrite import rewrite, with_opset_for
from halfwise.formats import LOW_FORMATS
from halfwise.graph.casts import low_type
from halfwise.graph.loading import load_network
from halfwise.graph.movement import carried
from halfwise.graph.roles import roles_of
from halfwise.judging.judge import judge, judge_outputs
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import DEFAULT_REL_MAX, is_default
from halfwise.records import Criterion, NodeName, TensorName, Verdict, replace
from halfwise.store import read_run
from tests.end_to_end.conftest import Ended
from tests.models import Ill

MEASURES = ("max_abs", "rel_max", "mean_abs", "snr_db", "cosine", "nonfinite")
OPTIONS = ("rel-max", "metric", "metric-drop")
"""Parts of a criterion with an option of their own."""


def tightened(criterion: Criterion, factor: float) -> Criterion:
    """Return what the search may use of a criterion: `factor` times the error."""
    if is_default(criterion):
        criterion = replace(criterion, rel_max=DEFAULT_REL_MAX)
    smaller = {
        name: value * factor
        for name in ("max_abs", "rel_max")
        if (value := getattr(criterion, name)) is not None
    }
    agreement = 1 - factor * (1 - criterion.agreement)
    return replace(criterion, **smaller, agreement=agreement)


def index_of(name: str) -> int:
    """Return the index in the name of a sample: 3 for `model.npz[3]`, 0 for `model.npz`."""
    return int(name.partition("[")[2].rstrip("]") or 0)


def picked(ill: Ill, names: Iterable[str]) -> Samples:
    """Return the samples called `names`."""
    chosen = tuple(names)
    return Samples(chosen, lambda i: ill.sample(index_of(chosen[i])))


class Recheck:
    """A run and its calibration samples, to judge plans through their typed models.

    Attributes:
        run: The record.
        network: The original, at the opset of the mixed model.
        roles: Roles of its nodes.
        samples: The calibration samples.
        references: Their reference outputs.
    """

    def __init__(self, ended: Ended, ill: Ill) -> None:
        self.run = run = read_run(ended.folder)
        assert run.search is not None
        assert run.plan is not None
        self.samples = picked(ill, run.search.calibration)
        self._fmt = LOW_FORMATS[run.plan.low]
        original = load_network(ended.folder.parent / "model.onnx")
        self.network, _ = with_opset_for(self._fmt, original, self.samples)
        self.roles = roles_of(self.network, low_type(self._fmt))
        self.references = inspected_reference(self.network, self.samples)[0]
        self._criterion = tightened(run.criterion, run.search.tolerance_factor)

    def typed(self, kept: frozenset[NodeName]) -> ir.Model:
        """Return the typed model of a plan."""
        nodes = kept | carried(self.network, self.roles, kept)
        fixed, low_io = frozenset[NodeName](), frozenset[TensorName]()
        made = rewrite(self.network, self.roles, nodes, self._fmt, fixed=fixed, low_io=low_io)
        return made.model

    def verdict(self, kept: frozenset[NodeName]) -> Verdict:
        """Return how a plan does by what the search had to meet."""
        sums, model = self.run.accumulate, self.typed(kept)
        what = model, self.samples, self.references, self._criterion, None
        return judge(*what, accumulate=sums).verdict

    @cached_property
    def kept(self) -> frozenset[NodeName]:
        """The nodes that the delivered plan keeps."""
        assert self.run.plan is not None
        return frozenset(k.node for k in self.run.plan.keep)

    @cached_property
    def harmless(self) -> Set[str]:
        """The tensors that are infinite inside the delivered plan, which has to pass."""
        verdict = self.verdict(self.kept)
        assert verdict.passed
        return {i.tensor for i in verdict.intermediate_nonfinite}

    def holds(self, kept: frozenset[NodeName]) -> bool:
        """Return whether a plan passes and nothing but what is harmless is infinite inside."""
        verdict = self.verdict(kept)
        if not verdict.passed or {i.tensor for i in verdict.intermediate_nonfinite} - self.harmless:
            return False
        return all(g.kind != "decision" for g in self.run.guards) or self._passes_as_file(kept)

    def _passes_as_file(self, kept: frozenset[NodeName]) -> bool:
        """Return whether a plan's model passes where ONNX Runtime runs it with all it optimises."""
        proto = ir.to_proto(self.typed(kept))
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        names = [o.name for o in session.get_outputs()]
        ran = [dict(zip(names, session.run(None, sample), strict=True)) for sample in self.samples]
        what = ran, self.samples, self.references, self.run.criterion, None
        return judge_outputs(*what).verdict.passed


def spared(ended: Ended, ill: Ill) -> set[str]:
    """Return the kept nodes without which the plan holds on the calibration samples too."""
    recheck = Recheck(ended, ill)
    assert recheck.verdict(recheck.kept).passed
    return {node for node in recheck.kept if recheck.holds(recheck.kept - {node})}


def assert_minimal(ended: Ended, ill: Ill) -> None:
    """The plan holds on the calibration samples, and without any single kept node it does not."""
    assert ended.record["plan"]["minimal"]
    assert spared(ended, ill) == set()


def assert_smallest(ended: Ended, ill: Ill) -> None:
    """No other set is as small: a kept node is needed even where all others are FP32."""
    recheck = Recheck(ended, ill)
    computing = recheck.roles.computing
    assert {node for node in recheck.kept if recheck.holds(computing - {node})} == set()


def assert_valid(ended: Ended, ill: Ill) -> None:
    """The model is valid, has the types of the plan and runs."""
    onnx.checker.check_model(str(ended.model), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    low = ended.record["plan"]["low"]
    # Its CPU has hardly any kernel for BF16.
    with suppress(*([KernelMissing] if low == "bf16" else [])):
        session = onnxruntime.InferenceSession(ended.model, options)
        assert session.run(None, ill.sample(0))
    types = {
        info.name: info.type.tensor_type.elem_type
        for info in onnx.load(ended.model).graph.value_info
    }
    for node in onnx.load(ended.model).graph.node:
        if node.name in ended.kept:
            assert low_type(LOW_FORMATS[low]) not in {types.get(o) for o in node.output}


def assert_recorded(ended: Ended) -> None:
    """`run.json` has every field that the users of the format rely on."""
    record = ended.record
    assert record["schema_version"] == 1
    plan, verdict, cost = record["plan"], record["verdict"], record["cost"]
    for entry in plan["keep"]:
        assert entry["precision"] == "fp32"
        assert entry["node"]
        assert entry["op"]
        assert entry["reason"].endswith(".")
        assert entry["guard"] is None or isinstance(entry["guard"], str)
    for name in ("constants", "unsupported"):
        assert isinstance(plan[name], list)
    assert isinstance(plan["minimal"], bool)
    assert isinstance(verdict["passed"], bool)
    assert verdict["level"] == "emulated"
    for output in verdict["outputs"].values():
        for measure in MEASURES:
            assert isinstance(output[measure], int | float) or output[measure] in (
                *("Infinity", "-Infinity", "NaN"),
            )
    assert verdict["worst_sample"] in verdict["samples"]
    assert isinstance(verdict["intermediate_nonfinite"], list)
    assert verdict["metric"] is None or verdict["metric"]["name"]
    assert cost["evaluations"] > 0
    assert cost["seconds"] > 0
    assert cost["peak_rss_bytes"] > 2**20
    assert {"python", "onnxruntime", "halfwise"} <= record["provenance"]["versions"].keys()
    assert len(record["provenance"]["model_sha256"]) == 64


def assert_verified(ended: Ended, ill: Ill, call) -> None:
    """`halfwise verify` on the same samples gives the verdict's numbers."""
    verdict = ended.record["verdict"]
    indices = [index_of(name) for name in verdict["samples"]]
    path = ended.folder.parent / "judged.npz"
    judged = {name: array[indices] for name, array in ill.inputs.items()}
    np.savez(path, **judged)  # type: ignore[arg-type]
    given = ((name, value) for name, value in ended.record["criterion"].items() if value)
    options = [word for n, v in given for word in spelt(n, str(v)).split(maxsplit=1)]
    options.append(f"--accumulate={ended.record['accumulate']}")
    options += ["--allow", "unjudged"] * (verdict["passed"] and bool(verdict["unjudged"]))
    model = ended.folder.parent / "model.onnx"
    again = call(
        *("verify", model, ended.model, "--inputs", path, "-o", "verified", *options),
        folder="verified",
    )
    assert again.code == (0 if verdict["passed"] else 10)
    found = again.record["verdict"]
    for name, output in verdict["outputs"].items():
        assert {m: found["outputs"][name][m] for m in MEASURES} == {m: output[m] for m in MEASURES}
    inside = [{**i, "harmless": None} for i in verdict["intermediate_nonfinite"]]
    assert found["intermediate_nonfinite"] == inside


def assert_sound(ended: Ended, ill: Ill, call) -> None:
    """All of it."""
    assert_recorded(ended)
    assert_valid(ended, ill)
    assert_minimal(ended, ill)
    assert_verified(ended, ill, call)
