"""Loops that do not scale their loss although the process runs in float16: never divided, told once
what to write.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

import amp_tf
from amp_tf.hooks import scope
from tests.hooks import installing, running
from tests.hooks.loss_scaling.setup import OTHER, X, Y, installed, make_model

STEPS = {
    "apply_gradients": lambda optimizer, gradient, weight: optimizer.apply_gradients(
        [(gradient, weight)]
    ),
    "apply": lambda optimizer, gradient, weight: optimizer.apply([gradient], [weight]),
}


def custom_loop(optimizer, weight, step="apply_gradients"):
    @tf.function
    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight**2)
            loss = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
        STEPS[step](optimizer, tape.gradient(loss, weight), weight)

    tf.distribute.get_strategy().run(train)


def variable():
    return tf.Variable([1.0])


@pytest.mark.parametrize("step", STEPS)
def test_a_custom_loop_in_float16_without_scaling_is_warned_once_with_what_to_write(
    library, step, log
):
    if library is not keras and step == "apply":
        pytest.skip("a method of Keras 3 alone")
    with installed():
        for _ in range(2):
            custom_loop(library.optimizers.SGD(0.5), variable(), step)
    (warning,) = log("custom training loop runs in float16 without loss scaling")
    assert f"SGD.{step}:" in warning or library is not keras
    assert "optimizer = amp_tf.LossScaleOptimizer(optimizer)" in warning
    assert "optimizer.scale_loss(loss)" in warning


def test_a_custom_loop_that_scales_or_does_not_run_in_float16_is_not_warned(library, log):
    with installed():
        custom_loop(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5)), variable())
        for settings in ({"dynamic": False}, {"enabled": False}):
            optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), **settings)
            custom_loop(optimizer, variable())
        custom_loop(keras.optimizers.SGD(0.5, loss_scale_factor=8.0), variable(), "apply")
    with installed(OTHER):
        custom_loop(library.optimizers.SGD(0.5), variable())
    assert not log("custom training loop")


@pytest.fixture(params=[False, True])
def strategy(request):
    """None, or one which calls the inner optimizer on another thread."""
    if not request.param:
        yield tf.distribute.get_strategy()
        return
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    with mirrored.scope():
        yield mirrored


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("wrap", [amp_tf.LossScaleOptimizer, keras.optimizers.LossScaleOptimizer])
@pytest.mark.parametrize("step", STEPS)
def test_the_optimizers_inside_a_wrapper_are_not_warned_of(wrap, step, log):
    with installed():
        optimizer = wrap(keras.optimizers.SGD(0.5))
        weight = variable()
        optimizer.build([weight])
        custom_loop(optimizer, weight, step)
        assert not log("custom training loop")
        custom_loop(keras.optimizers.SGD(0.5), weight, step)
        assert len(log("custom training loop")) == 1


v1 = tf.compat.v1
WARNING = "variables are written by gradients of a loss that is not scaled, in float16"


@pytest.fixture
def weight():
    return tf.Variable(tf.ones((4, 4)))


def gradient_of(weight, scaler=None):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(tf.ones((2, 4)), weight) ** 2)
        loss = loss if scaler is None else scaler(loss)
    return tape.gradient(loss, weight)


def by_tape(weight):
    weight.assign_sub(0.1 * gradient_of(weight))


def by_tf_gradients(weight):
    (gradient,) = tf.gradients(tf.reduce_sum(weight**2), [weight])
    weight.assign(weight - 0.1 * tf.clip_by_norm(gradient, 1.0))


def in_a_branch(weight):
    gradient = gradient_of(weight)
    if tf.reduce_all(tf.math.is_finite(gradient)):
        weight.assign_add(-0.1 * gradient)


def by_rows(weight):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(weight, [0, 2]) ** 2)
    weight.scatter_sub(tape.gradient(loss, weight))


def scaled_by_hand(weight):
    weight.assign_sub(gradient_of(weight, lambda loss: loss * 1024.0) / 1024.0)


@pytest.mark.parametrize(
    "loop",
    [by_tape, by_tf_gradients, in_a_branch, by_rows, scaled_by_hand],
    ids=lambda loop: loop.__name__,
)
def test_a_loop_without_an_optimizer_is_told_once_what_to_write(loop, weight, log):
    with installed():
        for _ in range(2):
            tf.function(loop)(weight)
    (warning,) = log(WARNING)
    for part in (
        f"function '{loop.__name__}': {WARNING}",
        "scaler = amp_tf.LossScaler()",
        "scaled_loss = scaler.scale(loss)",
        "tape.gradient(scaled_loss, variables)",
        "where the program scales its loss itself, set "
        "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0",
    ):
        assert part in warning


def test_a_session_is_told_too(log):
    with installed(), tf.Graph().as_default():
        for use_resource in (False, True):
            weight = v1.get_variable(f"w{use_resource}", initializer=1.0, use_resource=use_resource)
            v1.assign_sub(weight, tf.gradients(weight**2, [weight])[0])
    assert len(log(WARNING)) == len(log("")) == 1


def scaled_by_us(weight):
    scaler = amp_tf.LossScaler()

    def step():
        scaler.step(weight.assign_sub, scaler.unscale(gradient_of(weight, scaler.scale)))

    return step


def scaled_in_keras_own_wrapper(weight):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    norm = tf.Variable(0.0)
    optimizer.build([weight])

    def step():
        gradient = gradient_of(weight, optimizer.scale_loss)
        norm.assign(tf.norm(gradient))
        optimizer.apply([gradient], [weight])

    return step


def statistics(weight):
    mean = tf.Variable(tf.zeros(4))
    count = tf.Variable(0)

    def step():
        x = tf.matmul(tf.ones((2, 4)), weight)
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, axis=0))
        gradient_of(weight)
        count.assign_add(1)

    return step


def test_nothing_is_said_of_a_gradient_penalty_with_the_two_lines(library, strategy, log):
    """The loss of a WGAN-GP's critic, which holds a gradient that nothing scales."""
    x = tf.ones((2, 4))
    with installed():
        weight = tf.Variable(tf.ones((4, 4)))
        shown = tf.Variable(0.0)
        optimizer = amp_tf.LossScaleOptimizer(library.optimizers.Adam())
        optimizer.build([weight])

        def step():
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    score = tf.reduce_sum(tf.tanh(tf.matmul(x, weight)))
                loss = score + tf.norm(inner.gradient(score, x))
                scaled = optimizer.scale_loss(loss)
            optimizer.apply_gradients([(tape.gradient(scaled, weight), weight)])
            shown.assign(loss)

        tf.function(lambda: strategy.run(step))()
    assert not log("amp_tf: ")


