"""Cases 15, 28 and 29: which calls of a loop count, who divides its gradients, and two scalers in
one loop.
"""

import gc
import pickle
import re
import weakref
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.loss_scaling import calls
from tests.loss_scaling.steps import (
    MODES,
    OPTIMIZERS,
    V1,
    eager_and_traced,
    in_mode,
    sgd_of,
    since_keras_3_1,
    variables,
)
from tests.small_graphs import all_nodes


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request):
    return amp_tf.LossScaleOptimizer(OPTIMIZERS[request.param](), 4.0)


def as_it_is(optimizer, value):
    return value


def one_step(optimizer, scale, finish, mode):
    """Trains a variable on its sum, whose gradient is 1: it moves by 0.5, the learning rate, if all
    is well.
    """
    weight = tf.Variable([1.0])

    def step():
        with tf.GradientTape() as tape:
            loss = scale(optimizer, tf.reduce_sum(weight))
        optimizer.apply_gradients([(finish(optimizer, tape.gradient(loss, weight)), weight)])

    in_mode(step, mode)()
    return (1.0 - weight.numpy()).tolist()


def test_a_step_is_one_trace_that_stays_in_the_graph():
    weight = keras.Variable([1.0])
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.Adam(global_clipnorm=1.0))
    optimizer.build([weight])

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight.value))
        optimizer.apply_gradients([(tape.gradient(loss, weight.value), weight)])

    for _ in range(3):
        step()
    assert step.experimental_get_tracing_count() == 1
    graph = step.get_concrete_function().graph.as_graph_def()
    ops = {node.op for node in all_nodes(graph)}
    assert "AssignVariableOp" in ops
    assert ops.isdisjoint({"PyFunc", "PyFuncStateless", "EagerPyFunc", "PrintV2", "Assert"})


ROWS = re.findall(r"^([a-z_, ]+?) {2,}(takes|divides)(.*)$", calls.__doc__, re.MULTILINE)


@eager_and_traced
@pytest.mark.parametrize(("made", "does", "how"), ROWS)
def test_the_table_of_calls_says_what_apply_gradients_does(made, does, how, mode, optimizer, log):
    def scale(optimizer, loss):
        if made == "none":
            return loss
        return getattr(optimizer, made.partition(",")[0])(loss)

    def finish(optimizer, gradient):
        if made.endswith("get_unscaled_gradients"):
            return optimizer.get_unscaled_gradients([gradient])[0]
        return gradient

    left_scaled = made == "get_scaled_loss"
    moved = 2.0 if left_scaled else 0.5
    assert one_step(optimizer, scale, finish, mode) == [moved]
    assert len(log("the gradients are applied as they are")) == how.endswith("warns")
    assert len(log("get_scaled_loss was called without get_unscaled_gradients")) == left_scaled


def test_the_table_of_calls_is_found():
    assert len(ROWS) == 5


def multiply(optimizer, loss):
    return loss * optimizer.loss_scale


def divide(optimizer, gradient):
    return gradient / optimizer.loss_scale


def only_log(optimizer, value):
    tf.print("loss scale", optimizer.loss_scale, output_stream="file:///dev/null")
    return value


def scaled_and_logged(optimizer, loss):
    return optimizer.scale_loss(only_log(optimizer, loss))


def log_unscaled(optimizer, gradient):
    tf.print(optimizer.get_unscaled_gradients([gradient]), output_stream="file:///dev/null")
    return gradient


def clip(optimizer, gradient):
    return tf.clip_by_norm(optimizer.get_unscaled_gradients([gradient])[0], 0.5)


#: Functions of loss and gradient in a loop, how far its weight moves, and whether it is told.
LOOPS = {
    "by hand": (multiply, divide, 0.5, True),
    "by a factor of its own": (lambda _, loss: loss * 8.0, lambda _, g: g / 8.0, 0.5, True),
    # A step that is too large is seen, one that is too small is not.
    "not divided": (multiply, as_it_is, 2.0, True),
    "reads the scale": (only_log, as_it_is, 0.5, True),
    "logs the scale": (scaled_and_logged, only_log, 0.5, False),
    "logs unscaled gradients": (scaled_and_logged, log_unscaled, 0.5, False),
    "clips unscaled gradients": (scaled_and_logged, clip, 0.25, False),
}


