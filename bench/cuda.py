"""The written models in real FP16 arithmetic: ONNX Runtime's CUDA provider against the emulation.

On a GPU, ONNX Runtime has FP16 kernels, so a strongly typed model runs there unchanged. That is not
TensorRT, but it is real hardware: errors within 3 dB of the emulated ones show that the emulation
rounds where hardware rounds. One kernel rounds elsewhere, as the shares of equal bits per operator
show (`kernels.py`): the CUDA Conv stores the sum in FP16 before it adds the bias. So a second
emulation adds biases separately, and a difference counts as explained if that is within 3 dB.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from bench.figures import Figure, at_most, equal, reported
from bench.kernels import equal_bits
from bench.runs import Ran, Subject, Workbench
from halfwise import fix, verify
from halfwise.case import Case
from halfwise.emulation.ort import Session, devices
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.roles import roles_of
from halfwise.metrics import OutputMeasure, Outputs, totals
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.records import Criterion

SAMPLES = 8
DECIBEL = 3.0


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures, or the reason why there are none."""
    if not devices()["cuda"]:
        return [], "everything: ONNX Runtime here has no CUDA provider"
    ort.preload_dlls()
    figures: list[Figure] = []
    for subject in bench.subjects():
        figures += _agreement(subject, bench.fix(subject), bench.folder)
        figures += equal_bits(subject.name, _case(subject), bench.folder)
    figures += _search(bench.subjects()[0])
    return figures, bench.missing()


def _case(subject: Subject) -> Case:
    data = understand(str(subject.inputs), {}).data
    return load_case(subject.model, data, Criterion(), split=False)


def _agreement(subject: Subject, fixed: Ran, folder: Path) -> list[Figure]:
    """Compare real with emulated FP16, for the mixed model and for everything low."""
    case = _case(subject)
    session = Session(case.network.model)
    count = min(SAMPLES, len(case.calibration))
    references = [session.run(case.calibration[i]) for i in range(count)]
    low = folder / f"{subject.name}-low.onnx"
    ir.save(rewrite(case.network, roles_of(case.network), frozenset(), FP16).model, low)
    figures = []
    for what, model in (("mixed", fixed.folder / "model.onnx"), ("all FP16", low)):
        inputs = {
            name: np.stack([case.calibration[i][name] for i in range(count)])
            for name in case.calibration[0]
        }
        apart = folder / f"{subject.name}-bias-apart.onnx"
        ir.save(_with_bias_apart(ir.load(model)), apart)
        emulated, explained = (
            _verified_snr(subject.model, candidate, inputs) for candidate in (model, apart)
        )
        plain, fused = (
            _worst_snr(references, _on_gpu(model, case, count, fuse=fuse)) for fuse in (False, True)
        )
        name = f"{subject.name}, {what}: "
        gap, unexplained = abs(emulated - plain), abs(explained - plain)
        note = (
            f"{plain:.1f} dB on the GPU, {emulated:.1f} dB emulated, {explained:.1f} dB emulated "
            f"with Conv's bias apart, {count} samples"
        )
        figures.append(reported(f"{name}|emulated − real| SNR (dB)", gap, note))
        figures.append(
            at_most(f"{name}of that not explained (dB)", min(gap, unexplained), DECIBEL, note)
        )
        note = f"{fused:.1f} dB on the GPU with ONNX Runtime's fusions"
        figures.append(reported(f"{name}emulated − fused SNR (dB)", emulated - fused, note))
    return figures


def _verified_snr(model: Path, candidate: Path, inputs: Mapping[str, np.ndarray]) -> float:
    verdict = verify(model, candidate, inputs).run.verdict
    return min(o.snr_db for o in verdict.outputs.values())


def _with_bias_apart(model: ir.Model) -> ir.Model:
    """Return `model` with every Conv's bias added by a separate node, in the same type."""
    for node in [n for n in model.graph if n.op_type == "Conv" and len(n.inputs) == 3]:
        bias, output = node.inputs[2], node.outputs[0]
        assert bias is not None
        assert bias.const_value is not None
        array = bias.const_value.numpy()
        # One dimension per spatial axis of the kernel.
        kernel = node.inputs[1]
        assert kernel is not None
        assert kernel.shape is not None
        column = array.reshape(-1, *[1] * (len(kernel.shape) - 2))
        constant = ir.val(
            f"{node.name}::bias",
            const_value=ir.tensor(column, dtype=bias.dtype, name=f"{node.name}::bias"),
        )
        model.graph.register_initializer(constant)
        total = ir.val(f"{output.name}::sum", type=output.type, shape=output.shape)
        conv = ir.Node(
            "", "Conv", node.inputs[:2], node.attributes.values(), outputs=[total], name=node.name
        )
        added = ir.val(None, type=output.type, shape=output.shape)
        add = ir.Node("", "Add", [total, constant], outputs=[added], name=f"{node.name}::add")
        model.graph.insert_after(node, [conv, add])
        output.replace_all_uses_with(added, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        added.name = output.name
    return model


def _on_gpu(model: Path, case: Case, count: int, *, fuse: bool) -> list[Outputs]:
    """Return the model's outputs in real FP16, node by node or with ONNX Runtime's fusions."""
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if fuse else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # Otherwise sums differ from run to run: on Magika, SNR was 38 to 68 dB in twelve sessions.
    options.use_deterministic_compute = True
    providers = [("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"]
    session = ort.InferenceSession(str(model), options, providers=providers)
    names = [o.name for o in session.get_outputs()]
    samples = (dict(case.calibration[i]) for i in range(count))
    return [dict(zip(names, session.run(None, sample), strict=True)) for sample in samples]


def _worst_snr(references: Sequence[Outputs], candidates: Sequence[Outputs]) -> float:
    worst = float("inf")
    for name, total in totals(references).items():
        measure = OutputMeasure(total)
        for reference, candidate in zip(references, candidates, strict=True):
            measure.update(reference[name], candidate[name], "")
        worst = min(worst, measure.result(Criterion()).snr_db)
    return worst


def _search(subject: Subject) -> list[Figure]:
    """Return whether the search on the GPU finds the same plan as on the CPU."""
    kept, seconds = {}, {}
    for device in ("cpu", "cuda"):
        started = time.monotonic()
        run = fix(subject.model, str(subject.inputs), device=device).run
        seconds[device] = time.monotonic() - started
        assert run.plan is not None
        kept[device] = {k.node for k in run.plan.keep}
    same = kept["cpu"] == kept["cuda"]
    return [
        equal(f"{subject.name}: same plan with --device cuda", same, wanted=True),
        reported(f"{subject.name}: time with cuda / cpu", seconds["cuda"] / seconds["cpu"]),
    ]