@pytest.mark.parametrize(
    "make",
    [scaled_by_us, scaled_in_keras_own_wrapper, statistics],
    ids=lambda make: make.__name__,
)
def test_nothing_is_said_where_a_loss_is_scaled_or_no_gradient_is_written(make, weight, log):
    with installed():
        tf.function(make(weight))()
    assert not log("amp_tf: ")


def test_nothing_is_said_of_a_model_that_fit_trains_or_a_tf1_optimizer_that_is_scaled_by_itself(
    library, log
):
    with installed():
        model = make_model(library)
        model.compile(library.optimizers.Adam(clipnorm=1.0), "mse")
        model.fit(X, Y, verbose=0)
        with tf.Graph().as_default():
            weight = v1.get_variable("w", initializer=np.ones((4, 4), "float32"))
            v1.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_sum(weight**2))
    assert not log(WARNING)


@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_that_another_function_writes_are_told_unless_their_loss_was_scaled(
    scaled, weight, log
):
    scaler = amp_tf.LossScaler()
    with installed():
        compute = tf.function(lambda: gradient_of(weight, scaler.scale if scaled else None))
        tf.function(lambda gradient: weight.assign_sub(gradient))(compute())
    assert len(log(WARNING)) == (not scaled)


PROGRAM = """
import tensorflow as tf
w = tf.Variable(tf.ones((16, 16)))

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.relu(x @ w) @ w)
    w.assign_sub(0.1 * tape.gradient(loss, w))

for _ in range(2):
    tf.function(step, jit_compile=JIT)(tf.ones((4, 16)))
"""


@pytest.mark.parametrize(
    ("jit", "precision", "warned"), [(True, "float16", 1), (False, "bfloat16", 0)]
)
def test_an_unchanged_program_is_warned_in_float16_alone(jit, precision, warned, site_folder):
    program = PROGRAM.replace("JIT", str(jit))
    ended = running.run(
        ["-c", program], site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": precision}
    )
    assert ended.converted > 0
    assert len([line for line in ended.warnings if WARNING in line]) == warned, ended.err


BEFORE = (
    "it trains by gradients that were taken before amp_tf was turned on, or in another program. "
    "Their loss is not scaled"
)


def run_a_session(by_optimizer, hooks=None):
    """Builds a TF1 graph, then runs it inside of some hooks."""
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=np.ones((4, 4), "float32"))
        loss = tf.reduce_sum(tf.matmul(weight, weight))
        if by_optimizer:
            step = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        else:
            step = v1.assign_sub(weight, tf.gradients(loss, [weight])[0])
        with hooks or contextlib.nullcontext(), v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(step)


@pytest.mark.parametrize("by_optimizer", [True, False])
def test_a_graph_that_was_built_before_amp_tf_was_on_is_told_when_it_runs(by_optimizer, log):
    run_a_session(by_optimizer, installed(OTHER))
    assert not log("amp_tf: ")
    for _ in range(2):
        run_a_session(by_optimizer, installed())
    (warning,) = log("amp_tf: ")
    assert f"a TF1 graph: {BEFORE}" in warning
    assert "Turn amp_tf on first, and build the graph" in warning