@eager_and_traced
@pytest.mark.parametrize(("scale", "finish", "moved", "is_told"), LOOPS.values(), ids=LOOPS)
def test_case_28_what_a_loop_does_by_hand_is_left_alone_and_told(
    scale, finish, moved, is_told, mode, optimizer, log
):
    assert one_step(optimizer, scale, finish, mode) == [moved]
    warnings = log("the gradients are applied as they are")
    assert len(warnings) == is_told
    for warning in warnings:
        assert "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0" in warning


@eager_and_traced
@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_case_28_and_k05_a_bare_loop_after_fit_is_not_divided_but_told(
    library, run_eagerly, mode, log
):
    layers = library.layers
    model = library.Sequential([layers.Input((2,)), layers.Dense(1, use_bias=False)])
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0)
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    model.fit(np.zeros((4, 2), "float32"), np.zeros((4, 1), "float32"), verbose=0)
    (weight,) = model.trainable_variables
    before = weight.numpy()
    in_mode(lambda: model.optimizer.apply_gradients([(tf.ones((2, 1)), weight)]), mode)()
    np.testing.assert_allclose(weight.numpy(), before - 0.5, rtol=1e-6)
    (warning,) = log("never scaled")
    assert "scaled_loss = optimizer.scale_loss(loss)" in warning
    assert "gradients = tape.gradient(scaled_loss, variables)" in warning
    assert "Where the loop is a library's" in warning
    assert warning.endswith("then leaves its optimizer alone.")
    assert ("optimizer 'sgd" in warning.lower()) is (library is keras)


@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_gradient_that_the_network_clips_is_clipped_alike_by_the_pattern_of_the_limits(
    is_scaled, log
):
    weight = tf.Variable(tf.ones((4, 4)))
    optimizer = keras.optimizers.SGD(1.0)
    scale = 1.0
    if is_scaled:
        optimizer = amp_tf.LossScaleOptimizer(optimizer)
        scale = optimizer.loss_scale
    optimizer.build([weight])

    @tf.custom_gradient
    def clipped(x):
        return tf.identity(x), lambda d: tf.clip_by_norm(d / scale, 0.125) * scale

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(clipped(tf.ones((2, 4)) @ weight) ** 2))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    step()
    # Eight gradients of one size have the norm 0.125, and each weight gets two of them.
    np.testing.assert_allclose(weight.numpy(), 1 - 2 * 0.125 / 8**0.5, rtol=1e-6)
    assert not log("amp_tf: ")


@pytest.mark.parametrize("is_built", [False, True])
def test_case_29_and_k11_a_float16_loss_is_scaled_in_float32(is_built):
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD())
    if is_built:
        optimizer.build(variables())
    loss = optimizer.scale_loss(tf.constant(3.0, tf.float16))
    assert loss.dtype == tf.float32
    assert loss == 3.0 * 2**15


def test_losses_in_a_nest_are_scaled_each_and_float64_stays():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), 2.0)
    loss = optimizer.scale_loss(
        {"a": tf.constant([1.0, 2.0], tf.bfloat16), "b": tf.constant(0.1, tf.float64)}
    )
    assert loss["a"].numpy().tolist() == [2.0, 4.0]
    assert loss["b"].dtype == tf.float64
    assert float(loss["b"]) == 0.2


@pytest.mark.parametrize(
    ("mode_of_compute", "mode_of_apply"),
    [("function", "eager"), ("eager", "function"), ("function", "function")],
)
def test_case_15_gradients_of_a_scaled_loss_may_be_applied_by_another_function_after_fit(
    mode_of_compute, mode_of_apply, log
):
    weight = tf.Variable([1.0])
    optimizer = sgd_of([weight], 4.0)

    def compute():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight))
        return tape.gradient(loss, weight)

    def apply(gradient):
        optimizer.apply_gradients([(gradient, weight)])

    tf.function(lambda: apply(compute()))()  # as fit does: both in one graph
    compute = in_mode(compute, mode_of_compute)
    apply = in_mode(apply, mode_of_apply)
    for _ in range(2):
        apply(compute())
    assert weight.numpy().tolist() == [-0.5]
    assert not log("never scaled")


def no_gradients(tape, loss, weight):
    return [(tape.gradient(tf.constant(1.0), weight), weight)]


def wrong_shape(tape, loss, weight):
    return [(tf.matmul(tape.gradient(loss, [weight]), tf.ones((4, 5))), weight)]


