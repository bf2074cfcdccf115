"""Hand-made runs: what `fix` finds on a transformer whose 13 LayerNorms overflow."""

from typing import Any

from halfwise.records import (
    Cost,
    Criterion,
    Detail,
    Failure,
    Guard,
    GuardKind,
    Histogram,
    InnerObservation,
    IntermediateNonfinite,
    KeptNode,
    NodeName,
    Note,
    Observation,
    Observations,
    OutputError,
    Plan,
    Provenance,
    Run,
    Search,
    Side,
    TensorName,
    Verdict,
    said,
)

HELDOUT = tuple(f"heldout.npz[{i}]" for i in range(64))
CALIBRATION = tuple(f"inputs.npz[{i}]" for i in range(48))
NORMS = [f"/blocks.{i}/norm{k}" for i in range(6) for k in (1, 2)] + ["/norm"]
SIDE = Side()
FIX = "Export with opset 17 or later so that LayerNormalization is one node."


def output_error(**changed: Any) -> OutputError:
    """Return the error of an output that is well within the tolerance."""
    values: dict[str, Any] = {
        "max_abs": 0.00722,
        "rel_max": 0.0015,
        "mean_abs": 0.0008,
        "snr_db": 61.3,
        "cosine": 0.99999963,
        "agreement": None,
        "nonfinite": 0,
        "reference": SIDE,
        "worst_sample": HELDOUT[3],
        "passed": True,
    }
    return OutputError(**values | changed)


BROKEN = output_error(max_abs=4.81, rel_max=1.0, snr_db=0.02, cosine=0.049954, passed=False)


def verdict(**changed: Any) -> Verdict:
    """Return a passed verdict on 64 held-out samples."""
    values: dict[str, Any] = {
        "passed": True,
        "level": "emulated",
        "samples": HELDOUT,
        "unseen": True,
        "outputs": {"logits": output_error()},
        "worst_sample": HELDOUT[3],
    }
    told = changed.pop("reasons", ())
    failures = tuple(Failure(kind="cause", text=reason) for reason in told)
    return Verdict(**values | ({"failures": failures} if failures else {}) | changed)


def baseline(**changed: Any) -> Verdict:
    """Return the verdict on everything in FP16."""
    inside = IntermediateNonfinite(
        tensor=TensorName("/blocks.0/norm1/Pow_output_0"),
        producer=NodeName("/blocks.0/norm1/Pow"),
        elements=1200,
    )
    values: dict[str, Any] = {
        "passed": False,
        "outputs": {"logits": BROKEN},
        "intermediate_nonfinite": (inside,),
        "reasons": ("output logits is out of tolerance",),
    }
    return verdict(**values | changed)


def guard(node: str, kind: GuardKind = "square", **changed: Any) -> Guard:
    """Return a certain suspicion at one node."""
    values: dict[str, Any] = {
        "tensor": None,
        "message": f"the square of {node}_input reaches 2.8e7, beyond FP16's 65504",
        "fix": FIX,
        "nodes": (node,),
        "severity": 3.3,
    }
    return Guard(kind=kind, node=NodeName(node), **values | changed)


def kept(node: str, op: str = "Pow", **changed: Any) -> KeptNode:
    """Return a kept node that a guard explains."""
    values: dict[str, Any] = {
        "reason": f"The square of {node}_input reaches 2.8e7; lowered, it gives NaN.",
        "guard": "square",
        "error_without": 152.4,
    }
    return KeptNode(node=NodeName(node), op=op, **values | changed)


def plan(keep: tuple[KeptNode, ...], **changed: Any) -> Plan:
    """Return a minimal plan."""
    values: dict[str, Any] = {
        "low": "fp16",
        "data_movement": (),
        "constants": (),
        "unsupported": (),
        "minimal": True,
        "candidates": 258,
        "casts": 28,
    }
    return Plan(keep=keep, **values | changed)


def search(**changed: Any) -> Search:
    """Return a search that came to its end."""
    values: dict[str, Any] = {
        "tolerance_factor": 0.8,
        "calibration": CALIBRATION,
        "joined": (),
        "seconds_budget": 300.0,
        "exhausted": False,
    }
    return Search(**values | changed)


