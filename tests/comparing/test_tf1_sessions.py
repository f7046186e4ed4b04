"""``amp-tf compare -- python script.py`` with TF1 sessions: what is compared are their runs that need gradients."""

from __future__ import annotations

import json

import pytest

from tests.comparing.test_scripts import compare

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
    features = tf.nn.dropout(tf.nn.relu(tf.matmul(x, hidden, name="features"), name="activation"), rate=0.1)
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
    data = tf.data.Dataset.from_tensor_slices((incomes, incomes[:, :1])).repeat().shuffle(99).batch(16)
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
REFERENCES, RESOURCES = "tf.disable_v2_behavior()", "tf.disable_v2_behavior(); tf.enable_resource_variables()"


def _written(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("behavior", [REFERENCES, RESOURCES], ids=["reference variables", "resource variables"])
def test_what_overflows_comes_first(behavior, tmp_path):
    script = _written(tmp_path, (GRAPH + FED).format(behavior=behavior, mean=11, turns=5))
    ended = compare(
        script, tmp_path, "--precision", "float16", "--target", "cpu", "--steps", "3", "--json", "found.json"
    )
    assert ended.status == 1, ended.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["name"] == "train"
    assert found["batches"] == 3
    assert (found["findings"][0]["node"], found["findings"][0]["kind"]) == ("features", "overflow")
    assert found["mends"]
    updates = {output["name"] for output in found["outputs"] if output["kind"] == "update"}
    assert {"hidden", "price", "hidden/Adam"} <= updates
    assert "turn 1" in ended.out
    assert "done" not in ended.out  # it ends after the runs that are compared


def test_what_an_iterator_gives_is_fed_again(tmp_path):
    """Under the hooks of a monitored session, whose graph is closed to new nodes."""
    text = GRAPH + MONITORED
    script = _written(tmp_path, text.format(behavior="tf.disable_eager_execution()", mean=0, turns=9))
    ended = compare(script, tmp_path, "--precision", "bfloat16", "--target", "cpu", "--steps", "4")
    assert ended.status == 0, ended.err
    assert "train: healthy in bfloat16" in ended.out
    assert "4 batches" in ended.out
    assert "turn" in ended.out  # which one is a race of the program's own: it reads the step while it is written
    assert "done" not in ended.out


def test_runs_are_compared_as_their_session_is_closed(tmp_path):
    script = _written(tmp_path, (GRAPH + FED).format(behavior=REFERENCES, mean=0, turns=2))
    ended = compare(script, tmp_path, "--precision", "bfloat16", "--target", "cpu")
    assert ended.status == 0, ended.err
    assert "as they are after 2 runs of it" in ended.out
    assert "turn 1" in ended.out


def test_runs_without_gradients_do_not_train(tmp_path):
    text = GRAPH + "x = tf.placeholder(tf.float32, [None, 8])\nloss = model(x, x[:, :1])\n"
    text += (
        "session = tf.Session()\nsession.run(tf.global_variables_initializer())\nsession.run(loss, {{x: incomes}})\n"
    )
    ended = compare(_written(tmp_path, text.format(behavior=REFERENCES, mean=0)), tmp_path)
    assert ended.status == 2
    assert "no run of a session that needs gradients" in ended.err


BRANCHES = """
def batches(rows):
    return tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).repeat().batch(16))
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


def test_data_in_branches_are_told_and_the_program_goes_on(tmp_path):
    behavior = f"{REFERENCES}; tf.disable_control_flow_v2()"
    script = _written(tmp_path, (GRAPH + BRANCHES).format(behavior=behavior, mean=0))
    ended = compare(script, tmp_path, "--precision", "bfloat16", "--target", "cpu")
    assert ended.status == 2
    assert "in a branch or loop" in ended.err
    assert ended.out.endswith("done\n")
