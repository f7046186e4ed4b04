"""The load run, for some seconds."""

import json

import pytest

from benchmarks.serving_load import Load, main, show


@pytest.mark.slow
def test_answers_stay_what_they_were_while_models_are_loaded_anew(capfd, tmp_path):
    arguments = ["--seconds", "6", "--threads", "4", "--modes", "amp_tf"]
    arguments += ["--precision", "bfloat16", "--json", str(tmp_path / "load.json")]
    assert main(arguments) == 0
    (load,) = (Load(**fields) for fields in json.loads((tmp_path / "load.json").read_text()))
    assert load.wrong == 0
    assert load.calls > 10
    assert load.reloads > 0
    assert load.converted > 0
    assert load.traces > load.reloads
    assert len(load.rewrites) == len(load.beside)
    assert "amp_tf: " in capfd.readouterr().out


def loaded(reloads: int, memory: list[float]) -> Load:
    return Load("amp_tf", 1, reloads, 1, 0, 0.0, 0.0, memory, 1, [1.0, 2.0, 4.0], [3.0, 2.5], [1.0, 1.0])


def test_growth_is_told_for_each_reload():
    assert loaded(80, [1.0, 50.0, *[100.0] * 6]).kib_a_reload == 0
    assert loaded(80, [float(second) for second in range(80)]).kib_a_reload == pytest.approx(1024, rel=0.05)
    assert loaded(80, [float(second) for second in range(60)]).sixths == [4.5, 14.5, 24.5, 34.5, 44.5, 54.5]


def test_a_block_is_what_a_first_request_takes_longer_beside_another():
    assert loaded(1, [1.0] * 8).blocks == [1.0, 0.5]
    assert "longest block 1000 ms" in "".join(show(loaded(1, [1.0] * 8)))