@pytest.mark.parametrize("trouble", [no_gradients, wrong_shape])
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_case_28_a_trace_that_failed_after_it_scaled_its_loss_hands_nothing_over(
    library, trouble, log
):
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0)
    weight = tf.Variable([1.0])
    graphs = []
    optimizer.build([weight])

    @tf.function
    def failing():
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight))
        optimizer.apply_gradients(trouble(tape, loss, weight))

    @tf.function
    def bare():
        optimizer.apply_gradients([(tf.ones([1]), weight)])

    with pytest.raises(ValueError, match=r"No gradients provided|Dimensions must be equal"):
        failing()
    bare()
    assert weight.numpy().tolist() == [0.5]
    assert len(log("never scaled")) == 1
    gc.collect()
    assert graphs[0]() is None


def pickled(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


@pytest.mark.parametrize(
    "copy",
    [lambda optimizer: optimizer, pytest.param(pickled, marks=since_keras_3_1)],
    ids=["new", "pickled"],
)
def test_case_15_sums_of_scaled_gradients_in_variables_are_unscaled(copy, log):
    weight = tf.Variable([1.0])
    kept = tf.Variable([0.0])
    optimizer = copy(amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0))
    optimizer.build([weight])

    @tf.function
    def accumulate():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight))
        kept.assign_add(tape.gradient(loss, weight))

    accumulate()
    accumulate()
    tf.function(lambda: optimizer.apply([kept / 2.0], [weight]))()
    assert weight.numpy().tolist() == [0.5]
    assert not log("never scaled")


def after_another_worker_set(optimizer, scale, gradient):
    """Returns the gradient, once its step waited for another worker that set the loss scale."""

    def assign(gradient):
        optimizer.loss_scale.assign(scale)
        return gradient

    return tf.ensure_shape(tf.py_function(assign, [gradient], tf.float32), [1])


@eager_and_traced
def test_a_step_divides_by_what_multiplied_its_loss(optimizer, mode):
    weight = tf.Variable([1.0])
    if hasattr(optimizer, "build"):
        optimizer.build([weight])

    def step():
        gradient = scaled_gradient(optimizer, weight)
        gradient = after_another_worker_set(optimizer, 2.0**-20, gradient)
        with tf.control_dependencies([gradient]):
            optimizer.apply_gradients([(gradient, weight)])

    run = in_mode(tf.autograph.experimental.do_not_convert(step), mode)
    for value in (0.5, 0.0):
        run()
        assert weight.numpy().tolist() == [value]


@eager_and_traced
def test_a_loss_scaler_divides_by_what_multiplied_its_loss(mode):
    weight = tf.Variable([1.0])
    scaler = amp_tf.LossScaler(4.0)

    @tf.autograph.experimental.do_not_convert
    def step():
        with tf.GradientTape() as tape:
            loss = scaler.scale(tf.reduce_sum(weight))
        gradient = after_another_worker_set(scaler, 2.0**-20, tape.gradient(loss, weight))
        with tf.control_dependencies([gradient]):
            unscaled = scaler.unscale(gradient)
        scaler.step(lambda gradient: weight.assign_sub(gradient * 0.5), unscaled)

    in_mode(step, mode)()
    assert weight.numpy().tolist() == [0.5]


def test_the_losses_of_one_traced_step_have_one_factor(optimizer):
    weight = tf.Variable([1.0])
    if hasattr(optimizer, "build"):
        optimizer.build([weight])

    @tf.function(autograph=False)
    def step():
        first = scaled_gradient(optimizer, weight)
        first = after_another_worker_set(optimizer, 2.0**-20, first)
        with tf.control_dependencies([first]):
            second = scaled_gradient(optimizer, weight)
            optimizer.apply_gradients([(first + second, weight)])

    step()
    assert weight.numpy().tolist() == [0.0]


def in_one_call(optimizer, weights, gradients):
    for gradient, weight in zip(gradients, weights, strict=True):
        optimizer.apply_gradients([(gradient, weight)])


