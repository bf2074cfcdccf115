"""What builds an engine from a run that passed in emulation."""

from collections.abc import Sequence
from pathlib import Path

from halfwise.case import Case
from halfwise.emulation.tf32 import TENSOR_CORE_OPS
from halfwise.errors import CaseError
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import bodies
from halfwise.records import KeptNode, Plan, Profile, Step
from halfwise.store import FP32_FILE, MODEL_FILE
from halfwise.tensorrt.constrain import builder_flags
from halfwise.tensorrt.ports import profiles_from_data
from halfwise.tensorrt.recipe import planned_nodes
from halfwise.tensorrt.trtexec import shape_options, unsayable
from halfwise.tensorrt.versions import WEAK_ONLY, since, text_of
from halfwise.wording import argument, listed

_OLDER = f"tensorrt-{text_of(WEAK_ONLY)}"


def sample_profiles(case: Case) -> tuple[Profile, ...]:
    """Return a profile that holds all samples of a case.

    None if no shape can vary, or if no profile can hold them.
    """
    try:
        return profiles_from_data(case.network, case.calibration + case.heldout)
    except CaseError:
        return ()


def building(
    case: Case, plan: Plan, profiles: Sequence[Profile], out: Path | None
) -> tuple[Step, Step]:
    """Return what builds an engine from a passed run, for TensorRT 9 and later and for 8.x.

    Args:
        case: The case.
        plan: What is FP32.
        profiles: Of the samples; none for fixed shapes.
        out: The run folder; None if nothing was written.
    """
    return _strong(case.network, plan, profiles, out), _weak(case, plan, profiles, out)


def _strong(network: Network, plan: Plan, profiles: Sequence[Profile], out: Path | None) -> Step:
    model = out / MODEL_FILE if out else Path(MODEL_FILE)
    words = ["trtexec", f"--onnx={model}", "--stronglyTyped"]
    words += ["--noTF32"] if any(map(_needs_fp32, plan.keep)) else []
    if out and not _sayable(profiles):
        words = ["halfwise", "export", argument(out), "--as", "python"]
        words += ["-o", argument(out / "strong")]
    else:
        words += [option for profile in profiles[:1] for option in shape_options(profile)]
        words.append(f"--saveEngine={model.with_suffix('.engine')}")
    names = {"since": since("strong typing")}
    foreign = dict.fromkeys(n.op_type for n in network.nodes() if not is_standard(n))
    names |= {"plugins": listed(list(foreign), 3)} if foreign else {}
    return Step(kind="build", names=names, command=tuple(words))


def _needs_fp32(kept: KeptNode) -> bool:
    return kept.op in TENSOR_CORE_OPS and kept.precision == "fp32"


def _weak(case: Case, plan: Plan, profiles: Sequence[Profile], out: Path | None) -> Step:
    older = {"older": f"{WEAK_ONLY[0]}.x"}
    if plan.low == "bf16":
        return Step(kind="older-bf16", names=older)
    names = planned_nodes(plan)
    if any(bodies(node) for node in case.network.nodes() if node_name(node) in names):
        return Step(kind="older-bodies", names=older)
    if not (names or plan.repairs or plan.int8):
        return _plain(case, plan, profiles, out)
    has = ["repaired"] * bool(plan.repairs) + ["int8"] * bool(plan.int8)
    has += ["kept" if plan.keep else "moving"] * bool(names)
    words = None
    if out is not None and case.network.path is not None:
        trtexec = _sayable(profiles) and not any(map(unsayable, names)) and "*" not in names
        words = ["halfwise", "export", argument(out), "--as", "trtexec" if trtexec else "python"]
        # A folder: if nodes have no names of their own, a model with names is written there.
        words += ["--trt-version", text_of(WEAK_ONLY), "-o", argument(out / _OLDER)]
    return Step(
        kind="older-constrained",
        names=older,
        items=tuple(has),
        command=None if words is None else tuple(words),
    )


def _plain(case: Case, plan: Plan, profiles: Sequence[Profile], out: Path | None) -> Step:
    """Return what builds the FP32 model if weak typing needs no constraint."""
    network = case.network
    flags = [f"--{flag}" for flag in (*builder_flags(network), plan.low)]
    older = {"older": f"{WEAK_ONLY[0]}.x"}
    if out is None or network.path is None or not _sayable(profiles):
        return Step(kind="older-plain", names={**older, "flags": " and ".join(flags)})
    settled = any(note.kind == "settled" for note in case.notes)
    words = ["trtexec", f"--onnx={out / FP32_FILE if settled else network.path}", *flags]
    words += [option for profile in profiles[:1] for option in shape_options(profile)]
    words.append(f"--saveEngine={out / f'{_OLDER}.engine'}")
    return Step(kind="older-plain", names=older, command=tuple(words))


def _sayable(profiles: Sequence[Profile]) -> bool:
    """Return whether trtexec accepts the names of all inputs."""
    return not any(unsayable(name) for p in profiles for name in (*p.shapes, *p.values))
