from halfwise.records import Modernized
from halfwise.reporting.parts import Lines, Table
from halfwise.tools.modernize.report import modernized
from tests.unit.reporting.runs import verdict

REWRITING = {
    "op": "LayerNormalization",
    "output": "y",
    "removed": ("/a/Pow", "/a/Div"),
    "added": ("/a/LayerNormalization",),
    "error": 1e-7,
}


def record(**changed):
    values = {
        "model": "m.onnx",
        "opset": 13,
        "new_opset": 20,
        "target": "TensorRT 10.0",
        "rewritings": (REWRITING,),
        "left": (),
        "folded": (),
        "names": {},
        "nodes": 9,
        "new_nodes": 8,
        "samples": ("a", "b"),
        "real": True,
        "error": 2e-7,
    }
    return Modernized.model_validate(values | changed)


def part(shown, title):
    return next(p for p in shown.parts if p.title.startswith(title))


def test_what_was_done():
    shown = modernized(record(folded=("/Shape",), notes=("not raised to opset 25: it\x1b",)))
    assert shown.title == "opset 13 → 20, 1 LayerNormalization, 9 → 8 nodes"
    assert shown.about == "m.onnx · for TensorRT 10.0"
    assert shown.caution == ""
    table = part(shown, "Rewritten")
    assert isinstance(table, Table)
    assert table.rows == (("/a/LayerNormalization", "LayerNormalization", "2", "/a/Pow"),)
    assert part(shown, "Proof") == Lines(
        "Proof",
        (
            "Outputs in FP32 on 2 samples: off by at most 2.0e-07 of the largest value.",
            "1 node computed constants, and gave way to them.",
            "not raised to opset 25: it\N{REPLACEMENT CHARACTER}",
        ),
    )


def test_nothing_to_do_on_random_numbers():
    shown = modernized(record(rewritings=(), new_opset=13, new_nodes=9, real=False))
    assert shown.title == "opset 13, nothing rewritten, 9 → 9 nodes"
    assert "--inputs" in shown.caution
    assert [p.title for p in shown.parts] == ["Proof"]


def test_equal_reasons_stand_together():
    left = tuple({"op": "Gelu", "nodes": (f"/{i}/Erf",), "reason": "no Gelu"} for i in range(3))
    shown = modernized(record(left=left, rewritings=(REWRITING,) * 20))
    assert part(shown, "Left alone").lines == ("Gelu ×3: no Gelu; from /0/Erf",)
    assert part(shown, "Rewritten").rows[-1][0] == "and 8 more"


def test_fp16_before_and_after():
    before = verdict(passed=False, reasons=("y is off",))
    shown = modernized(record(fp16_before=before, fp16_after=verdict()))
    assert part(shown, "Everything in FP16").lines == ("before: failed; y is off", "after: passed")
