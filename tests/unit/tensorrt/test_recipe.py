import pytest
from onnx import TensorProto

from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    EngineFile,
    Engines,
    KeptNode,
    NetworkLayer,
    NodeName,
    Profile,
    ShapeRange,
    TensorName,
    Unsupported,
    WorkerInfo,
    replace,
)
from halfwise.tensorrt.recipe import (
    Source,
    choose,
    delivered,
    kept_nodes,
    make_recipe,
)
from tests.control import branches
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.runs import kept, plan, run, verification

POW = NodeName("pow")
ENGINE = EngineFile(sha256="ee" * 32, bytes=1, side="here", path="model.engine")


def sketch():
    """A static network: pow and mean are floats, top gives integers too, cast and shape none."""
    s = Sketch()
    x = s.input("x", [1, 4, 8])
    square = s.op("Pow", x, 2.0, name="pow")
    s.op("ReduceMean", square, name="mean", axes=[-1])
    s.op("TopK", square, [2], name="top")
    s.nodes[-1].output.append("indices")
    s.op("Cast", square, name="cast", to=TensorProto.FLOAT)
    s.op("Shape", square, name="shape")
    s.op("Transpose", "mean_out", name="move", perm=[2, 1, 0])
    return s.network("move_out", "top_out", "indices", "cast_out", "shape_out")


def source(network=None):
    return Source(network or sketch(), "model.onnx", {"model.onnx": "ab" * 32})


def config(**changed):
    values = {"model_sha256": sketch().sha256, "typing": "weak", "low": "fp16", "keep": ("pow",)}
    return BuildConfig(**values | changed)


def engines(built, *, version="8.6.1", layers=(), **changed):
    build = BuildOutcome(
        number=1,
        purpose="mixed",
        status="built",
        config=built,
        seconds=1.0,
        engine=ENGINE,
        layers=layers,
    )
    values = {
        "worker": WorkerInfo(name="gpu", command=("python3",), tensorrt=version),
        "typing": built.typing,
        "profiles": built.profiles,
        "results": (),
        "rounds": (),
        "builds": (build,),
        "keep": (POW,),
        "delivered": ENGINE,
    }
    return Engines(**values | changed)


def planned(*nodes, **changed):
    return run(plan=plan(tuple(kept(n) for n in nodes), **changed))


def make(record, *, version="8.6", typing="weak", network=None, **options):
    return make_recipe(
        record,
        source(network),
        folder="runs/demo",
        engine="model.engine",
        version=version,
        typing=typing,
        **options,
    )


@pytest.mark.parametrize(
    ("version", "typing", "chosen"),
    [
        (None, None, ("10.16", "strong")),
        ("8.5", None, ("8.5", "weak")),
        ("8.6.1", None, ("8.6.1", "weak")),
        ("9", None, ("9", "strong")),
        ("10.3", "weak", ("10.3", "weak")),
        ("11.4", None, ("11.4", "strong")),
    ],
)
def test_version_and_typing_of_an_emulated_run(version, typing, chosen):
    assert choose(run(), version, typing) == chosen


@pytest.mark.parametrize(
    ("version", "typing", "chosen"),
    [
        (None, None, ("9.3.0", "weak")),
        ("9.3.0", None, ("9.3.0", "weak")),
        ("9.2", None, ("9.2", "strong")),
        (None, "strong", ("9.3.0", "strong")),
    ],
)
def test_version_and_typing_of_a_run_with_engines(version, typing, chosen):
    record = run(engines=engines(config(), version="9.3.0"))
    assert choose(record, version, typing) == chosen


@pytest.mark.parametrize(
    ("version", "typing", "message"),
    [
        ("eight", None, "is not a known version"),
        ("8", None, "support different things"),
        ("8.4", None, "8.5 to 11"),
        ("12", None, "8.5 to 11"),
        ("8.6", "strong", "has no strong typing"),
        ("11", "weak", "has no weak typing"),
    ],
)
def test_versions_and_typings_that_do_not_exist(version, typing, message):
    with pytest.raises(UsageError, match=message):
        choose(run(), version, typing)


def test_bf16_begins_with_9():
    record = run(plan=plan((), low="bf16"))
    assert choose(record, "9.0", "weak") == ("9.0", "weak")
    with pytest.raises(CaseError, match="has no BF16"):
        choose(record, "8.6", None)


def test_a_verification_plans_nothing():
    with pytest.raises(CaseError, match="has no plan"):
        choose(verification(), None, None)


def test_constraints_of_an_emulated_run():
    unsupported = (Unsupported(node=NodeName("cast"), op="Cast", reason="none"),)
    record = planned("top", "pow", data_movement=("move", "shape"), unsupported=unsupported)
    made = make(record)
    assert [(c.node, c.op, c.outputs) for c in made.constraints] == [
        ("pow", "Pow", (True,)),
        ("top", "TopK", (True, False)),
        ("move", "Transpose", (True,)),
    ]
    assert made.low == "fp16"
    assert not made.tf32
    assert "No engine was judged" in made.notes[0]


