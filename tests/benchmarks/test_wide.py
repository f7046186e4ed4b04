"""The wide suite: its halves, and that some models train; ``python -m benchmarks.models.wide`` tries all of them."""

import numpy as np
import pytest

from benchmarks.models import BENCHMARKS, benchmark, names, wide
from benchmarks.models.wide.__main__ import main, try_one
from benchmarks.step_time.modes import WAYS
from benchmarks.step_time.worker import new_runner


def test_there_are_many_models_of_many_families_and_none_is_in_both_suites():
    assert len(wide.MODELS) >= 40
    assert len(set(wide.FAMILIES.values())) >= 20
    assert not BENCHMARKS.keys() & wide.MODELS.keys()
    assert names("all") == [name for name, row in BENCHMARKS.items() if row.is_common]


def test_halves_are_by_name_alone_and_together_they_are_all():
    choosing, judging = names("choosing"), names("judging")
    assert sorted([*choosing, *judging]) == sorted(names("wide"))
    assert min(len(choosing), len(judging)) >= 20
    assert (wide.half("vgg16"), wide.half("densenet")) == ("judging", "choosing")


def test_groups_and_names_may_be_mixed():
    assert names("siamese, choosing")[0] == "siamese"
    with pytest.raises(ValueError, match=r"No benchmark model is called juging\. Valid names: all, wide, choosing, ju"):
        names("juging")


@pytest.mark.parametrize("name", ["two_towers", "autoencoder", "tf_keras_lstm", "functions_of_tensorflow", "conv_lstm"])
def test_a_model_trains_a_step(name):
    assert np.isfinite(try_one(name))


def test_a_model_that_fails_is_named(monkeypatch, capsys):
    def build():
        raise RuntimeError("no such layer")

    monkeypatch.setattr("benchmarks.models.workload.Benchmark.workload", lambda self, size="small": build())
    monkeypatch.setattr("sys.argv", ["wide", "two_towers"])
    assert main() == 1
    assert "two_towers: RuntimeError: no such layer" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["fit", "predict"])
def test_the_suite_runs_a_model_of_keras_2_as_those_of_keras_3(way):
    for name in ("tf_keras_lstm", "bag_of_words"):
        options = {"model": name, "size": "small", "batch": 4, "precision": "bfloat16", "mode": "policy"}
        runner = new_runner(options, WAYS[way])
        policies = {layer.dtype_policy.name for layer in runner.model.layers if hasattr(layer, "dtype_policy")}
        assert "mixed_bfloat16" in policies
        assert "float32" not in policies
        assert len(runner.steps(2).ends) == 2
        benchmark(name).workload().keras.mixed_precision.set_global_policy("float32")
