"""``python -m benchmarks.public``: its programs know nothing of amp_tf, its clock and its table."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.public import __main__ as public
from benchmarks.public.worker import Turns, brief

ROOT = Path(__file__).resolve().parents[2]


def test_the_programs_are_listed(capsys):
    assert public.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(public.names()) == 10


@pytest.mark.parametrize("program", public.names())
def test_a_program_knows_nothing_of_16_bit(program):
    text = (public.PROGRAMS / f"{program}.py").read_text()
    assert not any(word in text for word in ("amp_tf", "mixed_", "policy", "float16", "LossScale"))
    assert public.batch_of(program, []) > 0
    assert public.batch_of(program, ["--batch", "3"]) == 3


def test_the_step_is_the_function_that_takes_most_time():
    commands = io.StringIO('{"do": "go", "seconds": 0.0}\n{"do": "go", "seconds": 60.0}\n')
    answers: list[object] = []
    turns = Turns(answers.append, commands)
    inner = tf.function(lambda x: x + 1)
    step, rare = tf.function(lambda x: inner(x) * 2), tf.function(lambda x: x - 1)
    original = type(step).__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(step), "__call__", lambda *a, **k: turns.call(original, *a, **k))
        for _ in range(5):
            step(tf.constant(1.0))
        rare(tf.constant(1.0))
    assert answers == [{}]  # the first turn is over at once
    assert list(turns.steps()) == [2]
    assert sorted(len(calls) for _, calls in turns._calls.values()) == [1, 5]  # the inner one's are the step's


def test_an_error_of_keras_is_the_one_that_it_prints_in_bold():
    assert brief(TypeError("Exception encountered.\n\n\x1b[1mbfloat16 is not float32.\x1b[0m\n\nArguments: …")) == (
        "TypeError: bfloat16 is not float32."
    )
    assert brief(TypeError("in user code:\n\n  File …\n\n  TypeError: No.\n")) == "TypeError: No."
    assert brief(ValueError("in user code:\n\n  File …\n\n  No.\n")) == "ValueError: No."


def runs(mode, values, ms, **more):
    return [
        public.Run("speech", "bfloat16", mode, seed, 32, "errors", value, 1.0, {"2": ms, "3": ms}, 100.0, **more)
        for seed, value in enumerate(values)
    ]


def test_the_table_says_what_differs_and_what_fails():
    failed = [public.Run("speech", "bfloat16", "policy", 0, 32, error="TypeError: float32 | bfloat16")]
    rows = [*runs("float32", [0.2, 0.21, 0.19], 10.0), *runs("amp_tf", [0.2], 5.0, converted=7, casts=3)]
    rows += [*runs("all listed", [0.4, 0.41, 0.39], 10.0), *failed]
    lines = public.table(rows, "bfloat16").splitlines()[2:]
    assert lines == [
        "| speech | 32 | float32 | errors 0.2 ± 0.01 | 3 |  |  | 10.0 |  | 100 |  |  |",
        "| speech | 32 | Keras mixed_bfloat16 | **fails**: TypeError: float32 / bfloat16 |  |  |  |  |  |  |  |  |",
        "| speech | 32 | amp_tf | errors 0.2 | 1 | 100.0% | no | 5.0 | 2.00 ± 0.00 | 100 | 1.00 | 7 / 3 |",
        "| speech | 32 | amp_tf, AMP_TF_PRECISION=bfloat16 | errors 0.4 ± 0.01 | 3 | 75.0% | +0.2 | 10.0 | 1.00 ± 0.00 "
        "| 100 | 1.00 | 0 / 0 |",
    ]


def test_fewer_than_three_seeds_of_float32_judge_nothing():
    rows = [*runs("float32", [0.2, 0.3], 10.0), *runs("amp_tf", [0.9], 10.0)]
    assert "| errors 0.9 | 1 | 12.5% | ? |" in public.table(rows, "bfloat16").splitlines()[3]


@pytest.mark.slow
def test_a_program_runs_in_two_modes(tmp_path):
    rows = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.public", "--only", "ranking", "--seeds", "1", "--rows", str(rows)]
    command += ["--modes", "float32,all listed", "--", "--steps", "4", "--batch", "4"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, ended.stderr
    found = {row["mode"]: row for row in json.loads(rows.read_text())}
    assert found.keys() == {"float32", "all listed"}
    for row in found.values():
        assert not row["error"]
        assert 0 <= row["value"] <= 1
        assert row["batch"] == 4
        assert min(row["ms"].values()) > 0
        assert row["mib"] > 0
    assert found["all listed"]["converted"] > 0
    assert "| ranking | 4 | float32 | AUC" in ended.stdout
