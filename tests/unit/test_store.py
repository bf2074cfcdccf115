"""The run folder is whole or absent, and says what is wrong with one that is not its own."""

import errno
import json
import math
import os
import stat
from pathlib import Path

import pytest

from halfwise.errors import RecordMismatch, UsageError
from halfwise.records import Run
from halfwise.store import (
    lost_model,
    new_folder,
    read_run,
    refuse_existing,
    refuse_irregular,
    refuse_run,
    refuse_unwritable,
    run_json,
    write_observations,
    write_run,
)
from tests.unit.reporting import runs


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "run"


def leftovers(tmp_path):
    return [p for p in tmp_path.rglob("*") if p.name != "deep"]


def test_a_folder_appears_when_it_is_whole(folder, tmp_path):
    with new_folder(folder) as partial:
        (partial / "a").write_text("content")
        assert not folder.exists()
        assert partial.parent.parent == folder.parent
        assert partial.parent.name.startswith(".")
    assert (folder / "a").read_text() == "content"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "deep", "run"]


def test_it_has_the_permissions_of_any_other_folder(folder):
    previous = os.umask(0o027)
    try:
        with new_folder(folder):
            pass
    finally:
        assert os.umask(previous) == 0o027
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


class Ended(BaseException):
    """Something that no `except Exception` catches."""


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, SystemExit, Ended])
def test_whatever_ends_the_writing_leaves_nothing(folder, tmp_path, end):
    def write_half():
        with new_folder(folder) as partial:
            (partial / "sub").mkdir()
            (partial / "sub" / "a").write_text("half")
            raise end

    with pytest.raises(end):
        write_half()
    assert leftovers(tmp_path) == []


def test_a_folder_that_exists_is_left_alone(folder, tmp_path):
    folder.mkdir(parents=True)
    (folder / "mine").write_text("mine")
    with pytest.raises(UsageError, match="exists"), new_folder(folder):
        pytest.fail("entered")
    assert [p.name for p in leftovers(tmp_path)] == ["run", "mine"]


def test_a_folder_that_appears_meanwhile_is_left_alone(folder, tmp_path):
    def write_late():
        with new_folder(folder) as partial:
            (partial / "a").write_text("ours")
            folder.mkdir()

    with pytest.raises(UsageError, match="exists"):
        write_late()
    assert list(folder.iterdir()) == []
    assert [p.name for p in leftovers(tmp_path)] == ["run"]


@pytest.mark.parametrize("make", ["file", "folder", "dangling link"])
def test_anything_of_that_name_is_refused(tmp_path, make):
    path = tmp_path / "run"
    if make == "file":
        path.write_text("")
    elif make == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists"):
        refuse_existing(path)


def test_what_cannot_be_made_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Not a directory"):
        refuse_existing(tmp_path / "file" / "run")
    with pytest.raises(UsageError, match="too long"):
        refuse_existing(tmp_path / ("x" * 300))
    refuse_existing(tmp_path / "a" / "b" / "run")
    refuse_existing(tmp_path / ("x" * 255))


