"""SKILL.md, by following it."""

import re
import shlex

import pytest

from tools import readme

STEPS = re.findall(
    r"```sh\n *(halfwise .*?)(?:  # exit code (\d+))?\n *```",
    (readme.ROOT / "SKILL.md").read_text(encoding="utf-8"),
)


@pytest.mark.slow
def test_each_step_ends_as_it_says(tmp_path):
    for name in ("model.onnx", "inputs.npz", "heldout.npz"):
        (tmp_path / name).symlink_to(readme.ROOT / "examples" / "digits" / name)
    assert len(STEPS) == 4
    for command, code in STEPS:
        readme.output(*shlex.split(command)[1:], folder=tmp_path, code=int(code or 0))
    assert (tmp_path / "fixed" / "model.onnx").is_file()
    assert any(file.suffix == ".sh" for file in (tmp_path / "recipe").iterdir())
