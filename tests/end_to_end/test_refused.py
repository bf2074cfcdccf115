"""A plan that the builder refuses, through the command line: what is tried, stored and repeated."""

import json

from tests import models
from tests.fake_tensorrt.faults import Fault


def test_a_plan_that_is_built_on_other_terms_is_told_and_exported(engines, call):
    norm = models.layer_norm()
    nodes = ("square", "variance", "eps", "root")
    fault = Fault("build", "foreign", nodes=nodes, fails="any", when={"low": "fp16", "level": 3})
    ended = engines(norm, "--no-repair", "--budget", "builds=8", faults=[fault])
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert found["rung"] == "fp16"
    sha256 = found["delivered"]["sha256"]
    built = [b for b in found["builds"] if b["engine"] is not None]
    (delivered,) = (b for b in built if b["engine"]["sha256"] == sha256)
    assert delivered["config"]["optimization_level"] == 5
    refused = [b for b in found["builds"] if b["engine"] is None]
    assert refused
    assert all("Could not find any implementation for node" in b["said"] for b in refused)
    assert "Failed builds" in ended.out
    recipe = json.loads(call("export", "run", "--as", "json").out)
    assert recipe["optimization_level"] == 5
    assert call("report", "run").out == ended.out


def test_where_every_mixed_plan_is_refused_that_is_told_and_no_precision_is_blamed(engines):
    norm = models.layer_norm()
    nodes = tuple(n.name for n in norm.proto.graph.node)
    fault = Fault("build", "foreign", nodes=nodes, fails="any")
    ended = engines(norm, "--no-repair", "--budget", "builds=3", faults=[fault])
    found, told = ended.record["engines"], " ".join(ended.out.split())
    assert found["rung"] in ("fp32", "tf32")
    (cause,) = found["causes"]
    refused = [b["number"] for b in found["builds"] if b["engine"] is None]
    assert (cause["kind"], cause["builds"]) == ("refused", refused)
    assert cause["excess"] > 1
    assert found["rungs"][-1]["end"] == "tolerance"
    assert "refused every FP16 plan that the emulation predicts to pass" in told
    assert "low precision explains it" not in told

    said = f"Could not find any implementation for node {{ForeignNode[{nodes[0]}...{nodes[-1]}]}}"
    assert f"Builds {', '.join(map(str, refused))} (" in told
    assert "TensorRT built no engine. It said: Could not find any implementation" in told
    # Once in the report; of each build while it runs.
    assert told.count(said) == 1
    assert "Assertion engine != nullptr" not in told + ended.err
    assert " ".join(ended.err.split()).count(said) == len(refused)
