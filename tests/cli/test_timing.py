"""``amp-tf time``: small programs of each kind, those that cannot be timed, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from amp_tf.cli.main import main
from amp_tf.cli.timing import TimedScript
from amp_tf.config import AmpConfig
from tests import processes

BF16 = AmpConfig(precision="bfloat16")
MODEL = """
import keras, numpy
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
model.compile("sgd", "mse")
x = numpy.ones((16, 8), "float32")
"""
LOOP = """
import tensorflow as tf
w = tf.Variable(tf.ones((8, 8)))
@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(x, w))
    w.assign_sub(tape.gradient(loss, w))
    return loss
@tf.function
def prepare(x):
    return x + 1.0
"""
SESSION = """
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
x = tf1.placeholder(tf.float32, (8, 8), name="x")
w = tf1.get_variable("w", (8, 8))
loss = tf.reduce_sum(tf.matmul(x, w), name="loss")
train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
with tf1.Session() as session:
    session.run(tf1.global_variables_initializer())
    for _ in range(9):
        session.run([train, loss], {x: [[1.0] * 8] * 8})
"""
PROGRAMS = {
    "fit": f"{MODEL}model.fit(x, x, batch_size=2, epochs=2, validation_data=(x, x))",
    "predict": f"{MODEL}model.predict(x, batch_size=2)",
    "train_on_batch": f"{MODEL}for _ in range(9): model.train_on_batch(x, x), model.predict(x)",
    "train_step": f"{LOOP}for _ in range(9): train_step(prepare(tf.ones((8, 8))))",
    "train, loss:0": SESSION,
}
ENDLESS = f"{MODEL}model.fit(x, x, batch_size=2, epochs=10**9, verbose=0)"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", processes.start)
    return tmp_path


def command(here, program):
    (here / "train.py").write_text(program)
    return [sys.executable, "train.py"]


@pytest.mark.process
@pytest.mark.parametrize("step", PROGRAMS)
def test_a_program_of_each_kind_is_timed_both_ways(here, step):
    program = TimedScript(command(here, PROGRAMS[step]), BF16)
    mixed = program.run(True)
    float32 = program.run(False)
    assert program.step == step
    assert program.device == "CPU"
    assert "converted to bfloat16" in program.summary
    for run in (mixed, float32):
        assert len(run.step_ms) == {"fit": 13, "predict": 5}.get(step, 6)
        assert all(ms > 0 for ms in run.step_ms)
        assert run.first_s > 0
        assert run.peak_mib > 100


@pytest.mark.process
@pytest.mark.parametrize("step", ["fit", "train_step"])
def test_the_command_prints_both_ways_and_a_verdict(here, capsys, step):
    is_json = step == "train_step"
    options = ["--precision", "bfloat16", "--rounds", "3", *["--json"] * is_json]
    status = main(["time", *options, "--", *command(here, PROGRAMS[step])])
    out, err = capsys.readouterr()
    assert err.count("amp-tf time: round ") == 3
    if is_json:
        found = json.loads(out)
        assert found["step"] == step
        assert [len(found[way]) for way in ("float32", "mixed")] == [3, 3]
        verdict = found["verdict"]
    else:
        assert out.startswith("A step of fit, 39 and 39 of them in 3 rounds:\n")
        assert "\namp_tf: 2 graphs, " in out
        verdict = out.splitlines()[-1]
    assert status == verdict.startswith("too noisy")


@pytest.mark.process
def test_a_long_program_ends_after_enough_steps_also_if_it_does_not_want_to(here, monkeypatch):
    monkeypatch.setattr("amp_tf.cli.programs._PATIENCE_S", 1.0)
    program = f"""{MODEL}
while True:
    try:
        model.fit(x, x, batch_size=2, epochs=10**9, verbose=0)
    except SystemExit:
        open("asked", "a").write("1")
"""
    script = TimedScript(command(here, program), BF16)
    assert len(script.run(True).step_ms) > 100
    assert (here / "asked").read_text() == "1"


@pytest.mark.process
def test_a_process_that_made_too_few_steps_does_not_end_the_one_that_trains(here, monkeypatch):
    monkeypatch.setattr("amp_tf.cli.programs._PATIENCE_S", 0.5)
    program = f"""
