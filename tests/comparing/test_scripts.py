"""``amp-tf compare -- python script.py``: scripts that look like public ones, untouched, with a
planted error each.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amp_tf.cli.main import main
from amp_tf.config import AmpConfig
from amp_tf.tools.comparing.training import CompareRequest, Training
from tests import processes, zygote
from tests.hooks import running

SCRIPTS = Path(__file__).resolve().parent / "scripts"


@dataclasses.dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


@pytest.fixture
def compare(tmp_path, monkeypatch, capfd):
    """Runs the command from another folder, with amp_tf's variables unset; the script's process is
    a fork.
    """
    environ = running.environment(tmp_path, {})
    for name in os.environ.keys() - environ.keys():
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", processes.start)

    def run(script: Path | str, *options: str, command=(sys.executable,), rest=()) -> Ended:
        status = main(["compare", *options, "--", *command, str(script), *rest])
        return Ended(status, *capfd.readouterr())

    return run


def test_the_planted_error_comes_first_and_the_line_holds_when_the_script_runs_with_amp_tf(
    compare, tmp_path
):
    """A mask that float16 cannot hold; the names are those of the program itself."""
    script = SCRIPTS / "mask.py"
    options = "--precision float16 --target cpu --steps 4 --output keep.txt"
    ended = compare(script, *options.split())
    assert ended.status == 1, ended.err
    first = r"^1\. overflow: \S*first_attention_1/MatMul_1 \("
    assert re.search(first, ended.out, re.MULTILINE), ended.out
    assert "What to write (fixes all outputs; " in ended.out
    assert "\n  AMP_TF_KEEP_FLOAT32=" in ended.out
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
    assert "nan" in running.run([str(script)], tmp_path, variables).out
    mended = running.run([str(script)], tmp_path, variables | {"AMP_TF_KEEP_FLOAT32": "@keep.txt"})
    assert "nan" not in mended.out
    assert not [line for line in mended.warnings if "match" in line]


FIT = """
import keras, numpy as np
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
{more}
model.compile("sgd", {loss}, steps_per_execution={calls})
x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
history = model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0).history
print("trained on", history["loss"])
"""
TABLE = """
import tensorflow as tf
table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0)
def loss(y, p): return tf.reduce_mean(tf.square(y - p)) + table.lookup(tf.constant(1))
"""


def _script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_a_script_that_is_interrupted_ends_without_a_traceback(compare, tmp_path):
    text = (
        "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "os.kill(os.getpid(), 2)"
    )
    ended = compare(_script(tmp_path, text))
    assert (ended.status, ended.err) == (130, "amp-tf compare: interrupted\n")


CALLS = """
import os, signal, sys, time, tensorflow as tf
signal.signal(signal.SIGINT, signal.default_int_handler)
v = tf.Variable(tf.eye(8))
@tf.function
def forward(x):
    return tf.matmul(x, v)
@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(forward(x))
    v.assign_sub(0.1 * tape.gradient(loss, v))
for _ in range(3):
    {step}(tf.ones((4, 8)))
def interrupt():  # both the command and the program, as a terminal does
    os.kill(int(sys.argv[1]), signal.SIGINT)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)
"""
HANDLED = "try: interrupt()\nexcept KeyboardInterrupt: print('closed')"


@pytest.fixture
def interruptible():
    """Interrupts reach the command, also where these tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("step", ["forward", "train"])
@pytest.mark.parametrize("how", ["interrupt()", HANDLED], ids=["ends", "is handled"])
def test_an_interrupt_begins_no_comparison(compare, step, how, tmp_path):
    script = _script(tmp_path, CALLS.format(step=step) + how)
    ended = compare(script, *ON_CPU, rest=[str(os.getpid())])
    assert (ended.status, ended.err.splitlines()[-1]) == (130, "amp-tf compare: interrupted")
    assert "healthy" not in ended.out


