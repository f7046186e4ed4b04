"""``amp-tf tune``: wrong options, programs without a metric, and a real tuning that is killed and
goes on.
"""

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import amp_tf
from amp_tf.cli.main import main
from amp_tf.cli.tune import TunedScript
from amp_tf.config import AmpConfig
from amp_tf.reporting import files
from amp_tf.tools.tuning.tuning import Journal, Way
from amp_tf.values import read_pattern_file
from tests import processes, test_pages
from tests.hooks import running

PROGRAM = Path(__file__).resolve().parents[2] / "docs" / "programs" / "stations_norm.py"
OPTIONS = ("--max-drop", "0.03", "--precision", "bfloat16")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", processes.start)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-drop", "-1"], "--max-drop: -1.0 is not a change. Write 0 or more."),
        (["--max-rise", "nan"], "--max-rise: nan is not a change. Write 0 or more."),
        (
            ["--max-drop", "1", "--max-runs", "4"],
            "--max-runs: 4 runs are too few. Write 5 or more: ",
        ),
        (
            ["--max-drop", "1", "--metric", "stdout:("],
            "--metric: '(' is not a regular expression (",
        ),
        (
            ["--max-drop", "1", "--metric", "stdout:[0-9]+"],
            "--metric: '[0-9]+' has 0 groups. Write one group for the number",
        ),
        (
            ["--max-drop", "1", "--output", "missing/a.txt"],
            "missing/a.txt: cannot be written (No such file or",
        ),
    ],
)
def test_a_wrong_option_is_an_error_in_one_line(here, tell, options, message):
    error = tell("tune", "--metric", "accuracy", *options, "--", "true", status=2).err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("options", [[], ["--max-drop", "1", "--max-rise", "1"]])
def test_one_direction_must_be_given(capsys, options):
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--metric", "accuracy", *options, "--", "true"])
    assert ended.value.code == 2
    assert "--max-drop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            ["sh", "-c", "echo trained nothing"],
            "amp-tf tune: there is no accuracy in float32 (the program gave no accuracy",
        ),
        (
            ["sh", "-c", "echo no data; exit 3"],
            "there is no accuracy in float32 (it ended with status 3; its last line is 'no data' (",
        ),
        (
            ["no-such-program"],
            "tune: no-such-program: cannot be started (No such file or directory)",
        ),
        (
            ["sh", "-c", "echo no data; exit 3"],
            "failed.txt has its output)). If the program fails, mend that first; else name a ",
        ),
        (
            ["rm", "-r", "keep.txt.runs"],
            "keep.txt.runs: cannot be written (No such file or directory). The runs",
        ),
    ],
)
def test_a_program_that_cannot_be_started_or_has_no_metric_is_an_error(tell, program, why):
    assert why in tell("tune", "--metric", "accuracy", *OPTIONS, "--", *program, status=2).err


@pytest.mark.parametrize(
    ("printed", "expression", "value"),
    [
        ("loss: 0.5\nINFO:absl:amp_tf: 3 graphs; loss scale 2^15", r"loss\D*([0-9.]+)", 0.5),
        ("loss: 0.5WARNING:absl:amp_tf: loss scale 2^15", r"loss\D*([0-9.]+)", 0.5),
        ("loss: 0.5\nI1129 11:00:00.1 7 notices.py:6] amp_tf: loss 2", r"loss\D*([0-9.]+)", 0.5),
        ("loss: 0.5\n2026-11-29 INFO amp_tf: loss scale 2^15", r"loss\D*([0-9.]+)", 0.5),
        ("loss: 0.5\namp_tf: no report of the loss: 2", r"loss\D*([0-9.]+)", 0.5),
        ("loss in float32: 1\nwith amp_tf: 0.5", r"amp_tf: ([0-9.]+)", 0.5),
        ("loss 0.1\nloss 9.8e-05", "loss ([0-9.]+)", 9.8e-05),
        ("loss 9.8E+05, 1", "loss ([0-9]+)", 9.8e05),
        ("loss 0.1\nloss nan", r"loss (\S+)", None),
        ("loss 1", "loss (2)?", None),
    ],
)
def test_the_last_number_of_the_programs_own_is_the_metric(here, printed, expression, value):
    (here / "printed").write_text(printed)
    program = TunedScript(["cat", "printed"], AmpConfig(), f"stdout:{expression}", here)
    found = program.run(Way.FLOAT32, ()).value
    if value is None:
        assert found is None or math.isnan(found)
    else:
        assert found == value


def test_what_a_mended_program_gives_counts_and_no_failure_before_it(here, tell):
    program = [*OPTIONS, "--", "sh", "-c", "cat data", "--key", "1234"]
    command = ["tune", "--metric", "stdout:loss ([0-9.]+)", *program]
    assert (
        "it ended with status 1; its last line is 'cat: data: No such file"
        in tell(*command, status=2).err
    )
    (here / "data").write_text("las 0.5")
    assert "the program gave no stdout:loss" in tell(*command, status=2).err
    kept = here / "keep.txt.runs"
    assert kept.stat().st_mode & 0o777 == 0o700
    texts = {path.name: path.read_text() for path in kept.iterdir()}
    assert "stdout:loss" in texts["tuning.json"]
    assert [name for name, text in texts.items() if "1234" in text] == []
    command[2] = "stdout:las ([0-9.]+)"
    assert (
        "run 3 of at most 40: amp_tf with all in float32: stdout:las ([0-9.]+) 0.5"
        in tell(*command, status=2).err
    )


