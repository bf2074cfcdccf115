"""The wheel: what `pip install` brings, and what a package index shows."""

import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser

import pytest

from tools import readme


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = ("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    subprocess.run([sys.executable, *build], cwd=readme.ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.fixture
def metadata(wheel: zipfile.ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_it_has_the_example_that_the_demo_fixes(wheel: zipfile.ZipFile) -> None:
    for name in ("model.onnx", "inputs.npz", "heldout.npz"):
        there = (readme.ROOT / "examples" / "digits" / name).read_bytes()
        assert wheel.read(f"halfwise/digits/{name}") == there


def test_it_tells_where_the_project_is(metadata: Message) -> None:
    links = dict(link.split(", ") for link in metadata.get_all("Project-URL", []))
    assert links.keys() >= {"Homepage", "Documentation", "Changelog", "Issues"}


def test_links_of_its_readme_lead_from_anywhere_to_files_of_the_repository(
    metadata: Message,
) -> None:
    text = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    paths = re.findall(r"/(?:blob|raw)/main/([^)#\s]+)", text)
    assert all((readme.ROOT / path).exists() for path in paths)
    assert "/raw/main/docs/images/headroom.svg" in text