def test_a_plan_without_an_engine_allows_the_tf32_that_it_has():
    keep = (KeptNode(node=NodeName("/norm/Pow"), op="MatMul", precision="tf32"),)
    record = planned("/norm/Pow")
    record = replace(record, plan=replace(record.plan, keep=keep))
    assert make(record, typing="strong", version="10.0").tf32


def test_strong_typing_has_no_constraints():
    assert make(planned("pow"), version="10", typing="strong").constraints == ()


def test_a_run_with_engines_gives_all_of_its_build():
    built = config(
        tf32=True,
        workspace_bytes=5,
        optimization_level=4,
        tactic_sources=("CUBLAS",),
        plugins=("/p.so",),
    )
    layer = NetworkLayer(name="pow_1", type="ELEMENTWISE", nodes=(POW,), constrained=True)
    free = NetworkLayer(name="shuffle", type="SHUFFLE", nodes=(POW,))
    record = run(engines=engines(built, layers=(layer, free)))
    made = make(record, version="8.6.1")
    assert [(c.node, c.layers) for c in made.constraints] == [("pow", ("pow_1",))]
    assert made.tf32
    assert (made.workspace_bytes, made.optimization_level) == (5, 4)
    assert (made.tactic_sources, made.plugins) == (("CUBLAS",), ("/p.so",))
    assert "differ from one to the next" in made.notes[0]


def test_another_version_has_other_layers():
    layer = NetworkLayer(name="pow_1", type="ELEMENTWISE", nodes=(POW,), constrained=True)
    record = run(engines=engines(config(), layers=(layer,)))
    made = make(record, version="8.5")
    assert made.constraints[0].layers == ()
    assert "judged with TensorRT 8.6.1" in made.notes[0]


def test_the_other_typing_was_not_judged():
    record = run(engines=engines(config()))
    made = make(record, version="10", typing="strong")
    assert "was not judged" in made.notes[0]


def test_an_engine_of_strong_typing():
    strong = engines(config(typing="strong", keep=()), version="10.0.1")
    record = run(plan=plan((kept("pow"),), data_movement=("move",)), engines=strong)
    assert make(record, version="10.0.1", typing="strong").notes == ()
    assert kept_nodes(record) == {"pow", "move"}


def test_without_a_delivered_engine_the_plan_counts():
    record = run(plan=plan((kept("mean"),)), engines=engines(config(), delivered=None))
    assert delivered(record) is None
    assert kept_nodes(record) == {"mean"}


def test_the_file_is_the_one_that_was_built():
    record = run(engines=engines(config(model_sha256="00" * 32)))
    with pytest.raises(RecordMismatch, match="not the file"):
        make(record, version="8.6.1")


def test_a_node_that_is_not_there():
    with pytest.raises(RecordMismatch, match="no node 'gone'"):
        make(planned("gone"))


def test_constraints_reach_no_bodies():
    s = Sketch()
    condition = s.input("c", [], TensorProto.BOOL)
    x = s.input("x", [2, 4])
    s.op("If", condition, name="if", **branches("if", x, x))
    network = s.network("if_out")
    with pytest.raises(CaseError, match="cannot reach layers"):
        make(planned("if"), network=network)
    assert make(planned("if"), version="9", typing="strong", network=network).constraints == ()


def test_constraints_of_an_engine_reach_what_is_in_bodies():
    s = Sketch()
    condition = s.input("c", [], TensorProto.BOOL)
    x = s.input("x", [2, 4])
    s.op("If", condition, name="if", **branches("if", x, x))
    network = s.network("if_out")
    built = config(model_sha256=network.sha256, keep=("twin",))
    made = make(run(engines=engines(built)), network=network)
    assert [c.node for c in made.constraints] == ["twin"]


def test_without_a_delivered_engine_the_profiles_are_those_of_the_others():
    s = Sketch()
    s.op("Pow", s.input("x", ["N", 4]), 2.0, name="pow")
    span = ShapeRange(min=(1, 4), opt=(2, 4), max=(3, 4))
    profiles = (Profile(shapes={TensorName("x"): span}),)
    failed = engines(config(), profiles=profiles, delivered=None)
    made = make(replace(planned("pow"), engines=failed), network=s.network("pow_out"))
    assert made.profiles == profiles
    assert made.notes[0].startswith("No engine of the run passed: ")


def test_profiles_are_given_or_those_of_the_engine():
    s = Sketch()
    s.op("Pow", s.input("x", ["N", 4]), 2.0, name="pow")
    network = s.network("pow_out")
    span = ShapeRange(min=(1, 4), opt=(2, 4), max=(3, 4))
    profiles = (Profile(shapes={TensorName("x"): span}),)
    assert make(planned("pow"), network=network, profiles=profiles).profiles == profiles
    built = config(model_sha256=network.sha256, profiles=profiles)
    assert make(run(engines=engines(built)), network=network).profiles == profiles


def test_the_low_format_is_what_the_builder_was_allowed():
    assert make(run(engines=engines(config(low=None)))).low is None
    assert make(run(engines=engines(config(low=None))), version="10", typing="strong").low == "fp16"