def test_an_interrupt_that_closes_a_session_begins_no_comparison(compare, tmp_path):
    text = FED.replace("print(", "os.kill(os.getpid(), 2 * (turn == 1)), print(", 1)
    signals = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    text = (GRAPH + text).format(behavior=REFERENCES, mean=0, turns=5)
    ended = compare(_script(tmp_path, signals + text), *ON_CPU)
    assert (ended.status, ended.err.splitlines()[-1]) == (130, "amp-tf compare: interrupted")
    assert "healthy" not in ended.out


@pytest.mark.parametrize(
    ("step", "end", "status", "words"),
    [
        (
            "forward",
            "open('labels.csv')",
            2,
            "it failed before its step was compared: FileNotFoundError: [Errno 2] No such file",
        ),
        (
            "train",
            "raise ValueError('no more data')",
            0,
            "Note: the program itself failed: ValueError: no more data",
        ),
        ("forward", "sys.exit(3)", 0, "Note: the program itself ended with status 3"),
    ],
)
def test_a_program_that_fails_is_told(compare, step, end, status, words, tmp_path):
    ended = compare(_script(tmp_path, CALLS.format(step=step) + end), *ON_CPU)
    assert ended.status == status, ended.err
    assert words in ended.out + ended.err
    assert ended.out.startswith(f"{step}: healthy in bfloat16 (") == (status == 0)


def test_a_program_that_is_killed_while_it_is_compared_is_told(compare, tmp_path):
    text = """
import os, traceback
def loss(y, p):
    if any("tools/comparing" in frame.filename for frame in traceback.extract_stack()):
        os.kill(os.getpid(), 9)  # as the kernel does where memory is short
    return (y - p) ** 2
"""
    script = _script(tmp_path, text + FIT.format(more="", loss="loss", calls=1))
    ended = compare(script, *ON_CPU)
    assert ended.status == 2
    assert "it ended with signal 9 while its step was compared, as where memory is" in ended.err


def test_a_command_that_is_no_python_is_told(compare, tmp_path):
    assert (
        compare("nothing", command=("true",))
        .err.strip()
        .endswith("Install amp_tf in that environment.")
    )
    ended = compare("nothing", command=("no_such_command",))
    assert ended.status == 2
    assert "no_such_command: cannot be started (No such file or directory)." in ended.err


LOOP = """
import sys, numpy as np, tensorflow as tf
v = tf.Variable(tf.random.stateless_normal((8, 8), (1, 2)), name="weights")
@tf.function(jit_compile=True)
def train_step(x, training):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, v))) if training else 0.0
    v.assign_sub(0.1 * tape.gradient(loss, v))
    return loss
for number in range(int(sys.argv[1])):
    train_step(np.random.default_rng(number).normal(size=(4, 8)).astype("float32"), training=True)
print("done")
"""


MIRRORED = """
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
keras.utils.set_random_seed(0)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    {more}
    model.compile("sgd", {loss})
x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
print("trained on", *model.fit(x, x[:, :1], batch_size=8, verbose=0).history["loss"])
"""


def _fail(folder, *, trains=False):
    training = Training(CompareRequest(folder, AmpConfig(), 8))
    assert not trains or training.claim()
    with pytest.raises(SystemExit) as ended, training.answering():
        raise ValueError("no data")
    assert ended.value.code == 2
    assert not training.is_awaited
    assert not training.claim()


def test_a_program_ends_also_where_the_command_has_ended(tmp_path):
    _fail(tmp_path / "gone")


def test_the_error_of_a_process_ends_the_program_only_if_that_process_trains(tmp_path):
    request = CompareRequest(tmp_path, AmpConfig(), 8)
    _fail(tmp_path)
    assert request.read_answer() == "ValueError: no data"
    assert not request.is_answered
    _fail(tmp_path, trains=True)
    assert request.is_answered


HELPER = """
import os, sys, time
if os.fork() == 0:  # another process, before the one that trains
    import tensorflow as tf
    @tf.function
    def prepare(x):
        return tf.cast(tf.matmul(x, x), {dtype})
    prepare(tf.ones((16, 16)))
    sys.exit()
os.wait()
time.sleep(2)  # longer than the command waits
"""


