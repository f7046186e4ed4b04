"""The load run, for some seconds."""

import json

import pytest

from benchmarks.serving_load import Load, main


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
    assert "| amp_tf | " in capfd.readouterr().out


def test_growth_is_told_for_each_reload():
    flat = Load("amp_tf", 1, 80, 0, 0.0, [1.0, 50.0, *[100.0] * 6], 1)
    assert flat.kib_a_reload == 0
    rising = Load("amp_tf", 1, 80, 0, 0.0, [float(second) for second in range(80)], 1)
    assert rising.kib_a_reload == pytest.approx(1024, rel=0.05)