def test_a_changed_program_does_not_go_on_with_the_runs_of_the_one_before(here, tell, monkeypatch):
    (here / "train.sh").write_text("echo run >> count; echo acc $(wc -l < count)")
    metric = ["--metric", "stdout:acc ([0-9.]+)", "--max-rise", "0.5"]
    command = ["tune", *metric, "--", "sh", "train.sh"]
    assert "goes on" not in tell(*command, status=2).err
    err = tell(*command, status=2).err
    assert "amp-tf tune: goes on with 2 runs of before; to begin anew, delete " in err
    monkeypatch.setattr(amp_tf, "__version__", "0.2")
    err = tell(*command, status=2).err
    assert "begins anew, because the runs of before were made with " in err
    assert "goes on" not in err
    (here / "train.sh").write_text("echo acc 1")
    assert "another tuning (other content of train.sh)." in tell(*command, status=2).err


@pytest.mark.process
def test_a_misspelt_metric_is_answered_by_those_of_the_last_fit_wherever_the_program_runs(here):
    (here / "train.py").write_text(
        "import os, keras; os.chdir('/'); keras.utils.set_random_seed(1);"
        "model = keras.Sequential([keras.layers.Dense(1)]);"
        "model.compile('sgd', 'mse', metrics=['mae']); x = keras.ops.ones((4, 4)); model.fit(x, "
        "x[:, :1])"
    )
    journal = Journal(Path("keep.txt.runs"), {})
    program = TunedScript([sys.executable, "train.py"], AmpConfig(), "val_mae", journal.folder)
    outcome = program.run(Way.FLOAT32, ())
    assert outcome.failure.startswith("the program gave no val_mae; its last fit has loss, mae (")
    assert outcome.value is None
    program = TunedScript([sys.executable, "train.py"], AmpConfig(), "loss", journal.folder)
    assert program.run(Way.FLOAT32, ()).value == pytest.approx(0, abs=10)


@pytest.mark.process
def test_the_patterns_that_a_tuning_is_given_stay_in_its_file(here, tell):
    (here / "train.py").write_text(
        "import keras; keras.utils.set_random_seed(1);"
        "layers = [keras.layers.Dense(8, name='first'), keras.layers.Dense(1)];"
        "model = keras.Sequential(layers);"
        "model.compile('sgd', 'mse'); x = keras.ops.ones((4, 4)); model.fit(x, x[:, :1])"
    )
    (here / "keep.txt").write_text("# mine\nlayer:first\n")
    options = ["--metric", "loss", "--max-rise", "1", "--precision", "bfloat16"]
    given = ["--keep-float32", "@keep.txt"]
    assert (
        "1 layer or node stays in float32: loss "
        in tell("tune", *options, *given, "--", sys.executable, "train.py").out
    )
    assert read_pattern_file("keep.txt", where="test") == ("layer:first",)


def command(file):
    options = [*OPTIONS, "--metric", "val_accuracy", "--output", str(file)]
    return ["tune", *options, "--", sys.executable, str(PROGRAM)]


@pytest.mark.slow
def test_a_tuning_that_was_killed_goes_on_and_its_result_holds(here, capsys):
    """The metric of a real program is lost in bfloat16, and one layer in float32 brings it back, as
    docs/tune.md says.
    """
    file = here / "keep, this.txt"
    environ = running.environment(here, {})
    start = [sys.executable, "-m", "amp_tf", *command(file)]
    tuning = processes.start(
        start, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    journal = here / "keep, this.txt.runs" / "tuning.json"
    deadline = time.monotonic() + 300
    while not (files.read_plain(journal) or {"runs": ()})["runs"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(tuning.pid, signal.SIGKILL)
    tuning.wait()
    made = len(files.read_plain(journal)["runs"])
    assert main(command(file)) == 0
    out, err = capsys.readouterr()
    told = re.findall(r"run (\d+) of at most 40", err)
    assert int(told[0]) == made + 1
    _, _, said = next(test_pages.blocks("docs/tune.md"))
    _, runs, result, _ = said.split("…\n")
    for line in re.findall(r"^amp-tf tune: run [34] .*\n", runs, re.MULTILINE):
        assert re.search(test_pages.pattern(line), err), line
    assert re.search(test_pages.pattern(result), out), result
    assert f"{file} is written. AMP_TF_KEEP_FLOAT32=" in out
    assert int(told[-1]) <= 15
    assert not journal.parent.exists()
    (pattern,) = read_pattern_file(str(file), where="test")
    assert "normalized" in pattern
    text = file.read_text()
    mixed, tuned = map(
        float, re.search("([0-9.]+) with nothing.* ([0-9.]+) with what", text).groups()
    )
    (limit,) = map(float, re.search("good is at least ([0-9.]+);", text).groups())
    assert mixed < limit <= tuned
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    variables["AMP_TF_KEEP_FLOAT32"] = "@keep\\, this.txt,layer:other"
    again = running.run([str(PROGRAM)], here, variables)
    values = [float(value) for value in re.findall(r"val_accuracy: ([0-9.]+)", again.out)]
    assert values[-1] == pytest.approx(tuned, abs=1e-4)  # as printed
    assert "patterns that matched no node: layer:other" in again.err