def provenance(**changed: Any) -> Provenance:
    """Return where the run comes from."""
    values: dict[str, Any] = {
        "versions": {"python": "3.12.0", "halfwise": "0.1.0"},
        "platform": "Linux x86_64",
        "device": "cpu",
        "model": "examples/digits/model.onnx",
        "model_sha256": "ab" * 32,
        "notes": (Note(kind="samples", facts={"samples": 48}),),
        "inputs_sha256": "cd" * 32,
        "options": {},
        "date": "2026-01-01T00:00:00+00:00",
    }
    return Provenance(**values | changed)


def run(**changed: Any) -> Run:
    """Return a passed run that keeps the 13 squares of 13 LayerNorms and their 39 followers."""
    nodes = tuple(
        kept(f"{norm}/{op}", op, guard="square" if op == "Pow" else "overflow")
        for norm in NORMS
        for op in ("Pow", "ReduceMean", "Add", "Sqrt")
    )
    guards = tuple(guard(f"{norm}/Pow") for norm in NORMS)
    guards += tuple(
        guard(
            f"{norm}/ReduceMean",
            "overflow",
            message=f"{norm}/ReduceMean_output_0 reaches 5.4e6, beyond FP16's 65504",
            nodes=tuple(f"{norm}/{op}" for op in ("ReduceMean", "Add", "Sqrt")),
        )
        for norm in NORMS
    )
    values: dict[str, Any] = {
        "kind": "fix",
        "criterion": Criterion(),
        "accumulate": "fp32",
        "io": "fp32",
        "headroom": 2.0,
        "baseline": baseline(),
        "guards": guards,
        "growth": (),
        "plan": plan(nodes),
        "search": search(),
        "verdict": verdict(),
        "original_names": {},
        "warnings": (),
        "next_step": said(
            "TensorRT 9 and later: trtexec --onnx=runs/demo/model.onnx --stronglyTyped"
        ),
        "cost": Cost(
            evaluations=66,
            seconds=16.1,
            stage_seconds={"observe": 3.6, "search": 8.0, "attribute": 0.01},
            peak_rss_bytes=247 * 2**20,
        ),
        "provenance": provenance(),
    }
    return Run(**values | changed)


def verification(**changed: Any) -> Run:
    """Return what `verify` records."""
    without: dict[str, Any] = {
        "kind": "verify",
        "baseline": None,
        "guards": (),
        "plan": None,
        "search": None,
        "next_step": (),
    }
    return run(**without | changed)


def observation(tensor: str, producer: str | None, absmax: float, **changed: Any) -> Observation:
    """Return what one tensor looked like."""
    detail = Detail(
        smallest_nonzero=1e-3,
        overflow=0.5 if absmax > 65504 else 0.0,
        flush=1e-6,
        subnormal=0.0,
        histogram=Histogram(first=-10, counts=(1, 2, 3), zeros=0),
        samples=32,
    )
    values: dict[str, Any] = {"nonfinite": 0, "worst_sample": 1, "detail": detail}
    return Observation(
        tensor=TensorName(tensor),
        producer=None if producer is None else NodeName(producer),
        absmax=absmax,
        **values | changed,
    )


def observations(**changed: Any) -> Observations:
    """Return observations of two samples, unsorted, with large values inside and outside of ops."""
    values: dict[str, Any] = {
        "tensors": (
            observation("images", None, 1.0),
            observation("/norm/Sub_output_0", "/norm/Sub", 5.3e3),
            observation("/norm/Add_output_0", "/norm/Add", 5.4e6, detail=None),
            observation("variance", "/norm/Pow", 2.8e7, op="Pow"),
            observation("/head/Log_output_0", "/head/Log", 3.0, nonfinite=7, worst_sample=0),
        ),
        "inner": (
            InnerObservation(
                node=NodeName("/norm/Mean"), op="ReduceMean", kind="sum", value=1e9, worst_sample=1
            ),
            InnerObservation(
                node=NodeName("/norm/Sub"), op="Sub", kind="cancellation", value=1e9, worst_sample=1
            ),
        ),
        "samples": ("inputs.npz[0]", "inputs.npz[1]"),
    }
    return Observations(**values | changed)
