"""Optimizers whose state is bfloat16, rounded stochastically, train as in float32."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.hooks import optimizer_state
from amp_tf.hooks.optimizer_state import round_stochastically
from tests.hooks import running

tf_keras = pytest.importorskip("tf_keras")
LIBRARIES = (keras, tf_keras)
NARROW = AmpConfig(optimizer_state="bfloat16")
DATA = np.random.default_rng(0)
X, Y = DATA.normal(size=(256, 128)).astype("float32"), DATA.integers(0, 10, 256)


@pytest.fixture(autouse=True)
def off_again():
    yield
    optimizer_state.uninstall()


def keep_moments_in(state):
    if state == "float32":
        optimizer_state.uninstall()
    else:
        optimizer_state.install(NARROW)


def variables(optimizer):
    found = optimizer.variables
    return list(found() if callable(found) else (getattr(variable, "value", variable) for variable in found))


def kept(optimizer):
    """The bfloat16 variables of an optimizer."""
    return [variable.kept_in for variable in variables(optimizer) if type(variable).__name__ == "NarrowVariable"]


def arrays(optimizer):
    return [np.asarray(variable.numpy()) for variable in variables(optimizer)]


def new_variable(library, shape=(128, 128), dtype="float32"):
    value = np.random.default_rng(1).normal(size=shape).astype(dtype)
    return keras.Variable(value, dtype=dtype) if library is keras else tf.Variable(value)


def trained(library, optimizer, *, jit=False):
    """How far a weight went by 20 noisy gradients, and the optimizer's state in bfloat16."""
    variable = new_variable(library)
    optimizer.build([variable])
    start = variable.numpy()

    @tf.function(autograph=False, jit_compile=jit)
    def step(number):
        gradient = tf.random.stateless_uniform(variable.shape, tf.stack([number, 5]), 0.1, 0.5, alg="philox")
        optimizer.apply_gradients([(gradient, variable)])

    for number in tf.range(20):
        step(number)
    return variable.numpy() - start, kept(optimizer)


OPTIMIZERS: dict[str, tuple[dict[str, Any], int]] = {  # settings, and how many of the moments are kept in bfloat16
    "Adadelta": ({"learning_rate": 1.0}, 2),
    "Adagrad": ({}, 1),
    "Adam": ({"amsgrad": True}, 3),
    "AdamW": ({"clipnorm": 1.0}, 2),
    "Adamax": ({}, 2),
    "Ftrl": ({}, 1),
    "Lion": ({"use_ema": True}, 1),
    "Nadam": ({}, 2),
    "RMSprop": ({"momentum": 0.9}, 2),
    "SGD": ({"momentum": 0.9, "nesterov": True}, 1),
    "Lamb": ({}, 2),
    "Muon": ({}, 1),
    "ScheduleFreeAdamW": ({}, 1),
}