def in_a_branch(optimizer, weights, gradients):
    def apply():
        in_one_call(optimizer, weights, gradients)
        return tf.constant(0)

    tf.cond(tf.reduce_sum(gradients[1]) > 0.0, apply, lambda: tf.constant(0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("apply", [in_one_call, in_a_branch])
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_groups_of_variables_share_a_loss_though_the_first_one_moves_the_scale(
    library, apply, mode
):
    first = tf.Variable([1.0])
    second = tf.Variable([1.0])
    sgd = library.optimizers.SGD(0.5)
    optimizer = amp_tf.LossScaleOptimizer(sgd, 4.0, dynamic_growth_steps=3)
    optimizer.build([first, second])

    def step(poison):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first) * poison + tf.reduce_sum(second)
            loss = optimizer.scale_loss(loss)
        apply(optimizer, (first, second), tape.gradient(loss, [first, second]))

    run = in_mode(tf.autograph.experimental.do_not_convert(step), mode)
    for number, poison in enumerate((1.0, 1.0, 1.0, np.inf, 1.0)):
        run(tf.constant(poison))
        assert second.numpy().tolist() == [1.0 - 0.5 * (number + 1)]
    assert first.numpy().tolist() == [-1.0]
    assert optimizer.status().skipped == 1


@pytest.mark.parametrize("step_is_inside", [False, True])
def test_a_loop_in_a_function_follows_the_scale_that_another_function_moves(step_is_inside):
    """The inner function is traced once, so that later calls of it are not noticed."""
    weight = tf.Variable([1.0])
    optimizer = sgd_of([weight], 4.0, dynamic_growth_steps=1)

    @tf.function(autograph=False)
    def apply(gradient):
        optimizer.apply_gradients([(gradient, weight)])

    @tf.function(autograph=False)
    def steps():
        for _ in range(4):
            apply(scaled_gradient(optimizer, weight))
        if step_is_inside:
            gradient = scaled_gradient(optimizer, weight)
            optimizer.apply_gradients([(gradient, weight)])

    steps()
    count = 4 + step_is_inside
    assert weight.numpy().tolist() == [1.0 - 0.5 * count]
    assert float(optimizer.loss_scale) == 4.0 * 2.0**count


def make_step(optimizer, weight, scaler, scale):
    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    def step(poison):
        with tf.GradientTape() as tape:
            loss = scale(tf.reduce_sum(weight) * poison)
        scaler.step(apply, scaler.unscale(tape.gradient(loss, [weight])))

    return step


@eager_and_traced
def test_a_loss_scaler_decides_for_the_wrapped_optimizer_that_it_calls(optimizer, mode, log):
    weight = tf.Variable([1.0])
    scaler = amp_tf.LossScaler(8.0)
    step = in_mode(make_step(optimizer, weight, scaler, scaler.scale), mode)
    for poison in (1.0, np.inf, 1.0):
        step(tf.constant(poison))
    assert weight.numpy().tolist() == [0.0]
    assert scaler.status().skipped == 1
    assert scaler.status().steps == 3
    assert optimizer.status().steps == 0
    assert not log("amp_tf: ")


@eager_and_traced
@pytest.mark.parametrize("more", [0.0, 1.0])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_loss_that_both_scale_is_refused(optimizer, is_first, more, mode):
    weight = tf.Variable([1.0])
    scaler = amp_tf.LossScaler()

    def both(loss):
        scales = [scaler.scale, optimizer.scale_loss]
        if is_first:
            scales.reverse()
        loss = scales[0](loss)
        if more:
            loss += more
        return scales[1](loss)

    step = make_step(optimizer, weight, scaler, both)
    step = in_mode(tf.autograph.experimental.do_not_convert(step), mode)
    with pytest.raises(
        amp_tf.CallOrderError, match=r"the loss is scaled twice.*Leave out one of them"
    ):
        step(tf.constant(1.0))
    assert weight.numpy().tolist() == [1.0]


def scaled_gradient(optimizer, weight):
    """A gradient of 1, times the scale."""
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(weight))
    return tape.gradient(loss, weight)


def a_second_loss_is_not_scaled(optimizer, weight):
    optimizer.apply_gradients([(scaled_gradient(optimizer, weight), weight)])
    optimizer.apply_gradients([(tf.ones([1]), weight)])


def both_losses_are_scaled_first(optimizer, weight):
    for gradient in [scaled_gradient(optimizer, weight) for _ in range(2)]:
        optimizer.apply_gradients([(gradient, weight)])


def both_lists_are_unscaled_first(optimizer, weight):
    gradients = [scaled_gradient(optimizer, weight) for _ in range(2)]
    unscaled = [optimizer.get_unscaled_gradients([gradient]) for gradient in gradients]
    for (gradient,) in unscaled:
        optimizer.apply_gradients([(tf.clip_by_norm(gradient, 9.0), weight)])


def one_of_two_steps_logs_unscaled_gradients(optimizer, weight):
    for logs in (True, False):
        gradient = scaled_gradient(optimizer, weight)
        if logs:
            log_unscaled(optimizer, gradient)
        optimizer.apply_gradients([(gradient, weight)])


def unscaled_gradients_are_logged_after_the_step(optimizer, weight):
    for _ in range(2):
        gradient = scaled_gradient(optimizer, weight)
        optimizer.apply_gradients([(gradient, weight)])
        log_unscaled(optimizer, gradient)


