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
    assert load.traces > load.reloads
    assert len(load.rewrites) == len(load.beside)
    assert "amp_tf: " in capfd.readouterr().out
