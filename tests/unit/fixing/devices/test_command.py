from types import SimpleNamespace

from halfwise.case import EngineSettings
from halfwise.fixing.devices.command import _kinds
from tests.unit.reporting.engine_runs import engines


def worker(gpu, version="8.6.1"):
    info = engines().worker.model_copy(update={"gpu": gpu, "tensorrt": version})
    return SimpleNamespace(info=info)


def test_workers_of_the_same_gpu_version_and_settings_are_of_one_kind():
    workers = {
        "a": worker("Orin"),
        "b": worker("A100"),
        "c": worker("Orin"),
        "d": worker("Orin", "10.0.1"),
        "e": worker("Orin"),
    }
    settings = dict.fromkeys(workers, EngineSettings())
    settings["e"] = EngineSettings(optimization_level=0)
    found = _kinds(workers, settings)
    assert {name: list(kind.workers) for name, kind in found.items()} == {
        "a": ["a", "c"],
        "b": ["b"],
        "d": ["d"],
        "e": ["e"],
    }