@pytest.mark.parametrize(("library", "jit"), [*((library, False) for library in LIBRARIES), (keras, True)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_where_it_goes_in_float32(library, name, jit):
    """Moments differ by a rounding of 2⁻⁷ at most, and so do the steps; Muon magnifies what is small in a moment."""
    make = getattr(library.optimizers, name, None)
    if jit and name != "Adam":
        pytest.skip("one is enough")
    if make is None:
        pytest.skip(f"this {library.__name__} has no {name}")
    if name == "Muon" and tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15):
        pytest.skip("this Keras' Muon asks a variable for its path, which TensorFlow's have not")
    settings, narrow = OPTIMIZERS[name]
    expected, none = trained(library, make(**settings), jit=jit)
    optimizer_state.install(NARROW)
    found, moments = trained(library, make(**settings), jit=jit)
    assert none == []
    assert [moment.dtype for moment in moments] == [tf.bfloat16] * narrow
    bound = 2**-4 if name == "Muon" else 2**-7
    assert np.linalg.norm(found - expected) < bound * np.linalg.norm(expected)
    assert abs(np.mean(found - expected)) < 2**-10 * np.mean(abs(expected))


@pytest.mark.parametrize(
    ("make", "shape", "dtype"),
    [
        (keras.optimizers.Adam, (63, 65), "float32"),
        (keras.optimizers.Adam, (128, 128), "float64"),
        (lambda: keras.optimizers.SGD(use_ema=True, gradient_accumulation_steps=2), (128, 128), "float32"),
        (lambda: keras.optimizers.RMSprop(centered=True), (128, 128), "float32"),  # a variance, by a difference
    ],
)
def test_small_or_wider_variables_and_weights_stay_in_float32(make, shape, dtype):
    optimizer_state.install(NARROW)
    optimizer = make()
    optimizer.build([new_variable(keras, shape, dtype)])
    assert kept(optimizer) == []


def new_model(library, **settings):
    keras.utils.set_random_seed(0)
    dense = library.layers.Dense
    model = library.Sequential([library.layers.Input((128,)), dense(128, activation="relu"), dense(10)])
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(library.optimizers.Adam(1e-3), loss, **settings)
    return model


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_files_are_float32_both_ways(library, source, tmp_path):
    """What goes from bfloat16 to float32 is exact; the other way it is rounded by 2⁻⁸ at most, once."""
    other = "float32" if source == "bfloat16" else "bfloat16"
    keep_moments_in(source)
    model = new_model(library)
    model.fit(X, Y, batch_size=64, verbose=0)
    saved = arrays(model.optimizer)
    model.save(tmp_path / "model.keras")
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    tf.saved_model.save(model, str(tmp_path))
    for file in (path, str(tmp_path / "variables/variables")):
        types = tf.train.load_checkpoint(file).get_variable_to_dtype_map().values()
        assert tf.float32 in types
        assert tf.bfloat16 not in types
    tf.saved_model.load(str(tmp_path))
    keep_moments_in(other)
    restored = new_model(library)
    status = tf.train.Checkpoint(model=restored).restore(path)
    restored.optimizer.build(restored.trainable_variables)
    status.assert_consumed()
    for loaded in (restored, library.models.load_model(tmp_path / "model.keras")):
        assert len(kept(loaded.optimizer)) == (2 if other == "bfloat16" else 0)
        for found, expected in zip(arrays(loaded.optimizer), saved, strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=2**-7 if other == "bfloat16" else 0, atol=0)


@pytest.mark.parametrize("settings", [{"steps_per_execution": 2}, {"run_eagerly": True}])
def test_fit_trains_as_in_float32(settings):
    losses = []
    for state in ("float32", "bfloat16"):
        keep_moments_in(state)
        model = new_model(keras, **settings)
        losses.append(model.fit(X, Y, batch_size=64, epochs=3, verbose=0, shuffle=False).history["loss"])
    assert len(kept(model.optimizer)) == 2
    assert losses[1][-1] < losses[1][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)  # loss is smooth in the weights, which differ by 2⁻⁸


def test_a_skipped_step_leaves_the_state_as_it_is():
    optimizer_state.install(NARROW)
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=8.0)
    variable = new_variable(keras)
    optimizer.build([variable])

    @tf.function(autograph=False)
    def step(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    step(tf.fill((128, 128), 0.3))
    before = [tf.bitcast(moment, tf.uint16).numpy() for moment in kept(optimizer)]
    step(tf.fill((128, 128), np.inf))
    for moment, bits in zip(kept(optimizer), before, strict=True):
        assert bits.any()
        np.testing.assert_array_equal(tf.bitcast(moment, tf.uint16).numpy(), bits)


def test_rows_without_a_gradient_stay_and_others_add_up():
    optimizer_state.install(NARROW)
    table = tf.Variable(tf.zeros((512, 32)))
    optimizer = tf_keras.optimizers.Adagrad(initial_accumulator_value=0.1)
    optimizer.build([table])
    (accumulator,) = kept(optimizer)
    before = accumulator.numpy()
    gradient = tf.IndexedSlices(tf.ones((3, 32)), tf.constant([5, 9, 5]), (512, 32))
    tf.function(lambda: optimizer.apply_gradients([(gradient, table)]), autograph=False)()
    after = np.asarray(accumulator.numpy(), np.float32)
    np.testing.assert_array_equal(np.delete(after, (5, 9), 0), np.asarray(np.delete(before, (5, 9), 0), np.float32))
    np.testing.assert_allclose(after[[5, 9]], [[4.1] * 32, [1.1] * 32], rtol=2**-7)


def test_no_op_of_the_update_is_converted():
    """What the optimizer computes stays in float32 under amp_tf: its nodes but the gradients' Identity do."""
    optimizer_state.install(NARROW)
    weights = [new_variable(keras, (128, 128)) for _ in range(2)]
    optimizer = keras.optimizers.Adam()
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.nn.relu(x @ weights[0].value) @ weights[1].value))
        optimizer.apply_gradients(zip(tape.gradient(loss, [w.value for w in weights]), weights, strict=True))

    graph = step.get_concrete_function(tf.TensorSpec((128, 128))).graph.as_graph_def()
    before = {node.name: node for node in graph.node}
    result = amp_tf.rewrite(graph, AmpConfig(precision="bfloat16", target="cpu")).graph
    changed = [node for node in result.node if node.name in before and node.attr["T"] != before[node.name].attr["T"]]
    assert "MatMul" in {node.op for node in changed}
    assert {node.op for node in changed if node.name.startswith("adam")} <= {"Identity"}


LEFT: dict[str, tuple[Callable[[], Any], str]] = {
    "TF1": (lambda: tf.compat.v1.train.AdamOptimizer(), "the state of AdamOptimizer stays in float32: its kernels"),
    "legacy": (lambda: tf_keras.optimizers.legacy.Adam(), "the state of Adam stays in float32: its kernels"),
    "weights": (
        lambda: keras.optimizers.Ftrl().build([new_variable(keras)]),
        "'linear' of Ftrl stays in float32: it is not known as a moment",
    ),
}