import os, sys, time
if os.fork() == 0:
    import tensorflow as tf
    tf.function(lambda x: tf.matmul(x, x))(tf.ones((4, 4)))
    sys.exit()
os.wait()
time.sleep(2)  # longer than the command waits
{PROGRAMS["fit"]}
"""
    script = TimedScript(command(here, program), BF16)
    assert len(script.run(True).step_ms) == 13
    assert script.step == "fit"


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "print('no data'); raise SystemExit(3)",
            "the program failed: it ended with status 3; its last line is 'no data' (/",
        ),
        ("print(1)", "it made no step. A step is a batch of fit, "),
        (f"{MODEL}model.fit(x, x, batch_size=4)", "it made 4 steps of fit, of which 1 count, and"),
        (
            f"{MODEL}model.fit(x, x)",
            "it made 1 step of fit, of which 0 count, and 5 are needed (the first ",
        ),
        (f"{MODEL}for _ in range(9): model(x)", "it made no step. A step is"),
        (
            "import tensorflow as tf\nf = tf.function(lambda x: x + 1.0)\n"
            "for _ in range(9): f(tf.ones(3))",
            "there is nothing to time (",
        ),
    ],
)
def test_a_program_that_cannot_be_timed_is_told_why(here, tell, program, why):
    python = command(here, program)
    out, err = tell("time", "--precision", "bfloat16", "--", *python, status=2)
    assert f"amp-tf time: {' '.join(python)}: {why}" in err
    assert not out


@pytest.mark.process
def test_the_output_of_a_program_that_failed_is_kept(here, tell, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(here))
    python = command(here, "print('first'); raise ValueError('no data')")
    err = tell("time", "--", *python, status=2).err
    kept = next(here.glob("amp_tf_*/output.txt"))
    assert f"; its last line is 'ValueError: no data' ({kept} has its output)." in err
    assert kept.read_text().startswith("first")
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert not [*here.glob("amp_tf_time_*")]


@pytest.mark.process
def test_where_no_step_has_the_name_those_that_were_made_are_told(here, tell):
    python = command(here, f"{LOOP}for _ in range(9): prepare(tf.ones((8, 8)))")
    err = tell("time", "--step", "prepair", "--", *python, status=2).err
    assert "it made no step of 'prepair'. Name one that it makes: 'prepare'." in err


@pytest.mark.process
@pytest.mark.parametrize("named", [[], ["--step", "prepare"]])
def test_where_a_step_of_no_products_was_chosen_it_is_advised_to_name_another(here, tell, named):
    python = command(here, f"{LOOP}for _ in range(9): prepare(tf.ones((8, 8)))")
    err = tell("time", "--precision", "bfloat16", *named, "--", *python, status=2).err
    assert "there is nothing to time (" in err
    assert "name a precision" not in err  # one was named
    assert ("something else later than prepare, name that with --step" in err) is (not named)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "no-such-program",
            "no-such-program: cannot be started (No such file or directory). Check its name and",
        ),
        (
            __file__,
            f"{__file__}: cannot be started (Permission denied). Write the whole command, such as "
            "-- python train.py.",
        ),
        ("true", "true: it started no Python in which amp_tf is installed. Install amp_tf in"),
    ],
)
def test_a_wrong_command_is_an_error_in_one_line(tell, program, why):
    error = tell("time", "--", program, status=2).err
    assert f"amp-tf time: {why}" in error
    assert len(error.splitlines()) == 1


@pytest.mark.process
def test_an_interrupt_leaves_nothing_behind(here):
    program = f"import os; open('pid', 'w').write(str(os.getpid()))\n{ENDLESS}"
    folder = here / "temporary"
    folder.mkdir()
    environ = {**os.environ, "TMPDIR": str(folder)}
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from amp_tf.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["time", "--precision", "bfloat16", "--", *command(here, program)]
    timing = processes.start(
        [sys.executable, "-c", start, *arguments],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    while not (here / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    timing.send_signal(signal.SIGINT)
    _, err = timing.communicate(timeout=60)
    assert (timing.returncode, err) == (130, "amp-tf time: interrupted\n")
    assert not list(folder.iterdir())
    child = int((here / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