@pytest.mark.parametrize("dtype", ["tf.int32", "tf.float32"], ids=["fails", "is compared"])
def test_what_another_process_answers_before_the_one_that_trains_does_not_count(
    compare, dtype, tmp_path, monkeypatch
):
    monkeypatch.setattr("amp_tf.cli.programs._PATIENCE_S", 0.5)
    text = FIT.format(more="", loss="'mse'", calls=1)
    ended = compare(_script(tmp_path, HELPER.format(dtype=dtype) + text), *ON_CPU)
    assert ended.status == 0, ended.err
    assert ended.out.startswith("sequential: healthy in bfloat16 (")


def test_the_failure_of_the_process_that_trains_counts_more_than_what_another_one_found(
    compare, tmp_path
):
    text = FIT.format(more=TABLE, loss="loss", calls=2)
    script = _script(tmp_path, HELPER.format(dtype="tf.float32") + text)
    ended = compare(script, *ON_CPU, "--steps", "3")
    assert ended.status == 2
    assert "neither a variable nor a tensor" in ended.err
    assert "healthy" not in ended.out


PROGRAM = """
import numpy as np, tensorflow as tf
weights = tf.Variable(tf.random.stateless_normal((16, 16), (1, 2)), name="weights")
rows = np.random.default_rng(0).normal(size=(80, 16)).astype("float32") * {size}
data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(8)
{table}
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.matmul(x, weights), 1, keepdims=True) - y))
    weights.assign_sub(1e-4 * tape.gradient(loss, weights))
    return loss {more}

@tf.function
def epoch(data, turns):
    total = 0.0
    for x, y in data:
        total += step(x, y)
    return total

@tf.function
def several(iterator, turns=3):
    total = 0.0
    for _ in tf.range(turns):
        total += step(*next(iterator))
    return total

@tf.function
def count(data):
    return data.reduce(0, lambda number, _: number + 1)

print("batches", count(data).numpy())
{call}
print("done")
"""
EPOCH = "print('loss', *(epoch(data, turns=2).numpy() for _ in range(2)))"
SEVERAL = (
    "iterator = iter(data.repeat())\nprint('loss', *(several(iterator).numpy() for _ in range(4)))"
)


GRAPH = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
{behavior}
tf.set_random_seed(1)
incomes = np.random.default_rng(0).lognormal({mean}, 1, (320, 8)).astype("float32")
def model(x, y):
    hidden = tf.get_variable("hidden", [8, 32])
    price = tf.get_variable("price", [32, 1])
    features = tf.nn.relu(tf.matmul(x, hidden, name="features"), name="activation")
    features = tf.nn.dropout(features, rate=0.1)
    return tf.losses.mean_squared_error(y, tf.matmul(features, price, name="prediction"))
"""
FED = """
x, y = tf.placeholder(tf.float32, [None, 8], "x"), tf.placeholder(tf.float32, [None, 1], "y")
loss = model(x, y)
train = tf.train.AdamOptimizer(1e-3).minimize(loss, name="train")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for turn in range({turns}):
        rows = incomes[64 * turn : 64 * turn + 64]
        session.run([train, loss], {{x: rows, y: rows[:, :1] * 1e-4}})
        print("turn", turn)
print("done")
"""
MONITORED = """
with tf.Graph().as_default():
    tf.set_random_seed(1)
    data = tf.data.Dataset.from_tensor_slices((incomes, incomes[:, :1]))
    data = data.repeat().shuffle(99).batch(16)
    x, y = tf.data.make_one_shot_iterator(data).get_next()
    loss = model(x, y)
    step = tf.train.get_or_create_global_step()
    train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss, global_step=step, name="train")
    hooks = [tf.train.StopAtStepHook(last_step={turns}), tf.train.NanTensorHook(loss)]
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        while not session.should_stop():
            print("turn", session.run((train, step))[1])
