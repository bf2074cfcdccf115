"""Engines of a made-up network: four that were timed and inspected, layer by layer."""

from collections.abc import Iterator, Sequence

from halfwise.records import (
    Cause,
    EngineLayer,
    EngineResult,
    EngineRung,
    Engines,
    NetworkLayer,
    NodeName,
    NodePrecision,
    Precision,
    PrecisionProof,
    RungTried,
    TensorName,
    replace,
)
from tests.browser.network import Made
from tests.unit.reporting.engine_runs import build, engine_round, engines, failed, latency
from tests.unit.reporting.runs import BROKEN, verdict

FUSED = 3
"""Nodes that one layer of an engine computes."""
ENGINES: tuple[tuple[str, EngineRung, float], ...] = (
    ("FP32, TF32 off", "fp32", 12.4),
    ("FP32, TF32 on", "tf32", 6.1),
    ("FP16", "fp16", 3.0),
    ("mixed", "fp16", 3.16),
)
"""Name, what most of it computes in, and its median time in ms."""
SHAPE = {TensorName("image"): (1, 3, 224, 224)}
KERNEL = (
    "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16"
)


def made_engines(network: Sequence[Made], keep: set[str]) -> Engines:
    """Return the engines of a run that delivers one which has `keep` in FP32."""
    kept = tuple(NodeName(node.name) for node in network if node.name in keep)
    builds = [build(i, name) for i, (name, _, _) in enumerate(ENGINES, 1)]
    layers = tuple(
        NetworkLayer(name=n.name, type=n.op.upper(), nodes=(NodeName(n.name),)) for n in network
    )
    builds[3] = replace(builds[3], layers=layers)
    results = []
    for made, (name, most, median) in zip(builds, ENGINES, strict=True):
        fp32 = keep if name == "mixed" else set()
        wrong = {} if name != "FP16" else {"passed": False, "outputs": {"logits": BROKEN}}
        results.append(
            EngineResult(
                name=name,
                build=replace(made, layers=()),
                verdict=verdict(level="engine", **wrong),
                latency=latency(median),
                proof=_proof(network, fp32, most),
                kept=len(fp32),
                rung=most,
                excess=31.0 if wrong else 0.4,
            )
        )
    return engines(
        results=tuple(results),
        rounds=(engine_round(5, keep=kept[:8]), engine_round(4, keep=kept, passed=True)),
        builds=(*builds, failed(5)),
        keep=kept,
        causes=(Cause(kind="precision", builds=(3,), excess=31.0),),
        rungs=(RungTried(rung="fp16", end="delivered"),),
        rung="fp16",
    )


def _proof(
    network: Sequence[Made],
    fp32: set[str],
    most: EngineRung,
) -> PrecisionProof:
    layers = tuple(_layers(network, fp32, most))
    of = {name: layer for layer in layers for name in layer.nodes}
    nodes = tuple(
        NodePrecision(
            node=name,
            precision=of[name].precision,
            asked="fp32" if name in fp32 else None,
            layers=(of[name].name,),
        )
        for name in (NodeName(node.name) for node in network)
    )
    share = sum(layer.precision == "fp32" for layer in layers) / len(layers)
    shares: dict[Precision, float] = {most: 1 - share, "fp32": share}
    if most == "fp32":
        shares = {"fp32": 1.0}
    findings = ("constraint on /blocks.0/norm1/Pow was not honoured",) if fp32 else ()
    return PrecisionProof(layers=layers, nodes=nodes, node_share=shares, findings=findings)


def _layers(
    network: Sequence[Made],
    fp32: set[str],
    most: EngineRung,
) -> Iterator[EngineLayer]:
    """Yield layers of neighbours that compute in one type."""
    groups: list[list[Made]] = []
    for node in network:
        last = groups[-1] if groups else []
        alike = bool(last) and (last[0].name in fp32) == (node.name in fp32)
        if alike and len(last) < FUSED:
            last.append(node)
        else:
            groups.append([node])
    for group in groups:
        precision: Precision = "fp32" if group[0].name in fp32 else most
        computes = any(node.computes for node in group)
        stored = "fp32" if precision in ("fp32", "tf32") else "fp16"
        yield EngineLayer(
            name=" + ".join(node.name for node in group),
            type="CaskGemmMatrixMultiply" if computes else "NoOp",
            nodes=tuple(NodeName(node.name) for node in group),
            inputs=(stored,),
            outputs=(stored,),
            tactic=KERNEL if computes else "",
            precision=precision if computes else "other",
        )
