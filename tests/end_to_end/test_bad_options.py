"""Options that cannot be meant that way end with one clear message and the right exit code."""

import onnxruntime
import pytest

from tests.end_to_end.conftest import fixing


def test_the_output_folder_exists(refused, files, tmp_path):
    (tmp_path / "run").mkdir()
    message = refused(2, *fixing(*files))
    assert "run already exists" in message
    (tmp_path / "run").rmdir()
    (tmp_path / "run").write_text("")
    assert "run already exists" in refused(2, *fixing(*files))


def test_an_output_folder_that_cannot_be_made(refused, files, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    arguments = ("fix", files[0], "--inputs", files[1], "-o")
    # Told before the work, not after it.
    monkeypatch.setattr("halfwise.fixing.command.run_fix", lambda *_: pytest.fail("too late"))
    assert "file" in refused(2, *arguments, "file/run")
    assert "run" in refused(2, *arguments, "x" * 300 + "/run")
    assert "xxx" in refused(2, *arguments, "x" * 300)


# None of the files is there: whatever is read before the place is looked at is refused instead.
WRITING = (
    ("fix", "absent.onnx", "--inputs", "absent.npz"),
    ("verify", "absent.onnx", "absent.other.onnx", "--inputs", "absent.npz"),
    ("verify", "absent.onnx", "absent.engine", "--inputs", "absent.npz"),
    ("diagnose", "absent.onnx", "--inputs", "absent.npz"),
    ("ladder", "absent.onnx", "--inputs", "absent.npz", "--expected", "absent.json"),
    ("build", "absent.onnx", "--trt-command", "absent"),
    ("export", "absent", "--as", "cpp"),
)


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
@pytest.mark.parametrize("place", ["file/out", "nowhere/out", "here.onnx"])
def test_a_place_that_cannot_be_written_is_refused_before_all_else(
    refused, tmp_path, command, place
):
    (tmp_path / "file").touch()
    (tmp_path / "here.onnx").touch()
    (tmp_path / "nowhere").symlink_to("absent")
    message = refused(2, *command, "-o", place)
    assert place.split("/")[0] in message
    assert "absent." not in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--keep", "relu", "--lower", "re.*"), ("--keep relu", "--lower re.*")),
        (("--keep", "absent"), ("--keep absent", "matches no node")),
        (("--keep", "rellu"), ("matches no node", "Did you mean relu?")),
        (("--lower", "absent.*"), ("--lower absent.*", "matches no node")),
        (("--keep-op", "Erf"), ("--keep-op Erf", "MatMul")),
        (("--keep-op", "LayerNormalization"), ("LayerNormalization", "matches no node")),
        (("--keep", "relu["), ("relu[", "regular expression")),
    ],
)
def test_rules_that_cannot_be_followed(refused, files, options, expected):
    message = refused(2, *fixing(*files, *options))
    assert all(part in message for part in expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--metric", "top9000"), "top9000"),
        (("--metric", "top1", "--rel-max", "0.1"), "replaces the error thresholds"),
        (("--metric-drop", "0.1"), "--metric"),
        (("--rel-max", "-1"), "--rel-max"),
        (("--rel-max", "nan"), "--rel-max"),
        (("--require", "cosine=2"), "--require cosine"),
        (("--require", "headroom=0.5"), "--require headroom"),
        (("--require", "margin=0"), "--require margin"),
        (("--budget", "time=-1"), "--budget time"),
        (("--budget", "inferences=-1"), "--budget inferences"),
        (("--budget", "inferences"), "--budget inferences has no value"),
        (("--budget", "work=3"), "--budget work is unknown; expected inferences"),
        (("--allow", "bf61"), "--allow bf61 is unknown; expected random"),
        (("--allow", "random=1"), "--allow random takes no value"),
        (("--require", "max-abs=x"), "--require max-abs is 'x'; expected a number"),
        (("--heldout-labels", "labels.json"), "--heldout"),
        (
            ("--metric", "top1", "--labels", "labels.json", "--heldout", "heldout.npz"),
            "--heldout-labels is missing",
        ),
    ],
)
def test_options_without_meaning(refused, files, options, expected):
    assert expected in refused(2, *fixing(*files, *options))


def test_a_device_that_is_not_here(refused, files):
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("there is a GPU")
    assert "CUDA" in refused(4, *fixing(*files, "--device", "cuda"))


def test_a_metric_that_cannot_be_used(refused, files, tmp_path):
    (tmp_path / "score.py").write_text(
        "def fails(reference, candidate, labels):\n    raise KeyError('logits')\n\n\n"
        "def none(reference, candidate, labels):\n    return None\n\n\n"
        "def few(reference):\n    return 1.0\n"
    )

    def told(metric):
        return refused(3, *fixing(*files, "--metric", metric, "--metric-drop", 0))

    message = told("score.py:fails")
    assert "score.py:fails" in message
    assert "line 2" in message
    assert "NoneType" in told("score.py:none")
    assert "score.py:few" in told("score.py:few")
    assert "absent" in told("score.py:absent")
    assert "other.py" in told("other.py:score")


def test_only_its_author_knows_how_far_a_metric_may_fall(refused, files, tmp_path):
    (tmp_path / "score.py").write_text("def score(*_):\n    return 1.0\n")
    assert "--metric-drop" in refused(2, *fixing(*files, "--metric", "score.py:score"))


def test_a_built_in_metric_that_does_not_fit(refused, files):
    assert "epe" in refused(3, *fixing(*files, "--metric", "epe"))


def test_labels_that_do_not_fit(refused, files, tmp_path):
    (tmp_path / "labels.json").write_text("[1, 2, 3]")
    options = ("--metric", "top1", "--labels", "labels.json")
    assert "labels.json" in refused(3, *fixing(*files, *options))
