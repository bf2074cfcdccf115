"""What must hold of every run folder, checked with other means than the run itself used."""

from collections.abc import Iterable, Set
from contextlib import suppress

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as KernelMissing

from halfwise.case import Samples
from halfwise.fixing.rewrite import rewrite, with_opset_for
from halfwise.formats import LOW_FORMATS
from halfwise.graph.casts import low_type
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network
from halfwise.graph.movement import carried
from halfwise.graph.roles import Role, roles_of
from halfwise.judging.judge import judge, judge_outputs
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import DEFAULT_REL_MAX, is_default
from halfwise.records import Criterion, NodeName, Run, Verdict
from halfwise.store import read_run
from tests.end_to_end.conftest import Ended
from tests.models import Ill

MEASURES = ("max_abs", "rel_max", "mean_abs", "median_abs", "snr_db", "cosine", "nonfinite")


def tightened(criterion: Criterion, factor: float) -> Criterion:
    """Return what the search may use of a criterion: `factor` times the error."""
    if is_default(criterion):
        criterion = criterion.model_copy(update={"rel_max": DEFAULT_REL_MAX})
    smaller = {
        name: value * factor
        for name in ("max_abs", "rel_max")
        if (value := getattr(criterion, name)) is not None
    }
    agreement = 1 - factor * (1 - criterion.agreement)
    return criterion.model_copy(update={**smaller, "agreement": agreement})


def index_of(name: str) -> int:
    """Return the index in the name of a sample: 3 for `model.npz[3]`, 0 for `model.npz`."""
    return int(name.partition("[")[2].rstrip("]") or 0)


def picked(ill: Ill, names: Iterable[str]) -> Samples:
    """Return the samples called `names`."""
    chosen = tuple(names)
    return Samples(chosen, lambda i: ill.sample(index_of(chosen[i])))


def judged(run: Run, ended: Ended, ill: Ill, kept: Iterable[str]) -> Verdict:
    """Return how a plan does by what the search had to meet, judged through its typed model."""
    assert run.search is not None
    model, network, samples = typed(run, ended, ill, kept)
    references = inspected_reference(network, samples)[0]
    criterion = tightened(run.criterion, run.search.tolerance_factor)
    return judge(model, samples, references, criterion, None, accumulate=run.accumulate).verdict


def typed(
    run: Run, ended: Ended, ill: Ill, kept: Iterable[str]
) -> tuple[ir.Model, Network, Samples]:
    """Return the typed model of a plan, the original and the calibration samples."""
    assert run.search is not None
    assert run.plan is not None
    samples = picked(ill, run.search.calibration)
    fmt = LOW_FORMATS[run.plan.low]
    network, _ = with_opset_for(fmt, load_network(ended.folder.parent / "model.onnx"), samples)
    roles = roles_of(network, low_type(fmt))
    nodes = frozenset(NodeName(n) for n in kept)
    full = nodes | carried(network, roles, nodes)
    rewritten, _ = rewrite(network, roles, full, fmt, fixed=frozenset(), low_io=frozenset())
    return rewritten.model, network, samples


def holds(run: Run, ended: Ended, ill: Ill, kept: Iterable[str], harmless: Set[str]) -> bool:
    """Return whether a plan passes and nothing but `harmless` tensors is infinite inside."""
    plan = frozenset(kept)
    verdict = judged(run, ended, ill, plan)
    if not verdict.passed or not {i.tensor for i in verdict.intermediate_nonfinite} <= harmless:
        return False
    return all(g.kind != "decision" for g in run.guards) or passes_as_file(run, ended, ill, plan)


def passes_as_file(run: Run, ended: Ended, ill: Ill, kept: Iterable[str]) -> bool:
    """Return whether a plan's model passes where ONNX Runtime runs it with all it optimises."""
    model, network, samples = typed(run, ended, ill, kept)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    names = [o.name for o in session.get_outputs()]
    results = [dict(zip(names, session.run(None, sample), strict=True)) for sample in samples]
    references = inspected_reference(network, samples)[0]
    return judge_outputs(results, samples, references, run.criterion, None).verdict.passed


def harmless(run: Run, ended: Ended, ill: Ill) -> Set[str]:
    """Return the tensors that are infinite inside the delivered plan, which has to pass."""
    assert run.plan is not None
    verdict = judged(run, ended, ill, [k.node for k in run.plan.keep])
    assert verdict.passed
    return {i.tensor for i in verdict.intermediate_nonfinite}


def spared(ended: Ended, ill: Ill) -> set[str]:
    """Return the kept nodes without which the plan holds on the calibration samples too."""
    run = read_run(ended.folder)
    assert run.plan is not None
    kept = {k.node for k in run.plan.keep}
    inside = harmless(run, ended, ill)
    return {node for node in kept if holds(run, ended, ill, kept - {node}, inside)}


def assert_minimal(ended: Ended, ill: Ill) -> None:
    """The plan holds on the calibration samples, and without any single kept node it does not."""
    assert ended.record["plan"]["minimal"]
    assert spared(ended, ill) == set()


def assert_smallest(ended: Ended, ill: Ill) -> None:
    """No other set is as small: a kept node is needed even where all others are FP32."""
    run = read_run(ended.folder)
    roles = roles_of(load_network(ended.folder.parent / "model.onnx"))
    computing = {name for name, role in roles.items() if role.role is Role.COMPUTE}
    inside = harmless(run, ended, ill)
    assert {n for n in ended.kept if holds(run, ended, ill, computing - {n}, inside)} == set()


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
    options = [f"--{n.replace('_', '-')}={v}" for n, v in ended.record["criterion"].items() if v]
    options.append(f"--accumulate={ended.record['accumulate']}")
    options += ["--allow-unjudged"] * (verdict["passed"] and bool(verdict["unjudged"]))
    model = ended.folder.parent / "model.onnx"
    again = call(
        *("verify", model, ended.model, "--inputs", path, "-o", "verified", *options),
        folder="verified",
    )
    assert again.code == (0 if verdict["passed"] else 10)
    found = again.record["verdict"]
    for name, output in verdict["outputs"].items():
        assert {m: found["outputs"][name][m] for m in MEASURES} == {m: output[m] for m in MEASURES}
    inside = [{**i, "harmless": None, "ends": None} for i in verdict["intermediate_nonfinite"]]
    assert found["intermediate_nonfinite"] == inside


def assert_sound(ended: Ended, ill: Ill, call) -> None:
    """All of it."""
    assert_recorded(ended)
    assert_valid(ended, ill)
    assert_minimal(ended, ill)
    assert_verified(ended, ill, call)
