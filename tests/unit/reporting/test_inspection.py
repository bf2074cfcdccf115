from typing import Any

from halfwise.records import (
    EngineBuild,
    EngineFile,
    EngineTensor,
    GivenEngine,
    Inspection,
    LogFinding,
    NodeName,
    Profile,
    ShapeRange,
    ShapeVerdict,
    TensorName,
    WorkerInfo,
    replace,
)
from halfwise.reporting.engines import built, given_parts, looked_into
from halfwise.reporting.parts import Lines
from tests.unit.reporting.engine_runs import SHAPES, build, latency, proof
from tests.unit.reporting.runs import verdict

WORKER = WorkerInfo(name="orin", command=("p",), tensorrt="8.6.0", gpu="H200")
FILE = EngineFile(sha256="ab" * 32, bytes=3 * 2**20, side="here", path="e.engine")
RANGE = ShapeRange(min=(1, 3), opt=(4, 3), max=(8, 3))
X = EngineTensor(
    name=TensorName("x"),
    is_input=True,
    dtype="float32",
    shape=(-1, 3),
    shape_tensor=False,
    limits=(RANGE,),
)
Y = replace(X, name=TensorName("y"), is_input=False, shape=(), limits=())


def inspection(**changed):
    values: dict[str, Any] = {
        "worker": WORKER,
        "engine": FILE,
        "tensors": (X, Y),
        "layers": 7,
        "proof": proof(),
        "latency": latency(1.5),
        "notes": (),
    }
    return Inspection(**values | changed)


def part(report, title):
    return next(p for p in report.parts if p.title == title)


def test_an_inspection():
    report = looked_into(inspection())
    assert report.passed is None
    assert part(report, "Inputs and outputs").rows == (
        ("input", "x", "float32", "?×3", "1×3", "4×3", "8×3"),
        ("output", "y", "float32", "scalar", "", "", ""),
    )


def test_profiles_stand_side_by_side_and_shape_tensors_have_values():
    two = replace(X, limits=(RANGE, RANGE), shape_tensor=True, shape=(2,))
    many = tuple(replace(X, name=TensorName(f"x{i}")) for i in range(20))
    rows = part(looked_into(inspection(tensors=(two, *many))), "Inputs and outputs").shown
    assert rows[0][3:] == ("values", "1×3; 1×3", "4×3; 4×3", "8×3; 8×3")
    assert rows[-1][0] == "and 9 more"


def test_an_engine_that_could_not_be_inspected():
    report = looked_into(inspection(proof=None, latency=None, notes=("It does not run.",)))
    assert (report.passed, len(report.parts)) == (None, 2)


WARNED = LogFinding(
    kind="k",
    severity="warning",
    sentence="A weight overflows.",
    hint="Keep it.",
    count=1,
    nodes=(NodeName("conv"),),
)
BUILT = EngineBuild(
    model="m.onnx",
    build=build(1, "e.engine"),
    inspection=inspection(proof=proof(findings=("2 nodes are FP16.",))),
    findings=(WARNED, replace(WARNED, severity="info")),
)
GIVEN = GivenEngine(
    worker=WORKER,
    engine=FILE,
    profiles=(Profile(),),
    shapes=(
        ShapeVerdict(shapes=SHAPES, at="opt", verdict=verdict(level="engine")),
        ShapeVerdict(shapes=SHAPES, at="max", verdict=None, reason="no data"),
    ),
    latency=latency(2),
)


def test_a_build_fails_where_it_is_not_as_asked():
    assert built(BUILT).passed is False
    assert len(part(built(BUILT), "What the builder said").lines) == 1
    assert built(replace(BUILT, inspection=inspection())).passed is None


def test_many_findings_are_counted():
    made = replace(BUILT, findings=(WARNED,) * 15)
    lines = part(built(made), "What the builder said").lines
    assert len(lines) == 13
    assert " 3 more" in lines[-1]


def test_what_the_environment_does_to_tf32():
    worker = replace(WORKER, tf32_override="1")
    report = looked_into(inspection(worker=worker, notes=("On zeros.",)))
    assert part(report, "About this inspection").lines == ("On zeros.", worker.tf32_remark)
    own = GivenEngine(worker=worker, engine=FILE, profiles=(), shapes=(), latency=latency(2))
    engine, *_ = given_parts(own)
    assert isinstance(engine, Lines)
    assert engine.lines[1] == worker.tf32_remark


def test_shapes_that_were_not_judged_come_first():
    _, judged, _ = (p for p in given_parts(GIVEN) if isinstance(p, Lines))
    assert [line.partition(" ")[0] for line in judged.lines] == ["max", "opt"]
