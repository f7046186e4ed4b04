"""The benchmark of served models, on a small one and in this process."""

import json

import keras
import pytest
import tensorflow as tf

from benchmarks import serving


def _run(options):
    """A step of the benchmark without a process of its own."""
    folder = serving.Path(options["folder"])
    if options["step"] == "make":
        return serving.make(options["model"], folder, options["ways"], options["precision"])
    if options["step"] == "memory":
        return {way: serving.memory_of(way, folder, options) for way in options["ways"]}
    found = serving.time_ways(folder, options["ways"], options)
    return json.loads(json.dumps({way: serving.dataclasses.asdict(each) for way, each in found.items()}))


def test_each_way_has_its_size_latency_and_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(serving, "run", _run)
    monkeypatch.setattr(serving, "SECONDS", 0.0)
    layers = keras.layers
    small = keras.Sequential([layers.Input((64,), name="x"), layers.Dense(256, "relu"), layers.Dense(4)])
    monkeypatch.setattr(serving, "build", lambda name: small)
    arguments = ["--models", "mlp", "--ways", "tf_pass", "converted", "weights", "--batches", "1", "4", "--rounds", "1"]
    assert serving.main([*arguments, "--json", str(tmp_path / "serving.json")]) == 0
    assert not tf.config.optimizer.get_experimental_options()[serving.PASS["bfloat16"]]  # it is off again
    found = json.loads((tmp_path / "serving.json").read_text())["mlp"]
    assert list(found) == ["float32", "tf_pass", "converted", "weights"]
    assert found["weights"]["megabytes"] < 0.75 * found["converted"]["megabytes"]  # the graph is no smaller
    assert found["float32"]["error"] == 0
    for way in ("tf_pass", "converted", "weights"):
        assert 0 < found[way]["error"] < 0.02  # two products in bfloat16
    assert found["weights"]["error"] == pytest.approx(found["converted"]["error"])
    assert found["weights"]["ratios"].keys() == {"1", "4"}
    assert "| weights | " in capsys.readouterr().out
