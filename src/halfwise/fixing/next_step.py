"""What to do after a `fix` that passed: commands that run as printed."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from halfwise.case import Case
from halfwise.emulation.tf32 import TENSOR_CORE_OPS
from halfwise.errors import CaseError
from halfwise.graph.model import node_name
from halfwise.graph.roles import bodies
from halfwise.records import KeptNode, Plan, Profile
from halfwise.store import MODEL_FILE
from halfwise.tensorrt.profiles import profiles_from_data
from halfwise.tensorrt.recipes import shape_options
from halfwise.tensorrt.recipes.recipe import planned_nodes
from halfwise.tensorrt.trtexec import unsayable


def sample_profiles(case: Case) -> tuple[Profile, ...]:
    """Return the profile that holds all samples of a case.

    None where no shape can vary, or where no profile can hold them.
    """
    try:
        return profiles_from_data(case.network, case.calibration + case.heldout)
    except CaseError:
        return ()


def building_commands(
    case: Case, plan: Plan, profiles: Sequence[Profile], out: Path | None
) -> tuple[str, str]:
    """Return what builds an engine from a passed run, with TensorRT 9 and later and with 8.x.

    A command stands at the end of its line, quoted for a shell.

    Args:
        case: The case.
        plan: What is FP32.
        profiles: Of the samples; none where shapes are fixed.
        out: The run folder; None where nothing was written.
    """
    return _strong(plan, profiles, out), _weak(case, plan, profiles, out)


def _strong(plan: Plan, profiles: Sequence[Profile], out: Path | None) -> str:
    model = out / MODEL_FILE if out else Path(MODEL_FILE)
    words = ["trtexec", f"--onnx={model}", "--stronglyTyped"]
    words += ["--noTF32"] if any(_may_use_tf32(k) for k in plan.keep) else []
    if out and not _sayable(profiles):
        words = ["halfwise", "export", str(out), "--as", "python", "-o", str(out / "strong")]
    else:
        words += [option for profile in profiles[:1] for option in shape_options(profile)]
        words.append(f"--saveEngine={model.with_suffix('.engine')}")
    return f"TensorRT 9 and later: {shlex.join(words)}"


def _weak(case: Case, plan: Plan, profiles: Sequence[Profile], out: Path | None) -> str:
    if plan.low == "bf16":
        return "TensorRT 8.x has no BF16, nor have GPUs before compute capability 8.0."
    older = "TensorRT 8.x ignores Casts in the graph"
    names = planned_nodes(plan)
    if any(bodies(node) for node in case.network.nodes() if node_name(node) in names):
        return f"{older}, and layer constraints reach no layer in the bodies of kept nodes."
    path = case.network.path
    if not names:
        return f"{older}; nothing is kept: {_plain(plan, profiles, path, out)}"
    if out is None or path is None:
        return f"{older}: halfwise export writes layer constraints for the kept nodes."
    trtexec = _sayable(profiles) and not any(map(unsayable, names)) and "*" not in names
    kind = "trtexec" if trtexec else "python"
    # A folder: where nodes have no names of their own, a model with names is written there.
    words = ["halfwise", "export", str(out), "--as", kind, "--trt-version", "8.6"]
    words += ["-o", str(out / "tensorrt-8.6")]
    return f"{older}; layer constraints for the kept nodes: {shlex.join(words)}"


def _plain(plan: Plan, profiles: Sequence[Profile], path: Path | None, out: Path | None) -> str:
    """Return what builds the FP32 model where weak typing needs no constraint."""
    if out is None or path is None or not _sayable(profiles):
        return f"build the FP32 model with --{plan.low} alone."
    words = ["trtexec", f"--onnx={path}", f"--{plan.low}"]
    words += [option for profile in profiles[:1] for option in shape_options(profile)]
    return shlex.join([*words, f"--saveEngine={out / 'tensorrt-8.6.engine'}"])


def _sayable(profiles: Sequence[Profile]) -> bool:
    """Return whether trtexec can be told of all inputs by their names."""
    return not any(unsayable(name) for p in profiles for name in (*p.shapes, *p.values))


def _may_use_tf32(kept: KeptNode) -> bool:
    return kept.op in TENSOR_CORE_OPS