print("done")
"""
REFERENCES = "tf.disable_v2_behavior()"  # variables, too, that are no resources


def test_what_overflows_comes_first(compare, tmp_path):
    script = _script(tmp_path, (GRAPH + FED).format(behavior=REFERENCES, mean=11, turns=5))
    ended = compare(script, "--precision", "float16", "--target", "cpu", "--steps", "3")
    assert ended.status == 1, ended.err
    assert re.search(r"^train: .*; 3 batches\)$", ended.out, re.MULTILINE)
    assert "\n1. overflow: features (" in ended.out
    assert "What to write (fixes all outputs; " in ended.out
    updates = set(re.findall(r" update (\S+)$", ended.out, re.MULTILINE))
    assert {"hidden", "price"} <= updates
    assert re.findall(r"^turn \d", ended.out, re.MULTILINE) == ["turn 0", "turn 1"]  # and it ends


BRANCHES = """
def batches(rows):
    data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1]))
    return tf.data.make_one_shot_iterator(data.repeat().batch(16))
is_training = tf.placeholder(tf.bool, [], "is_training")
first, second = batches(incomes), batches(incomes[:99])
x, y = tf.cond(is_training, first.get_next, second.get_next)
x, y = tf.reshape(x, [16, 8]), tf.reshape(y, [16, 1])
loss = model(x, y)
train = tf.train.AdamOptimizer(1e-3).minimize(loss, name="train")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for turn in range(3):
        session.run([train, loss], {{is_training: True}})
print("done")
"""


ON_CPU = ("--precision", "bfloat16", "--target", "cpu")
AT_EXIT = "import atexit; atexit.register(print, 'closed')"  # what a program registered still runs
DATA = {"size": 1.0, "table": "", "more": ""}
IN_GRAPHS = {"behavior": "tf.disable_eager_execution()", "mean": 0, "turns": 9}
#: Programs with further options and arguments, what is printed in this order, and what is not.
COMPARED = {
    "fit": (
        FIT.format(more=AT_EXIT, loss="'mse'", calls=1),
        ((), ()),
        ("closed", "sequential: healthy in bfloat16", "5 batches"),
        "trained on",
    ),
    "many turns": (
        LOOP,
        (("--steps", "4"), ("9",)),
        ("train_step: healthy", "4 batches", "as they are after"),
        "done",
    ),
    "replicas": (
        MIRRORED.format(more="", loss="'mse'"),
        (("--steps", "3"), ()),
        ("sequential: healthy in bfloat16", "3 batches", "the first replica's part of each batch"),
        "trained on",
    ),
    **{  # what asks for no gradients runs as it is; one element is for each run
        name: (
            PROGRAM.format(call=call, **DATA),
            (("--steps", "4"), ()),
            ("batches 10", f"{name}: healthy in bfloat16", "4 batches"),
            "loss",
        )
        for name, call in (("epoch", EPOCH), ("several", SEVERAL))
    },
    # Which turns are printed is a race of the program's own: it reads the step while it is written.
    "a monitored session": (
        (GRAPH + MONITORED).format(**IN_GRAPHS),
        (("--steps", "4"), ()),
        ("turn", "train: healthy in bfloat16", "4 batches"),
        "done",
    ),
    "a session that is closed": (
        (GRAPH + FED).format(behavior=REFERENCES, mean=0, turns=2),
        ((), ()),
        ("turn 1", "as they are after 2 runs of it"),
        "done",
    ),
}


@pytest.mark.parametrize("program", COMPARED)
def test_a_healthy_program_ends_where_its_training_begins_with_status_0_and_the_answer_last(
    compare, program, tmp_path
):
    text, (options, rest), said, unsaid = COMPARED[program]
    script = _script(tmp_path, text)
    ended = compare(script, *ON_CPU, *options, rest=rest)
    assert ended.status == 0, ended.err
    assert re.search(".*".join(map(re.escape, said)), ended.out, re.DOTALL), ended.out
    assert unsaid in text
    assert unsaid not in ended.out


SCALERS = dict.fromkeys(("amp_tf", "keras.optimizers"), ("keras", "scale_loss"))
SCALERS |= {"tf_keras.mixed_precision": ("tf_keras", "get_scaled_loss")}
SCALING = """
import amp_tf, keras, tensorflow as tf, tf_keras
v = tf.Variable(tf.eye(8))
optimizer = {}({}.optimizers.SGD(0.1))
optimizer.build([v])
@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = optimizer.{}(tf.reduce_mean(tf.square(tf.matmul(x, v))))
    optimizer.apply_gradients([(tape.gradient(loss, v), v)])
