"""Ten builds of TensorRT 10 with weak typing: commands, a log, and scripts as people write them."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from halfwise import api
from halfwise.errors import CaseError, UsageError
from tests import models
from tests.judges import Build, RtxBuilder

OBEY = "--precisionConstraints=obey"
NEEDED = {"conv_b", "relu", "conv_c"}
COMMANDS = {
    "by-name": f"trtexec --onnx=model.onnx --fp16 {OBEY} "
    "--layerPrecisions=conv_b:fp32,relu:fp32,conv_c:fp32",
    "all-but-one": f"trtexec --onnx=model.onnx --fp16 {OBEY} --layerPrecisions=*:fp32,conv_a:fp16",
    "output-types": f"trtexec --onnx=model.onnx --best {OBEY} "
    "--layerOutputTypes=conv_b:fp32,relu:fp32 --layerPrecisions=conv_c:fp32 "
    "--saveEngine=m.engine --workspace=4096",
    "script.sh": f"#!/bin/sh\n/opt/trt/bin/trtexec \\\n  --onnx=model.onnx --fp16 {OBEY} \\\n"
    "  --layerPrecisions='conv_b':fp32,'relu':fp32,'conv_c':fp32\n",
    "build.log": "&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=model.onnx "
    f"--fp16 {OBEY} --layerPrecisions=relu:fp32,conv_b:fp32,conv_c:fp32\n[I] = Model =\n",
}
HEAD = """
import tensorrt as trt
KEEP = ["conv_b", "conv_c"]
logger = trt.Logger()
def build(path="model.onnx"):
    builder = trt.Builder(logger)
    network = builder.create_network()
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.FP16)
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
"""
SCRIPTS = {
    "names.py": HEAD + """
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        if layer.name in KEEP or layer.type == trt.LayerType.ACTIVATION:
            layer.precision = trt.float32
            layer.set_output_type(0, trt.float32)
""",
    "skips.py": HEAD + """
    for layer in network:
        if layer.type in (trt.LayerType.CONSTANT, trt.LayerType.SHAPE):
            continue
        if layer.name.endswith("_a"):
            layer.precision = trt.DataType.HALF
        else:
            layer.precision = trt.DataType.FLOAT
""",
    "helper.py": HEAD.replace("tensorrt as trt", "tensorrt as T").replace("trt.", "T.") + """
    for index in range(self.network.num_layers):
        if wanted(self.network[index].name):
            self.network[index].precision = T.float32
def wanted(name):
    return re.match("relu|conv_[bc]", name) is not None
import re
""",
    "outputs.py": HEAD + """
    first, last = 1, 3
    for i in range(first, last + 1):
        for j in range(network.get_layer(i).num_outputs):
            if network.get_layer(i).get_output(j).dtype == trt.float32:
                network.get_layer(i).set_output_type(j, trt.DataType.FLOAT)
""",
    "every.py": HEAD + """
    for layer in network:
        print(layer.name)
    for layer in network:
        if "conv_a" not in layer.name: layer.precision = trt.float32
""",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ill = models.conv_chain()
    onnx.save(ill.proto, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", **dict(ill.inputs))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    return tmp_path


def source(name: str, folder: Path) -> str | list[str]:
    if "." not in name:
        return COMMANDS[name].split()
    (folder / name).write_text({**COMMANDS, **SCRIPTS}[name], encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize("name", [*COMMANDS, *SCRIPTS])
def test_a_weakly_typed_build_becomes_a_judged_file_that_the_builder_takes(
    name: str, folder: Path, rtx: RtxBuilder
) -> None:
    made = api.migrate(source(name, folder), "inputs.npz", out="typed")
    assert set(made.fp32) == NEEDED
    assert made.result.run.verdict.passed
    assert (folder / "typed" / "run" / "report.html").is_file()
    assert isinstance(rtx.build(folder / "typed" / "model.onnx"), Build)


def test_the_command_keeps_what_says_nothing_about_precision(folder: Path) -> None:
    made = api.migrate(source("output-types", folder), "inputs.npz", out="typed")
    assert made.command == (
        *("trtexec", "--onnx=typed/model.onnx", "--stronglyTyped"),
        "--saveEngine=m.engine",
    )
    (best,) = made.dropped
    assert best.startswith("--best ")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("items", ["*:fp16,*:fp32", "conv_*:fp32,*_b:fp16", "relu:fp16,relu:fp32"])
@pytest.mark.parametrize("option", ["--layerPrecisions", "--layerOutputTypes"])
def test_two_types_for_a_node_are_refused(option: str, items: str) -> None:
    with pytest.raises(UsageError, match=f"gets two types in {option}"):
        api.migrate(["--onnx=model.onnx", "--fp16", f"{option}={items}"], "inputs.npz", out="typed")
    assert not Path("typed").exists()


@pytest.mark.usefixtures("folder")
def test_what_the_typed_model_does_not_have_is_named() -> None:
    needed = ",".join(f"{name}:fp32" for name in sorted(NEEDED))
    words = ["trtexec", "--onnx=model.onnx", "--fp16", "--int8", "--workspace=1"]
    made = api.migrate(
        [*words, f"--layerPrecisions=relux:fp32,{needed},conv_a:int8,zzz:fp32"],
        "inputs.npz",
        out="typed",
    )
    assert set(made.fp32) == NEEDED
    int8, near, other, none = made.dropped
    assert int8.startswith("--int8 ")
    assert near.startswith("relux:fp32 in --layerPrecisions")
    assert near.endswith("relu?")
    assert other.startswith("conv_a:int8 in --layerPrecisions")
    assert none.startswith("zzz:fp32 in --layerPrecisions")
    assert "relu" not in none


def test_a_variable_of_a_shell_is_no_file(folder: Path) -> None:
    (folder / "b.sh").write_text("trtexec --onnx=$MODEL --fp16\n", encoding="utf-8")
    with pytest.raises(CaseError) as raised:
        api.migrate(str(folder / "b.sh"), "inputs.npz", out="typed")
    assert "--model" in raised.value.hint
    made = api.migrate(str(folder / "b.sh"), "inputs.npz", out="typed", model="model.onnx")
    assert made.fp32 == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trtexec", "--fp16", "--saveEngine=e"], "no ONNX file"),
        (["trtexec", "--onnx=model.onnx"], "not build in FP16"),
    ],
)
def test_what_lacks_a_model_or_fp16_is_refused(
    words: list[str], message: str, folder: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        api.migrate(words, "inputs.npz", out=folder / "typed")


@pytest.mark.parametrize(
    "script", ["def build(:\n", HEAD + "    for l in network: l.precision = KEEP[9]\n"]
)
def test_a_script_that_cannot_be_followed_is_told_so(script: str, folder: Path) -> None:
    (folder / "s.py").write_text(f"{script}# model.onnx BuilderFlag.FP16", encoding="utf-8")
    with pytest.raises(CaseError, match="cannot be followed, near line"):
        api.migrate(str(folder / "s.py"), "inputs.npz", out="typed", model="model.onnx")
