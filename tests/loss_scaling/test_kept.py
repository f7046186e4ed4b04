"""Tensors that a user's optimizer stores in its step can be read after it."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.loss_scaling.steps import FAMILIES, MODES, by_families, in_mode

Pair = collections.namedtuple("Pair", "norm count")


def norm_of(gradients):
    return tf.linalg.global_norm(gradients)


def storing(base):
    """Returns an optimizer that stores the norm of its gradients, and its sum over all steps in a
    variable.
    """

    class Storing(base):
        def apply_gradients(self, grads_and_vars, **kwargs):
            pairs = list(grads_and_vars)
            self.norm = norm_of([gradient for gradient, _ in pairs])
            self.total.assign_add(self.norm)
            return super().apply_gradients(pairs, **kwargs)

    optimizer = Storing(0.5)
    optimizer.total = tf.Variable(0.0)
    return optimizer


@pytest.mark.parametrize("mode", MODES)
@by_families
def test_a_norm_that_an_optimizer_stores_is_that_of_the_unscaled_gradients(family, mode):
    inner = storing(FAMILIES[family].SGD)
    optimizer = amp_tf.LossScaleOptimizer(inner, 4.0)
    weight = tf.Variable([1.0, 2.0, 3.0])
    if family == "keras":
        weight = keras.Variable(weight)
    if family != "legacy":
        optimizer.build([weight])

    def take(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight * x))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return tf.identity(inner.norm)

    step = in_mode(take, mode)
    assert step(tf.constant([0.0, 3.0, 4.0])) == 5.0
    before = weight.numpy().tolist()
    # Eagerly a skipped step does not call the optimizer.
    skipped = step(tf.constant([0.0, np.nan, 4.0]))
    assert skipped == (5.0 if mode == "eager" else 0.0)
    assert inner.total.numpy() == 5.0
    assert weight.numpy().tolist() == before
    assert int(inner.iterations) == 1
    assert step(tf.constant([0.0, 6.0, 8.0])) == 10.0
    assert inner.total.numpy() == 15.0


class Notes:
    pass


class Everywhere:
    """Writes a variable, and stores the norm and others wherever users put such things."""

    def __init__(self):
        super().__init__()
        self.last = []
        self.recent = collections.deque(maxlen=2)
        self.by_name = {}
        self.notes = Notes()
        self.notes.itself = self
        self.unrelated = tf.constant(7.0), "text", None, object()

    def apply(self, gradients, weight):
        (gradient,) = gradients
        norm = norm_of(gradients)
        self.last.append(norm)
        self.recent.append(norm)
        self.by_name[weight.name] = [{"norm": norm}]
        self.pair = Pair(norm, ("one", tf.reduce_sum(tf.ones([2], tf.int32))))
        self.beside_variable = Pair(norm, weight)
        self.notes.is_large = norm > 4.0
        # The size of this one is not known before.
        self.nonzero = tf.boolean_mask(gradient, gradient > 0.0)
        # Some parts of these were made before the step.
        self.rows = tf.IndexedSlices(gradient, tf.range(2), tf.constant([2]))
        self.placed = tf.IndexedSlices(gradient * 1.0, self.places, self.shape)
        self.sparse = tf.sparse.from_dense(gradient)
        self.ragged = tf.RaggedTensor.from_row_lengths(gradient, [1, 1])
        weight.assign_sub(gradient)

    def norms(self):
        (of_name,) = self.by_name.values()
        return {
            "last": self.last[-1],
            "recent": self.recent[-1],
            "by name": of_name[0]["norm"],
            "pair": self.pair.norm,
            "beside variable": self.beside_variable.norm,
        }

    def others(self):
        return {
            "count": self.pair.count[1],
            "notes": self.notes.is_large,
            "nonzero": self.nonzero,
            "rows": tf.convert_to_tensor(self.rows),
            "placed": tf.convert_to_tensor(self.placed),
            "sparse": tf.sparse.to_dense(self.sparse),
            "ragged": self.ragged.to_tensor(shape=(2, 1))[:, 0],
        }


class EverywhereInModule(Everywhere, tf.Module):
    """Its containers are those by which TensorFlow tracks what they hold."""


NORMS = ("last", "recent", "by name", "pair", "beside variable")


def lists_of(tensors):
    return {name: tensor.numpy().tolist() for name, tensor in tensors.items()}


@pytest.mark.parametrize("cls", [Everywhere, EverywhereInModule])
def test_it_may_be_stored_in_any_attribute_container_or_object_of_the_users(cls):
    scaler = amp_tf.LossScaler(4.0)
    writer = cls()
    weight = tf.Variable([1.0, 2.0])
    unrelated = writer.unrelated

    @tf.function
    def step(x):
        writer.places = tf.argsort(x)
        writer.shape = tf.shape(x)
        with tf.GradientTape() as tape:
            loss = scaler.scale(tf.reduce_sum(weight * x))
        scaler.step(writer.apply, scaler.unscale(tape.gradient(loss, [weight])), weight)
        stored = writer.norms() | writer.others()
        return {name: tf.identity(value) for name, value in stored.items()}

    taken = lists_of(step(tf.constant([3.0, 4.0])))
    for name in ("nonzero", "rows", "placed", "sparse", "ragged"):
        assert taken.pop(name) == [3.0, 4.0], name
    assert taken == dict.fromkeys(NORMS, 5.0) | {"count": 2, "notes": True}
    # Behind a step that was skipped all can be read, with rows where they have some.
    skipped = lists_of(step(tf.constant([3.0, np.inf])))
    assert skipped.pop("nonzero") == []
    for name in ("rows", "placed", "sparse", "ragged"):
        assert len(skipped[name]) == 2, name
    assert skipped.pop("placed") == [0.0, 0.0]
    rest = {name: skipped[name] for name in (*NORMS, "count", "notes")}
    assert rest == dict.fromkeys(NORMS, 0.0) | {"count": 0, "notes": False}
    assert isinstance(writer.pair, Pair)
    assert writer.pair.count[0] == "one"
    assert writer.unrelated is unrelated
    assert weight.numpy().tolist() == [-2.0, -2.0]


def test_an_owner_without_attributes_stores_nothing():
    scaler = amp_tf.LossScaler(4.0)
    written = []

    @tf.function
    def step(x):
        return scaler.step(written.append, scaler.unscale([scaler.scale(x)]))

    assert step(tf.constant(1.0))
    assert len(written) == 1