@pytest.mark.parametrize("out", ["run", "a/run"])
def test_a_parent_that_takes_nothing_is_refused(tmp_path, monkeypatch, out):
    # Root may write anywhere, so that it does not is made up: so do /proc and full disks.
    def refuse(path, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(UsageError, match=f"that name cannot be used in {tmp_path} .No space left"):
        refuse_existing(tmp_path / out)


def test_a_parent_that_is_a_link_to_nothing_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(UsageError, match=r"that name cannot be used in .*link"):
        refuse_existing(tmp_path / "link" / "run")


def test_a_new_parent_of_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(UsageError, match="too long"):
        refuse_existing(tmp_path / "new" / ("x" * 300) / "run")


def test_looking_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse_existing(Path("a/../../b/run"))
    refuse_existing(Path("run"), "file")
    refuse_unwritable(tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not (tmp_path.parent / "b").exists()


def test_the_longest_name_there_is(tmp_path):
    with new_folder(tmp_path / ("x" * 255)):
        pass
    assert [p.name for p in leftovers(tmp_path)] == ["x" * 255]


@pytest.fixture
def stored(tmp_path):
    def stored(run):
        write_run(tmp_path, run)
        return read_run(tmp_path)

    return stored


def test_a_run_reads_as_it_was_written(stored):
    assert stored(runs.run()) == runs.run()
    assert stored(runs.verification()) == runs.verification()


def test_numbers_without_end_are_strings_and_come_back(stored, tmp_path):
    output = runs.output_error(max_abs=math.inf, snr_db=-math.inf, cosine=math.nan)
    run = runs.run(verdict=runs.verdict(passed=False, outputs={"y": output}))
    found = stored(run).verdict.outputs["y"]
    assert (found.max_abs, found.snr_db) == (math.inf, -math.inf)
    assert math.isnan(found.cosine)

    def refuse(name):
        pytest.fail(f"{name} is not JSON")

    text = (tmp_path / "run.json").read_text()
    raw = json.loads(text, parse_constant=refuse)["verdict"]["outputs"]["y"]
    assert (raw["max_abs"], raw["snr_db"], raw["cosine"]) == ("Infinity", "-Infinity", "NaN")


def test_json_ends_with_a_line_break_and_keeps_any_name():
    run = runs.run(original_names={"n": "größe\n\u2028"})
    assert run_json(run).endswith("}\n")
    assert Run.from_json(run_json(run)) == run


def test_observations(tmp_path):
    seen = runs.observations()
    write_observations(tmp_path, seen)
    text = (tmp_path / "observations.json").read_text()
    assert type(seen).from_json(text) == seen


def test_the_file_stands_for_its_folder(tmp_path):
    write_run(tmp_path, runs.run())
    assert read_run(tmp_path / "run.json") == read_run(tmp_path)


def test_no_folder(tmp_path):
    with pytest.raises(RecordMismatch, match=r"There is no run folder .*absent"):
        read_run(tmp_path / "absent")
    with pytest.raises(RecordMismatch, match="not a run folder"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordMismatch, match="not a run folder"):
        read_run(tmp_path)


BROKEN = ("", "{", "[]", "null", '"text"', "{} {}")
ENDLESS = ("[" * 200_000, '{"a":' * 200_000, '{"schema_version": ' + "9" * 5000 + "}")


@pytest.mark.parametrize("text", [*BROKEN, *ENDLESS], ids=lambda text: text[:20] or "empty")
def test_damaged(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordMismatch, match="damaged"):
        read_run(tmp_path)


@pytest.mark.parametrize("version", [0, 2, None, "1", {}])
def test_another_version(tmp_path, version):
    content = json.loads(run_json(runs.run())) | {"schema_version": version}
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(RecordMismatch, match="schema version"):
        read_run(tmp_path)


@pytest.mark.parametrize("change", [{"verdict": {}}, {"headroom": "much"}, {"surplus": 1}])
def test_a_field_that_does_not_fit_is_named(tmp_path, change):
    content = json.loads(run_json(runs.run())) | change
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(RecordMismatch, match=next(iter(change))):
        read_run(tmp_path)


def test_a_truncated_run(tmp_path):
    text = run_json(runs.run())
    (tmp_path / "run.json").write_text(text[: len(text) // 2])
    with pytest.raises(RecordMismatch, match="damaged"):
        read_run(tmp_path)


def test_a_model_that_is_gone(tmp_path):
    assert lost_model(tmp_path, runs.run()) == tmp_path / "model.onnx"
    assert lost_model(tmp_path, runs.verification()) is None
    (tmp_path / "model.onnx").touch()
    assert lost_model(tmp_path / "run.json", runs.run()) is None


def test_a_run_folder_is_no_candidate(tmp_path):
    refuse_run(tmp_path)
    refuse_run(tmp_path / "absent.onnx")
    write_run(tmp_path, runs.run())
    with pytest.raises(UsageError) as raised:
        refuse_run(tmp_path)
    assert f"Give {tmp_path / 'model.onnx'}, " in raised.value.hint


IRREGULAR = {
    "a FIFO": os.mkfifo,
    "a folder": os.mkdir,
    "a link": lambda path: (path.with_name("target").touch(), path.symlink_to("target")),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_regular_files_are_replaced(tmp_path, make):
    path = tmp_path / "timing.cache"
    refuse_irregular(path, "--timing-cache")
    path.touch()
    refuse_irregular(path, "--timing-cache")
    path.unlink()
    make(path)
    what = r"is a (named pipe|folder|link); only regular files are replaced"
    with pytest.raises(UsageError, match=f"--timing-cache .* {what}"):
        refuse_irregular(path, "--timing-cache")
