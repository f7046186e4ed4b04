"""The wrappers for new and legacy tf_keras optimizers."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from tests.loss_scaling.programs.own_steps import OWN
from tests.loss_scaling.steps import assert_same

X = np.random.RandomState(0).randn(64, 4).astype("float32")
Y = X.sum(1, keepdims=True)
BAD_X = np.concatenate([X[:8], X[:8] * np.nan, X[8:]])
BAD_Y = np.concatenate([Y[:8], Y[:8], Y[8:]])

OF_TF_KERAS = {"new": tf_keras.optimizers, "legacy": tf_keras.optimizers.legacy}


@pytest.fixture(params=OF_TF_KERAS)
def adam(request):
    return lambda: OF_TF_KERAS[request.param].Adam(0.01, clipnorm=1.0)


def make_model(optimizer):
    # tf_keras' own does not work on Python 3.12 up to 2.18; this seeds the same.
    keras.utils.set_random_seed(0)
    dense = tf_keras.layers.Dense
    layers = [tf_keras.layers.Input((4,)), dense(8, activation="tanh"), dense(1)]
    model = tf_keras.Sequential(layers)
    model.compile(optimizer, "mse")
    return model


def train(model, x=X, y=Y):
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()


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

    found = loop(amp_tf.LossScaleOptimizer(adam()), style)
    np.testing.assert_array_equal(found, loop(adam(), "bare"))


def test_a_checkpoint_takes_a_model_and_the_optimizer_that_it_was_compiled_with(adam, tmp_path):
    optimizer = adam()
    model = make_model(amp_tf.LossScaleOptimizer(optimizer))
    train(model)
    saved = tf.train.Checkpoint(model, optimizer=optimizer).save(tmp_path / "ckpt")
    tf.train.Checkpoint(model, optimizer=optimizer).restore(saved).assert_consumed()


def restored(model, into, how, folder):
    """The model as a file gives it: as a new one, or with its state in a model that is there."""
    path = folder / f"{len(list(folder.iterdir()))}.{how}"
    if how == "checkpoint":
        saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(path)
        tf.train.Checkpoint(model=into, optimizer=into.optimizer).restore(saved)
    elif how == "weights.h5":
        model.save_weights(path)
        into.optimizer.build(into.trainable_variables)
        into.load_weights(path)
    else:
        model.save(path)
        return tf_keras.models.load_model(path)
    return into


def status(model):
    return dataclasses.replace(model.optimizer.status(), nonfinite_variables=())


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
    def made(is_wrapped):
        optimizer = OF_TF_KERAS[family].Adam(0.01, clipnorm=1.0)
        if is_wrapped:
            optimizer = amp_tf.LossScaleOptimizer(optimizer, dynamic_growth_steps=3)
        return make_model(optimizer)

    model = made(is_wrapped=True)
    train(model, BAD_X, BAD_Y)
    again = restored(model, made(is_wrapped=True), how, tmp_path)
    others = [again]
    if how == "h5":  # which has the state of the inner optimizer alone
        assert int(again.optimizer.iterations) == 8
    else:
        assert status(again) == status(model)
        through = "checkpoint" if how == "checkpoint" else "weights.h5"
        others.append(restored(model, made(is_wrapped=False), through, tmp_path))
    expected = train(model)
    for other in others:
        assert_same(train(other), expected)
    if how == "checkpoint":
        from_bare = restored(others[1], made(is_wrapped=True), how, tmp_path)
        assert_same(train(from_bare), train(others[1]))


@pytest.mark.parametrize(
    ("home", "name"),
    [
        (tf_keras.optimizers, "Adam/m/weight:0"),
        (tf_keras.optimizers.legacy, "Adam/weight/m:0"),
    ],
)
def test_the_variables_have_the_names_that_the_bare_optimizer_gives_them(home, name):
    def names(is_wrapped):
        optimizer = home.Adam(0.01)
        if is_wrapped:
            optimizer = amp_tf.LossScaleOptimizer(optimizer)
        weight = tf.Variable([1.0], name="weight")
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])
        made = optimizer.variables
        return [variable.name for variable in (made() if callable(made) else made)]

    assert name in names(is_wrapped=False)
    assert names(is_wrapped=True) == names(is_wrapped=False)


def test_case_14_a_legacy_optimizer_works_in_a_session():
    def trained(is_wrapped, values):
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            factor = v1.placeholder(tf.float32, ())
            weight = tf.Variable([1.0, 2.0])
            loss = tf.reduce_sum(weight**2) * factor
            optimizer = tf_keras.optimizers.legacy.SGD(0.1, momentum=0.5)
            if is_wrapped:
                optimizer = amp_tf.LossScaleOptimizer(optimizer)
                loss = optimizer.get_scaled_loss(loss)
            gradients = tf.gradients(loss, [weight])
            if is_wrapped:
                gradients = optimizer.get_unscaled_gradients(gradients)
            step = optimizer.apply_gradients([(gradients[0], weight)])
            session.run(v1.global_variables_initializer())
            for value in values:
                session.run(step, {factor: value})
            return session.run(weight)

    found = trained(True, (0, 1, np.nan, 2, 3))
    np.testing.assert_array_equal(found, trained(False, (0, 1, 2, 3)))


def test_case_13_the_first_step_of_a_built_optimizer_is_traced_once():
    weight = tf.Variable([1.0])
    optimizer = amp_tf.LossScaleOptimizer(tf_keras.optimizers.SGD(0.5), 4.0)
    optimizer.build([weight])

    @tf.function
    def step():
        optimizer.scale_loss(tf.constant(1.0))
        optimizer.apply_gradients([(tf.constant([4.0]), weight)])

    step()
    step()
    assert step.experimental_get_tracing_count() == 1
    assert weight.numpy().tolist() == [0.0]


def test_the_variable_with_a_nonfinite_gradient_is_named_where_another_has_none():
    weights = [tf.Variable([1.0], name=name) for name in ("a", "b", "c")]
    optimizer = amp_tf.LossScaleOptimizer(tf_keras.optimizers.SGD(0.5))
    optimizer.build(weights)
    optimizer.scale_loss(tf.constant(1.0))
    gradients = [None, tf.constant([1.0]), tf.constant([np.nan])]
    optimizer.apply_gradients(zip(gradients, weights, strict=True))
    assert optimizer.status().nonfinite_variables == ("c:0",)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("family", OF_TF_KERAS)
def test_a_users_apply_gradients_is_called_with_what_it_takes(family, own, enabled):
    """Under a strategy: test_distribution."""
    weight = tf.Variable([1.0])
    inner = OWN[own](OF_TF_KERAS[family].SGD)(0.5)
    optimizer = amp_tf.LossScaleOptimizer(inner, 4.0, enabled=enabled)
    poisons = (0.0, np.nan) if enabled else (0.0,)
    for poison in poisons:
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
