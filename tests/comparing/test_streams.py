"""``amp-tf compare -- python script.py`` where functions take datasets and iterators."""

from __future__ import annotations

import pytest

from tests.comparing.test_scripts import compare
from tests.hooks import running

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
SEVERAL = "iterator = iter(data.repeat())\nprint('loss', *(several(iterator).numpy() for _ in range(4)))"
TABLE = "table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0)"


def _script(folder, call, size=1.0, table="", more=""):
    path = folder / "script.py"
    path.write_text(PROGRAM.format(call=call, size=size, table=table, more=more))
    return path


@pytest.mark.parametrize(("call", "name"), [(EPOCH, "epoch"), (SEVERAL, "several")])
def test_each_run_gets_one_element(call, name, tmp_path):
    ended = compare(_script(tmp_path, call), tmp_path, "--precision", "bfloat16", "--target", "cpu", "--steps", "4")
    assert ended.status == 0, ended.err
    assert "batches 10" in ended.out  # what asks for no gradients runs as it is
    assert f"{name}: healthy in bfloat16" in ended.out
    assert "4 batches" in ended.out
    assert "loss" not in ended.out  # it ends before it trains


def test_what_overflows_is_found(tmp_path):
    script = _script(tmp_path, EPOCH, size=1e5)
    ended = compare(script, tmp_path, "--precision", "float16", "--target", "cpu", "--steps", "2")
    assert ended.status == 1, ended.err
    assert "1. overflow: " in ended.out


def test_where_it_fails_the_program_gets_all_its_data(tmp_path):
    script = _script(tmp_path, SEVERAL, table=TABLE, more="+ table.lookup(tf.constant(1))")
    ended = compare(script, tmp_path, "--precision", "bfloat16", "--target", "cpu", "--steps", "4")
    assert ended.status == 2
    assert "neither a variable nor a tensor" in ended.err.splitlines()[-1]
    assert ended.out == running.run([str(script)], tmp_path, {}).out
    assert "done" in ended.out


def test_an_empty_dataset_is_told(tmp_path):
    ended = compare(_script(tmp_path, EPOCH.replace("epoch(data", "epoch(data.take(0)")), tmp_path)
    assert ended.status == 2
    assert "a dataset that the function gets is empty" in ended.err
    assert "done" in ended.out
