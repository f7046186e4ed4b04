"""The wrappers for new and legacy tf_keras optimizers."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from tests.loss_scaling.programs.own_steps import OWN

X = np.random.RandomState(0).randn(64, 4).astype("float32")
Y = X.sum(1, keepdims=True)
BAD_X = np.concatenate([X[:8], X[:8] * np.nan, X[8:]])
BAD_Y = np.concatenate([Y[:8], Y[:8], Y[8:]])

FAMILIES = {"new": tf_keras.optimizers, "legacy": tf_keras.optimizers.legacy}


@pytest.fixture(params=FAMILIES)
def adam(request):
    return lambda: FAMILIES[request.param].Adam(0.01, clipnorm=1.0)


def make_model(optimizer):
    keras.utils.set_random_seed(
        0
    )  # tf_keras' own does not work on Python 3.12 up to 2.18; this seeds the same
    layers = [
        tf_keras.layers.Input((4,)),
        tf_keras.layers.Dense(8, activation="tanh"),
        tf_keras.layers.Dense(1),
    ]
    model = tf_keras.Sequential(layers)
    model.compile(optimizer, "mse")
    return model


def train(model, poisoned=False):
    model.fit(
        BAD_X if poisoned else X, BAD_Y if poisoned else Y, batch_size=8, verbose=0, shuffle=False
    )
    return model


def test_the_scale_may_fall_below_one_and_stops_at_its_floor(adam):
    weight = tf.Variable([1.0, 2.0])
    optimizer = amp_tf.LossScaleOptimizer(adam(), 2.0, min_scale=2.0**-3)

    @tf.function
    def step(gradient):
        optimizer.get_scaled_loss(1.0)
        optimizer.apply_gradients(
            zip(optimizer.get_unscaled_gradients([gradient]), [weight], strict=True)
        )

    for _ in range(8):
        step(tf.constant([1.0, np.inf]))
    assert optimizer.status().scale == 2.0**-3
    assert weight.numpy().tolist() == [1.0, 2.0]
    step(tf.constant([0.0, 1.0]))
    assert weight.numpy()[1] < 2.0


@pytest.mark.parametrize("style", ["scale_loss", "get_scaled_loss", "minimize"])
def test_each_way_to_write_a_loop_gives_the_same_weights(adam, style):
    def loop(optimizer, style):
        weight = tf.Variable([1.0, 2.0])
        for _ in range(3):
            if style == "minimize":
                optimizer.minimize(lambda: tf.reduce_sum(weight**2), [weight])
                continue
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight**2)
                if style != "bare":
                    loss = getattr(optimizer, style)(loss)
            gradients = tape.gradient(loss, [weight])
            if style == "get_scaled_loss":
                gradients = optimizer.get_unscaled_gradients(gradients)
            optimizer.apply_gradients(zip(gradients, [weight], strict=True))
        return weight.numpy()

    np.testing.assert_array_equal(
        loop(amp_tf.LossScaleOptimizer(adam()), style), loop(adam(), "bare")
    )


def restored(model, into, how, folder):
    """The model as a file gives it: as a new one, or with its state in a model that is there."""
    if how == "checkpoint":
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
            folder / "checkpoint"
        )
        tf.train.Checkpoint(model=into, optimizer=into.optimizer).restore(path)
        return into
    if how != "weights.h5":
        model.save(folder / f"m.{how}")
        return tf_keras.models.load_model(folder / f"m.{how}")
    model.save_weights(folder / "m.weights.h5")
    into.optimizer.build(into.trainable_variables)
    into.load_weights(folder / "m.weights.h5")
    return into


def same_state(one, other):
    states = [
        dataclasses.replace(m.optimizer.status(), nonfinite_variables=()) for m in (one, other)
    ]
    assert states[0] == states[1]


@pytest.mark.parametrize(
    ("family", "how"),  # tf_keras saves no legacy optimizer in its newer formats
    [
        ("new", "checkpoint"),
        ("legacy", "checkpoint"),
        ("new", "weights.h5"),
        ("new", "keras"),
        ("new", "h5"),
    ],
)
def test_case_31_and_32_files_go_between_wrapped_and_bare(family, how, tmp_path):
    def bare():
        return make_model(FAMILIES[family].Adam(0.01, clipnorm=1.0))

    def wrapped():
        return make_model(
            amp_tf.LossScaleOptimizer(
                FAMILIES[family].Adam(0.01, clipnorm=1.0), dynamic_growth_steps=3
            )
        )

    model = train(wrapped(), poisoned=True)
    again = restored(model, wrapped(), how, tmp_path)
    others = [again]
    if how == "h5":  # which has the state of the inner optimizer alone
        assert int(again.optimizer.iterations) == 8
    else:
        same_state(again, model)
        others.append(
            restored(model, bare(), "checkpoint" if how == "checkpoint" else "weights.h5", tmp_path)
        )
    for other in (model, *others):
        train(other)
    for other in others:
        for actual, expected in zip(other.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(actual, expected)
    if how == "checkpoint":
        from_bare = restored(others[1], wrapped(), how, tmp_path)
        for actual, expected in zip(
            train(from_bare).get_weights(), train(others[1]).get_weights(), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)


def test_case_14_a_legacy_optimizer_works_in_a_session():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None,))
        wrapped, bare = (tf.Variable([1.0, 2.0]) for _ in range(2))
        inner, alone = (tf_keras.optimizers.legacy.SGD(0.1, momentum=0.5) for _ in range(2))
        optimizer = amp_tf.LossScaleOptimizer(inner)
        scaled = optimizer.get_scaled_loss(tf.reduce_sum(wrapped**2) * tf.reduce_mean(x))
        gradients = optimizer.get_unscaled_gradients(tf.gradients(scaled, [wrapped]))
        step = optimizer.apply_gradients(list(zip(gradients, [wrapped], strict=True)))
        gradients = tf.gradients(tf.reduce_sum(bare**2) * tf.reduce_mean(x), [bare])
        bare_step = alone.apply_gradients(list(zip(gradients, [bare], strict=True)))
        session.run(v1.global_variables_initializer())
        for value in (0, 1, np.nan, 2, 3):
            session.run(step, {x: [value]})
            if np.isfinite(value):
                session.run(bare_step, {x: [value]})
        np.testing.assert_array_equal(*session.run([wrapped, bare]))


def test_case_13_the_first_step_of_a_built_optimizer_is_traced_once():
    weight = tf.Variable([1.0])
    optimizer = amp_tf.LossScaleOptimizer(tf_keras.optimizers.SGD(0.5), 4.0)
    optimizer.build([weight])
    traces = []

    @tf.function
    def step():
        traces.append(1)
        optimizer.scale_loss(tf.constant(1.0))
        optimizer.apply_gradients([(tf.constant([4.0]), weight)])

    step()
    step()
    assert (len(traces), weight.numpy().tolist()) == (1, [0.0])


def test_the_variable_with_a_nonfinite_gradient_is_named_where_another_has_none():
    weights = [tf.Variable([1.0], name=name) for name in ("a", "b", "c")]
    optimizer = amp_tf.LossScaleOptimizer(tf_keras.optimizers.SGD(0.5))
    optimizer.build(weights)
    optimizer.scale_loss(tf.constant(1.0))
    optimizer.apply_gradients(
        zip([None, tf.constant([1.0]), tf.constant([np.nan])], weights, strict=True)
    )
    assert optimizer.status().nonfinite_variables == ("c:0",)


@pytest.mark.parametrize("settings", [{}, {"enabled": False}])
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_users_apply_gradients_is_called_with_what_it_takes(family, own, settings):
    """Under a strategy: test_distribution."""
    weight = tf.Variable([1.0])
    optimizer = amp_tf.LossScaleOptimizer(OWN[own](FAMILIES[family].SGD)(0.5), 4.0, **settings)
    for poison in (0.0, np.nan) if not settings else (0.0,):
        gradient = optimizer.scale_loss(tf.constant([1.0 + poison]))
        optimizer.apply_gradients([(gradient, weight)])
        assert weight.numpy().tolist() == [0.5]


def test_the_name_is_the_second_argument_as_on_the_bare_optimizer():
    weight = tf.Variable([1.0])
    seen = []

    class Own(tf_keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars, name=None, **kwargs):
            seen.append((name, kwargs))
            return super().apply_gradients(grads_and_vars, name, **kwargs)

    optimizer = amp_tf.LossScaleOptimizer(Own(0.5))
    optimizer.scale_loss(tf.constant(1.0))
    optimizer.apply_gradients([(tf.constant([1.0]), weight)], "step")
    assert seen == [("step", {})]
