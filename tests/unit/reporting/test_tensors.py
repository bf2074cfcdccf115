from halfwise.records import AdjustedConstant, NodeName, TensorName
from halfwise.reporting.engines import observed
from tests.unit.reporting.runs import observation, observations


def rows(report):
    return [
        dict(zip([c.title for c in t.columns], r, strict=True))
        for t in report.parts
        for r in t.rows
    ]


def test_large_and_non_finite_tensors_come_largest_first():
    report = observed(observations(), 10_000)
    assert report.title.startswith("3 of 5 ")
    assert report.passed is None
    found = rows(report)
    assert [row["node"] for row in found] == [
        "/head/Log",
        "/norm/Pow",
        "/norm/Add",
        "/norm/Mean",
    ]
    assert found[0]["NaN, inf"] == "7"
    assert found[0]["worst sample"] == "inputs.npz[0]"


def test_figures_of_a_tensor():
    row = rows(observed(observations(), 10_000))[1]
    assert row == {
        "node": "/norm/Pow",
        "tensor": "variance",
        "op": "Pow",
        "absmax": "2.8e7",
        "NaN, inf": "",
        "overflow": "50 %",
        "flush": "<0.01 %",
        "worst sample": "inputs.npz[1]",
    }


def test_a_tensor_named_after_its_node_shows_only_the_rest():
    row = rows(observed(observations(), 10_000))[2]
    assert row["tensor"] == "…_output_0"
    assert row["overflow"] == ""


def test_what_is_large_inside_an_op_is_marked_and_other_numbers_are_not_magnitudes():
    inside = [r for r in rows(observed(observations(), 10_000)) if "inside" in r["tensor"]]
    assert [r["tensor"] for r in inside] == ["inside: sum"]


def test_nothing_to_list():
    report = observed(observations(tensors=(), inner=()), 10_000)
    assert report.title.startswith("0 of 0 tensors")
    assert report.parts == ()


def test_hostile_names_and_an_index_beyond_the_samples():
    tensors = (
        observation("[red]\x1b[31m" + "x" * 9000, "a\nb", float("inf"), worst_sample=7),
        observation("input", None, 1e9),
    )
    found = rows(observed(observations(tensors=tensors, inner=(), samples=()), 10_000))
    assert found[0]["tensor"].startswith("[red]�[31m")
    assert found[0]["node"] == "a�b"
    assert found[0]["absmax"] == "inf"
    assert found[1]["node"] == "(graph input)"
    assert all(len(cell) <= 40 for row in found for cell in row.values())


def test_constants_beyond_the_range_are_listed():
    big = AdjustedConstant(
        name=TensorName("variance"),
        minimum=0,
        maximum=9.8e7,
        elements=3,
        consumers=(NodeName("/norm/BN"),),
    )
    tiny = AdjustedConstant(
        name=TensorName("eps"), minimum=1e-12, maximum=1e-12, elements=1, consumers=()
    )
    report = observed(observations(tensors=(), inner=(), constants=(tiny, big)), 10_000)
    (row,) = rows(report)
    assert (row["node"], row["tensor"], row["op"]) == ("/norm/BN", "variance", "(constant)")
    assert row["absmax"] == "9.8e7"
    assert report.about.endswith(": 1")


def test_shares_counted_on_some_samples_say_on_how_many():
    few = observations(samples=tuple(f"inputs.npz[{i}]" for i in range(200)))
    assert observed(few, 10_000).about.endswith(" 32 samples")
    assert "32" not in observed(observations(), 10_000).about


def test_the_limit_is_written_as_all_numbers_are():
    assert observed(observations(), 1e7).title.split()[5] == "1e7"
