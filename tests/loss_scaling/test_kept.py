"""Tensors that a user's optimizer stores in its step can be read after it."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.loss_scaling.steps import MODES, OPTIMIZERS, variables

Pair = collections.namedtuple("Pair", "norm count")


def norm_of(gradients):
    return tf.linalg.global_norm([g for g in gradients if g is not None])


def storing(base):
    """A class of optimizers that store the norm of their gradients, and its sum over all steps in a
    variable.
    """

    class Storing(base):
        def apply_gradients(self, grads_and_vars, **kwargs):
            pairs = list(grads_and_vars)
            self.norm = norm_of([gradient for gradient, _ in pairs])
            self.total.assign_add(self.norm)
            return super().apply_gradients(pairs, **kwargs)

    return Storing


def make(kind):
    optimizer = storing(type(OPTIMIZERS[kind]()))(0.5)
    optimizer.total = tf.Variable(0.0)
    return optimizer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["keras", "tf_keras", "legacy"])
def test_a_norm_that_an_optimizer_stores_is_that_of_the_unscaled_gradients(kind, mode):
    inner = make(kind)
    optimizer = amp_tf.LossScaleOptimizer(inner, 4.0)
    weight = variables()[0] if kind == "keras" else tf.Variable([1.0, 2.0, 3.0])
    optimizer.build([weight]) if kind != "legacy" else optimizer.iterations

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight * x))
        gradients = tape.gradient(
            loss, [getattr(weight, "value", weight) if kind == "keras" else weight]
        )
        optimizer.apply_gradients(list(zip(gradients, [weight], strict=True)))
        return tf.identity(inner.norm)

    step = step if mode == "eager" else tf.function(step, jit_compile=mode == "xla")
    assert float(step(tf.constant([0.0, 3.0, 4.0]))) == 5.0
    before = weight.numpy().tolist()
    skipped = float(step(tf.constant([0.0, np.nan, 4.0])))
    assert skipped == (
        5.0 if mode == "eager" else 0.0
    )  # eagerly a skipped step does not call the optimizer
    assert (float(inner.total.numpy()), weight.numpy().tolist()) == (5.0, before)
    assert int(np.asarray(inner.iterations)) == 1
    assert float(step(tf.constant([0.0, 6.0, 8.0]))) == 10.0
    assert float(inner.total.numpy()) == 15.0


class Notes:
    pass


class Everywhere:
    """Writes a variable, and stores the norm wherever users put such a thing."""

    def __init__(self):
        super().__init__()
        self.last, self.recent, self.by_name = [], collections.deque(maxlen=2), {}
        self.notes, self.notes.itself = Notes(), self
        self.unrelated = tf.constant(7.0), "text", None, object()

    def apply(self, gradients, weight):
        norm = norm_of(gradients)
        self.last.append(norm)
        self.recent.append(norm)
        self.by_name[weight.name] = [{"norm": norm}]
        self.pair = Pair(norm, ("one", tf.reduce_sum(tf.ones([2], tf.int32))))
        self.beside_variable = Pair(norm, weight)
        self.notes.is_large = norm > 4.0
        self.rows = tf.IndexedSlices(gradients[0] * 1.0, tf.range(2))
        self.nonzero = tf.boolean_mask(
            gradients[0], gradients[0] > 0.0
        )  # its size is not known before
        weight.assign_sub(gradients[0])

    def stored(self):
        return {
            "last": self.last[-1],
            "recent": self.recent[-1],
            "by name": next(iter(self.by_name.values()))[0]["norm"],
            "pair": self.pair.norm,
            "beside variable": self.beside_variable.norm,
            "count": self.pair.count[1],
            "notes": self.notes.is_large,
            "rows": self.rows.values,
            "nonzero": self.nonzero,
        }


class EverywhereInModule(Everywhere, tf.Module):
    """Its containers are those by which TensorFlow tracks what they hold."""


@pytest.mark.parametrize("cls", [Everywhere, EverywhereInModule])
def test_it_may_be_stored_in_any_attribute_container_or_object_of_the_users(cls):
    scaler = amp_tf.LossScaler(4.0)
    writer = cls()
    weight = tf.Variable([1.0, 2.0])
    unrelated = writer.unrelated

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = scaler.scale(tf.reduce_sum(weight * x))
        scaler.step(writer.apply, scaler.unscale(tape.gradient(loss, [weight])), weight)
        return {name: tf.identity(value) for name, value in writer.stored().items()}

    def values(x):
        return {name: value.numpy().tolist() for name, value in step(tf.constant(x)).items()}

    norms = ("last", "recent", "by name", "pair", "beside variable")
    rest = {"count": 2, "notes": True, "rows": [3.0, 4.0], "nonzero": [3.0, 4.0]}
    assert values([3.0, 4.0]) == dict.fromkeys(norms, 5.0) | rest
    rest = {"count": 0, "notes": False, "rows": [0.0, 0.0], "nonzero": []}
    assert values([3.0, np.inf]) == dict.fromkeys(norms, 0.0) | rest
    assert isinstance(writer.pair, Pair)
    assert writer.pair.count[0] == "one"
    assert writer.unrelated is unrelated
    assert weight.numpy().tolist() == [-2.0, -2.0]


def test_an_owner_without_attributes_stores_nothing():
    scaler = amp_tf.LossScaler(4.0)
    written = []

    @tf.function
    def step(x):
        scaler.scale(x)
        return scaler.step(written.append, scaler.unscale([x]))

    assert bool(step(tf.constant(1.0)))
    assert len(written) == 1


class Composites:
    """Stores composite tensors of which some parts were made before the step."""

    def apply(self, gradients, weight):
        gradient = gradients[0]
        self.slices = tf.IndexedSlices(gradient, tf.range(2), tf.constant([2]))
        self.of_known_shape = tf.IndexedSlices(gradient * 1.0, self.places, self.shape)
        self.sparse = tf.sparse.from_dense(gradient)
        self.ragged = tf.RaggedTensor.from_row_lengths(gradient, [1, 1])
        weight.assign_sub(gradient)

    def stored(self):
        return {
            "slices": tf.convert_to_tensor(self.slices),
            "of known shape": tf.convert_to_tensor(self.of_known_shape),
            "sparse": tf.sparse.to_dense(self.sparse),
            "ragged": self.ragged.to_tensor(shape=(2, 1)),
        }


def test_composite_tensors_are_readable_behind_a_step_that_was_taken_and_one_that_was_skipped():
    scaler = amp_tf.LossScaler(4.0)
    writer = Composites()
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def step(x):
        writer.places, writer.shape = tf.argsort(x), tf.shape(x)
        with tf.GradientTape() as tape:
            loss = scaler.scale(tf.reduce_sum(weight * x))
        scaler.step(writer.apply, scaler.unscale(tape.gradient(loss, [weight])), weight)
        return writer.stored()

    taken = step(tf.constant([3.0, 4.0]))
    assert {tuple(value.numpy().ravel()) for value in taken.values()} == {(3.0, 4.0)}
    skipped = step(tf.constant([3.0, np.inf]))
    assert [name for name, value in skipped.items() if value.shape[0] != 2] == []
    assert skipped["of known shape"].numpy().tolist() == [0.0, 0.0]