train_step(tf.ones((4, 8)))
"""


@pytest.mark.parametrize("wrapper", ["", *(f"{home}.LossScaleOptimizer" for home in SCALERS)])
def test_a_loop_in_float16_that_does_not_scale_its_loss_is_told(compare, wrapper, tmp_path):
    text = SCALING.format(wrapper, *SCALERS.get(wrapper.rpartition(".")[0], SCALERS["amp_tf"]))
    options = ["--precision", "float16", "--target", "cpu", "--output", "keep.txt"]
    ended = compare(_script(tmp_path, text), *options)
    first, second, *_ = ended.out.splitlines()
    assert "as they are after 1 call of it" in ended.out
    assert (tmp_path / "keep.txt").exists() == bool(wrapper)
    if wrapper:
        assert first.startswith("train_step: "), ended.err
        assert "does not scale its loss" not in ended.out
    else:
        assert first == (
            "train_step does not scale its loss, so small gradients become zero in float16. First "
            "scale the loss with "
            "amp_tf.LossScaleOptimizer or amp_tf.LossScaler, then compare again."
        )
        assert second.startswith("train_step: ")
        assert "keep.txt is not written: train_step does not scale its loss" in ended.err


OWN_STEP = """
import keras, numpy as np, tensorflow as tf
class Model(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = {loss}
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {{"loss": loss}}
keras.utils.set_random_seed(0)
given = keras.Input((4,))
model = Model(given, keras.layers.Dense(1)(given))
model.compile("sgd", "mse", jit_compile=False)
x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
model.fit(x, x[:, :1], batch_size=8, verbose=0)
"""
OF_STEP = "self.compute_loss(x=x, y=y, y_pred=self(x, training=True))"


@pytest.mark.parametrize(
    "loss", [OF_STEP, f"self.optimizer.scale_loss({OF_STEP})"], ids=["as it is", "scaled"]
)
def test_a_models_own_step_is_told_to_scale_its_loss_unless_its_optimizer_does_in_a_run(
    compare, loss, tmp_path
):
    ended = compare(
        _script(tmp_path, OWN_STEP.format(loss=loss)), "--precision", "float16", "--target", "cpu"
    )
    first = ended.out.splitlines()[0]
    remedy = (
        "First take the gradients of self.optimizer.scale_loss(loss) in the model's train_step, "
        "then compare again."
    )
    assert first.endswith(remedy) == (loss == OF_STEP), ended.out + ended.err


LOSS = "lambda y, p: tf.reduce_mean(tf.square(y - p)) + table.lookup(tf.constant(1))"
#: Programs, and why they are not compared.
FAILING = {
    "fit": (
        FIT.format(more=TABLE, loss="loss", calls=2),
        "neither a variable nor a tensor",
    ),
    "no data": (
        PROGRAM.format(call=EPOCH.replace("epoch(data", "epoch(data.take(0)"), **DATA),
        "a dataset that the function gets is empty",
    ),
    "data in branches": (
        (GRAPH + BRANCHES).format(behavior=f"{REFERENCES}; tf.disable_control_flow_v2()", mean=0),
        "in a branch or loop",
    ),
}


@pytest.mark.parametrize("program", FAILING)
def test_where_the_comparison_fails_the_program_ends_and_why_is_told_once(
    compare, program, tmp_path, monkeypatch
):
    monkeypatch.setenv(zygote.WHOLE_END, "1")  # at which one hung
    text, why = FAILING[program]
    ended = compare(_script(tmp_path, text), *ON_CPU, "--steps", "3")
    assert ended.status == 2
    assert ended.err.count(why) == 1
    assert ended.err.splitlines()[-1].startswith("amp-tf compare: ")
    last = re.findall(r'^ *print\("(\w+)', text, re.MULTILINE)[-1]
    assert last in ("trained", "done")
    assert last not in ended.out


FORWARD = """
import {library} as keras, numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
keras.utils.set_random_seed(0)
layers = [keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)]
model = keras.Sequential(layers, name="price")
model.compile("sgd", "mse", {calls})
served = tf.function(lambda x: model(x, training=False))
first = model(x[:1])
{code}
print("said", *map(float, (first[0, 0], {told})))
"""
PREDICTED = ("found = model.predict(x, batch_size=8, verbose=0)", "found.sum()")
EVALUATED = (
    "found = [model.evaluate(x, x[:, :1], batch_size=8, verbose=0) for _ in range(2)]",
    "found[0], found[1]",
)
ON_BATCH = (
    "found = model.test_on_batch(x[:8], x[:8, :1]), *(model.predict_on_batch(x[:8]) for _ in "
    "range(3))",
    "found[0], found[1].sum()",
)
SERVED = ("found = [served(x[start : start + 8]) for start in (0, 8, 16)]", "tf.reduce_sum(found)")
#: Programs that train nothing: the library, what they do and print, how many batches a call has,
#: and what is compared.
FORWARD_PROGRAMS = {
    "predict": ("keras", *PREDICTED, "", "price", 4),
    "evaluate, two steps a call": ("keras", *EVALUATED, "steps_per_execution=2", "price", 4),
    "evaluate, tf_keras": ("tf_keras", *EVALUATED, "", "price", 4),
    "one batch at a time": ("keras", *ON_BATCH, "", "price", 3),
    "a tf.function": ("keras", *SERVED, "", "<lambda>", 3),
}


@pytest.mark.parametrize("program", FORWARD_PROGRAMS)
def test_of_a_program_that_trains_nothing_what_it_runs_forward_is_compared(
    compare, program, tmp_path
):
    library, code, told, calls, name, batches = FORWARD_PROGRAMS[program]
    script = _script(tmp_path, FORWARD.format(library=library, code=code, told=told, calls=calls))
    ended = compare(script, *ON_CPU, "--steps", "4")
    assert ended.status == 0, ended.err
    own, head, *_ = ended.out.splitlines()
    assert (
        own == running.run([str(script)], tmp_path, {}).out.strip()
    )  # the program has all its data
    assert head.startswith(f"{name}: healthy in bfloat16 (")
    assert f"; {batches} batches)" in head
    (note,) = re.findall(
        "^Note: (.*)", ended.out, re.MULTILINE
    )  # none of a loss that is not scaled
    assert f"trained nothing: the results of {name} were compared, and no gradients" in note


def test_a_program_that_evaluates_before_it_trains_is_compared_as_it_trains(compare, tmp_path):
    text = FIT.format(more="", loss="'mse'", calls=1).replace(
        "history =", "model.evaluate(x, x[:, :1], verbose=0)\nhistory ="
    )
    ended = compare(_script(tmp_path, text), *ON_CPU)
    assert ended.status == 0, ended.err
    assert "gradient" in ended.out
    assert ended.out.startswith(
        "sequential: healthy in bfloat16 ("
    )  # before it could tell its losses


WITHOUT_GRADIENTS = """
x = tf.placeholder(tf.float32, [None, 8])
loss = model(x, x[:, :1])
session = tf.Session()
session.run(tf.global_variables_initializer())
session.run(loss, {{x: incomes}})
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print('nothing')", "it ended before it imported TensorFlow"),
        (
            "import tensorflow as tf; tf.function(lambda: tf.ones(3))()",
            "it ended and ran nothing that can be compared",
        ),
        (
            "import tensorflow, sys; sys.exit(3)",
            "it ended with status 3 and ran nothing that can be compared",
        ),
        (
            (GRAPH + WITHOUT_GRADIENTS).format(behavior=REFERENCES, mean=0),
            "To compare a model that a session only runs forward, save it, and write amp-tf "
            "compare MODEL --inputs ",
        ),
    ],
)
def test_a_script_that_runs_nothing_to_compare_is_told_which_call_to_make(
    compare, text, words, tmp_path
):
    ended = compare(_script(tmp_path, text))
    assert ended.status == 2
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("amp-tf compare: ")
    assert words in last