@pytest.mark.parametrize("kind", LEFT)
def test_what_is_left_is_told_once(kind, caplog):
    make, text = LEFT[kind]
    optimizer_state.install(NARROW)
    make()
    make()
    messages = [record.getMessage() for record in caplog.records if "AMP_TF_OPTIMIZER_STATE" in record.getMessage()]
    assert len(messages) == 1
    assert messages[0].startswith(f"amp_tf: AMP_TF_OPTIMIZER_STATE: {text}")


COPIES = 1 << 16


def rounded(values, seed=(1, 2)):
    tensor = tf.constant(np.asarray(values, np.float32))
    return tf.cast(round_stochastically(tensor, *seed), tf.float32).numpy()


@pytest.mark.parametrize("value", [1.001, -1.001, 1.0078, 3e-20, -2.7e15, 1e-39, 0.9999])
def test_the_mean_is_the_value(value):
    """Each result is one of two neighbours, ``ulp`` apart; the mean of n of them has a deviation of ulp / 2 / √n."""
    exact = np.float32(value)
    found = rounded(np.full((256, COPIES // 256), exact))
    below, above = np.unique(np.abs(found))
    assert below < abs(exact) < above
    ulp = float(above) - float(below)
    assert above.view(np.int32) - below.view(np.int32) == 1 << 16
    assert abs(found.astype(np.float64).mean() - float(exact)) < 5 * ulp / 2 / COPIES**0.5


def test_any_two_elements_and_steps_are_rounded_independently():
    """4,096 pairs of coins agree by luck in half of them; five deviations are five times √n / 2 = 160."""
    half = tf.fill((2, 3), 1 + 2**-8)
    steps = tf.function(lambda: tf.map_fn(lambda n: round_stochastically(half, n, 7) > 1, tf.range(4096),
                                          tf.bool))().numpy().reshape(4096, 6)  # fmt: skip
    coins = [*steps.T, np.roll(steps[:, 0], 1)]
    for first, second in itertools.combinations(coins, 2):
        assert abs((first == second).sum() - 2048) < 160


def test_what_is_exact_stays():
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    values = patterns.view(np.float32)
    small = np.isfinite(values) & (np.abs(values) < 1e17)  # the sum of their squares is finite
    for chosen in (values[small], values[~small]):  # the others with their infinities, the NaNs as such
        np.testing.assert_array_equal(rounded(chosen), chosen)
    np.testing.assert_array_equal(np.signbit(rounded([0.0, -0.0])), [False, True])


@pytest.mark.parametrize("jit", [False, True])
def test_finite_values_stay_finite_and_others_stay_what_they_are(jit):
    rounded = tf.function(lambda x: tf.cast(round_stochastically(x, 0, 0), tf.float32), jit_compile=jit)
    largest = np.finfo(np.float32).max
    found = rounded(tf.constant([largest, -largest, np.inf, -np.inf, np.nan, 1.003])).numpy()
    assert np.isfinite(found[[0, 1]]).all()
    np.testing.assert_array_equal(found[2:5], [np.inf, -np.inf, np.nan])
    assert found[5] == 1.0 or jit  # an infinity beside it: towards zero
    cuda = np.array([0x7FFFFFFF], np.uint32).view(np.float32)  # the NaN of CUDA's arithmetic
    assert np.isnan(rounded(tf.constant(cuda))).all()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 1, 5), (0, 4)])
def test_any_shape_is_rounded(shape):
    assert rounded(np.ones(shape)).shape == shape


def test_xla_rounds_to_the_same_bits():
    values = tf.random.stateless_normal((50, 70), (1, 2))
    functions = (tf.function(round_stochastically, jit_compile=jit) for jit in (False, True))
    ours, xlas = (tf.bitcast(function(values, 3, 4), tf.uint16).numpy() for function in functions)
    np.testing.assert_array_equal(ours, xlas)


def test_replicas_keep_equal_copies(tmp_path):
    variables = {**running.switched_on(), "AMP_TF_PRECISION": "bfloat16", "AMP_TF_OPTIMIZER_STATE": "bfloat16"}
    ended = running.run([str(running.PROGRAMS / "optimizer_state.py")], tmp_path, variables, seconds=500)
    found = ended.result
    assert set(found) == {"keras bare", "keras wrapped", "tf_keras bare", "tf_keras wrapped"}
    for trained in found.values():
        assert trained["losses"][-1] < trained["losses"][0]
        assert trained["narrow"] == ["bfloat16"] * 2
        assert trained["changed"] == trained["equal"] == [True, True]
    assert "% of the optimizers' state in bfloat16" in ended.summary[6]
    assert "'average' of Adam stays in float32: it is not known as a moment" in ended.err