def test_nothing_is_said_of_a_graph_without_gradients_or_that_was_built_with_amp_tf_on(log):
    with tf.Graph().as_default(), installed(), v1.Session() as session:
        session.run(tf.matmul(tf.ones((4, 4)), tf.ones((4, 4))))
    with installed():
        run_a_session(by_optimizer=True)
    assert not log("amp_tf: ")


@pytest.mark.parametrize("loop", [by_tape, by_tf_gradients], ids=lambda loop: loop.__name__)
def test_a_concrete_function_that_was_made_before_amp_tf_was_on_is_told_when_it_is_called(
    loop, weight, log
):
    step = tf.function(lambda: loop(weight)).get_concrete_function()
    forward = tf.function(lambda: tf.matmul(weight, weight)).get_concrete_function()
    with installed():
        forward()
        assert not log("amp_tf: ")
        step()
        step()
        assert len(log(BEFORE)) == len(log("amp_tf: ")) == 1


@pytest.mark.parametrize("ask", ["run", "callable", "names", "partial"])
def test_of_a_graph_that_trains_only_what_trains_is_told(ask, log):
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=np.ones((4, 4), "float32"))
        loss = tf.reduce_sum(tf.matmul(weight, weight))
        seen = v1.get_variable("seen", initializer=0.0, use_resource=False)
        (gradient,) = tf.gradients(loss, [weight])
        count = v1.assign_add(seen, 1.0)
        step = v1.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(gradient, weight)])
        with tf.control_dependencies([step]):
            after = tf.identity(loss)

        def run(session, *fetches):
            if ask == "run":
                return session.run({"all": fetches})
            if ask == "callable":
                return session.make_callable(list(fetches))()
            if ask == "partial":
                return session.partial_run_setup(list(fetches), [])
            options = config_pb2.CallableOptions(fetch=[tensor.name for tensor in fetches])
            return session._make_callable_from_options(options)

        with installed(), v1.Session() as session:
            session.run(v1.global_variables_initializer())
            run(session, loss, gradient)
            run(session, loss, count)
            assert not log("amp_tf: ")
            run(session, after)
            run(session, after)
            assert len(log(BEFORE)) == len(log("amp_tf: ")) == 1


@pytest.mark.parametrize("scaled", [False, True])
def test_a_graph_of_another_program_is_told_unless_its_loss_is_scaled(scaled, log):
    with tf.Graph().as_default(), installed() if scaled else contextlib.nullcontext():
        weight = v1.get_variable("w", initializer=np.ones((4, 4), "float32"))
        loss = tf.reduce_sum(tf.matmul(weight, weight))
        step = v1.train.AdamOptimizer(0.1).minimize(loss)
        name = step.name
        meta = v1.train.export_meta_graph()
    with tf.Graph().as_default() as graph, installed(), v1.Session() as session:
        v1.train.import_meta_graph(meta)
        session.run(v1.global_variables_initializer())
        session.run(graph.get_operation_by_name(name))
    assert len(log(BEFORE)) == (not scaled)


class Trained(tf.Module):
    """A model with a step that scales its loss, one that does not, and its gradient."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.ones((4, 4)))
        self.scaler = amp_tf.LossScaler()

    @tf.function
    def scaled(self):
        gradient = self.scaler.unscale(gradient_of(self.weight, self.scaler.scale))
        self.scaler.step(lambda found: self.weight.assign_sub(0.1 * found), gradient)
        return {"done": tf.constant(1)}

    @tf.function
    def bare(self):
        by_tape(self.weight)
        return {"done": tf.constant(1)}

    @tf.function
    def gradient(self):
        return {"gradient": gradient_of(self.weight)}


def test_of_the_signatures_of_a_saved_model_the_one_that_trains_unscaled_is_told(log, tmp_path):
    module = Trained()
    signatures = {
        name: getattr(module, name).get_concrete_function()
        for name in ("scaled", "gradient", "bare")
    }
    tf.saved_model.save(module, tmp_path, signatures)
    with installed():
        loaded = tf.saved_model.load(tmp_path)
        loaded.signatures["scaled"]()
        loaded.signatures["gradient"]()
        loaded.scaled()
        assert not log("amp_tf: ")
        loaded.signatures["bare"]()
        assert len(log(BEFORE)) == len(log("amp_tf: ")) == 1


def test_a_function_that_was_traced_before_amp_tf_was_on_is_traced_anew_and_told(weight, log):
    step = tf.function(by_tape)
    step(weight)
    with installing.installed(scope), installed():
        tf.function(lambda: step(weight))()
        step(weight)
    assert len(log(WARNING)) == len(log("amp_tf: ")) == 1
    assert step.experimental_get_tracing_count() == 2