def one_update_in_each_branch(optimizer, weight):
    for factor in (1.0, 2.0):
        gradient = scaled_gradient(optimizer, weight)
        tf.cond(
            tf.reduce_sum(weight) * factor > 0.75,
            lambda gradient=gradient: apply_one(optimizer, gradient, weight),
            lambda gradient=gradient: apply_one(optimizer, gradient * 1.0, weight),
        )


def apply_one(optimizer, gradient, weight):
    optimizer.apply_gradients([(gradient, weight)])
    return tf.constant(0)


#: Loops that make two updates, and whether they are told of a loss that is not scaled.
TWO_UPDATES = {
    a_second_loss_is_not_scaled: True,
    both_losses_are_scaled_first: False,
    both_lists_are_unscaled_first: False,
    one_of_two_steps_logs_unscaled_gradients: False,
    unscaled_gradients_are_logged_after_the_step: False,
    one_update_in_each_branch: False,
}


@eager_and_traced
@pytest.mark.parametrize("loop", TWO_UPDATES)
def test_case_28_each_update_is_divided_if_its_own_loss_was_scaled(loop, optimizer, mode, log):
    weight = tf.Variable([1.0])
    if hasattr(optimizer, "build"):
        optimizer.build([weight])
    step = tf.autograph.experimental.do_not_convert(lambda: loop(optimizer, weight))
    run = in_mode(step, mode)
    for moved in (1.0, 2.0):
        run()
        assert weight.numpy().tolist() == [1.0 - moved]
    assert len(log("never scaled")) == TWO_UPDATES[loop]


class SecondObjective(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        (weight,) = self.trainable_variables
        self.optimizer.apply_gradients([(tf.ones_like(weight.value), weight)])
        return logs


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_case_28_a_second_objective_in_train_step_is_not_divided_but_told(run_eagerly, log):
    model = SecondObjective([keras.layers.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    (before,) = model.get_weights()
    model.fit(np.zeros((8, 2), "float32"), np.zeros((8, 1), "float32"), batch_size=4, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], before - 2 * 0.5, rtol=1e-6)
    assert len(log("never scaled")) == 1


def test_case_28_two_steps_of_one_graph_may_share_a_scaled_loss(log):
    """A session chooses between them."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=[1.0])
        optimizer = amp_tf.LossScaleOptimizer(V1.GradientDescentOptimizer(0.5), 4.0)
        (gradient,) = tf.gradients(optimizer.scale_loss(tf.reduce_sum(weight)), [weight])
        one = optimizer.apply_gradients([(gradient, weight)])
        half = optimizer.apply_gradients([(gradient / 2.0, weight)])
        bare = optimizer.apply_gradients([(tf.ones([1]), weight)])
        session.run(tf.compat.v1.global_variables_initializer())
        for step, value in ((one, 0.5), (half, 0.25), (bare, -0.25)):
            session.run(step)
            assert session.run(weight).tolist() == [value]
    assert len(log("never scaled")) == 1


def test_case_28_threads_make_steps_of_their_own(log):
    weight = tf.Variable([1.0])
    optimizer = sgd_of([weight], 4.0)
    with ThreadPoolExecutor(1) as other:

        def compute():
            return other.submit(scaled_gradient, optimizer, weight).result()

        def apply(gradient):
            other.submit(optimizer.apply_gradients, [(gradient, weight)]).result()

        mine = scaled_gradient(optimizer, weight)
        apply(compute())
        again = compute()
        optimizer.apply_gradients([(mine, weight)])
        apply(again)
        assert weight.numpy().tolist() == [-0.5]
    assert not log("never scaled")


def test_case_28_a_thread_may_apply_what_another_computes(log):
    weight = tf.Variable([1.0])
    optimizer = sgd_of([weight], 4.0)
    with ThreadPoolExecutor(1) as other:
        for _ in range(2):
            first = other.submit(scaled_gradient, optimizer, weight).result()
            second = other.submit(scaled_gradient, optimizer, weight).result()
            optimizer.apply_gradients([(first, weight)])
            optimizer.apply_gradients([(second, weight)])
    assert weight.numpy().tolist() == [-1.0]
    assert not log("never scaled")


def test_a_loss_that_one_optimizer_scales_twice_is_refused(optimizer):
    with pytest.raises(amp_tf.CallOrderError, match="the loss is scaled twice"):
        optimizer.scale_loss(optimizer.scale_loss(tf.constant(1.0)))
