"""Automatic loss scaling: what is wrapped, what is left alone, what is told. The real libraries, patched in process."""

import contextlib
import gc
import subprocess
import sys
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from absl import logging as absl_logging

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.config import AmpConfig
from amp_tf.hooks import loss_scaling, notices
from amp_tf.loss_scaling import is_loss_scaled, keras3
from amp_tf.loss_scaling import tf_keras as wrappers
from tests.hooks import running

v1 = tf.compat.v1
X = np.random.RandomState(0).randn(32, 4).astype("float32")
Y = X.sum(1, keepdims=True)
LIBRARIES = {"keras": keras, "tf_keras": tf_keras}


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


@pytest.fixture
def log(caplog):
    logger, verbosity = absl_logging.get_absl_logger(), absl_logging.get_verbosity()
    logger.propagate = True
    absl_logging.set_verbosity(absl_logging.INFO)
    notices.forget()
    yield lambda part: [r.getMessage() for r in caplog.records if part in r.getMessage()]
    absl_logging.set_verbosity(verbosity)


@contextlib.contextmanager
def installed(in_float16=True, config=None):
    assert loss_scaling.install(config or AmpConfig(precision="float16"), lambda: in_float16)
    try:
        yield
    finally:
        loss_scaling.uninstall()


def make_model(library, cls=None):
    library.utils.set_random_seed(0)
    x = library.layers.Input((4,))
    return (cls or library.Model)(x, library.layers.Dense(1)(library.layers.Dense(8, activation="tanh")(x)))


def is_ours(optimizer):
    return isinstance(optimizer, (keras3.LossScaleOptimizer, wrappers.LossScaleOptimizer))


def test_compile_wraps_and_a_bare_optimizer_gives_the_same_weights(library):
    with installed():
        model = make_model(library)
        model.compile(library.optimizers.SGD(0.0625), "mse")
        assert is_ours(model.optimizer)
        model.fit(X, Y, verbose=0, shuffle=False)
    assert model.optimizer.status().steps == 1
    bare = make_model(library)
    bare.compile(library.optimizers.SGD(0.0625), "mse")
    assert not is_loss_scaled(bare.optimizer)
    bare.fit(X, Y, verbose=0, shuffle=False)
    for actual, expected in zip(model.get_weights(), bare.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_case_30_nothing_is_wrapped_where_graphs_do_not_run_in_float16(library):
    with installed(in_float16=False):
        model = make_model(library)
        model.compile("adam", "mse")
        assert not is_loss_scaled(model.optimizer)


def test_case_30_with_bfloat16_nothing_is_even_patched(library):
    before = library.Model.compile
    assert not loss_scaling.install(AmpConfig(precision="bfloat16"), lambda: True)
    assert library.Model.compile is before


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: amp_tf.LossScaleOptimizer(keras.optimizers.SGD()), keras3.LossScaleOptimizer),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), keras.optimizers.LossScaleOptimizer),
        (lambda: keras.optimizers.SGD(loss_scale_factor=4.0), keras.optimizers.SGD),
    ],
    ids=["ours", "keras", "factor"],
)
def test_case_27_what_scales_already_is_left_alone(make, kind):
    optimizer = make()
    with installed():
        model = make_model(keras)
        model.compile(optimizer, "mse")
    assert model.optimizer is optimizer
    assert type(model.optimizer) is kind


def test_keras_own_wrapping_under_its_policy_is_left_alone(library):
    policy = library.mixed_precision.Policy("mixed_float16") if library is tf_keras else "mixed_float16"
    library.mixed_precision.set_global_policy(policy) if library is tf_keras else keras.config.set_dtype_policy(policy)
    try:
        with installed():
            model = make_model(library)
            model.compile(library.optimizers.SGD(), "mse")
    finally:
        library.mixed_precision.set_global_policy("float32") if library is tf_keras else keras.config.set_dtype_policy(
            "float32"
        )
    assert is_loss_scaled(model.optimizer)
    assert not is_ours(model.optimizer)


def test_compile_may_say_no():
    with installed():
        model = make_model(keras)
        model.compile("sgd", "mse", auto_scale_loss=False)
    assert not is_loss_scaled(model.optimizer)


def test_compiling_twice_with_one_optimizer_works(library):
    optimizer = library.optimizers.SGD(0.0625)
    with installed():
        model = make_model(library)
        for _ in range(2):
            model.compile(optimizer, "mse")
            model.fit(X, Y, verbose=0)
    assert int(optimizer.iterations) == 2


def test_a_saved_model_names_the_bare_optimizer_and_keeps_the_scale(tmp_path):
    with installed():
        model = make_model(keras)
        model.compile(keras.optimizers.Adam(), "mse")
        model.optimizer.loss_scale = 64.0
        model.fit(X, Y, verbose=0)
        model.save(tmp_path / "m.keras")
        again = keras.models.load_model(tmp_path / "m.keras")
        assert again.optimizer.status().scale == 64.0
    code = f"import keras, sys; m = keras.models.load_model({str(tmp_path / 'm.keras')!r}); " + (
        "print(type(m.optimizer).__name__, int(m.optimizer.iterations), 'amp_tf' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert ended.stdout.split() == ["Adam", "1", "False"]


def test_fit_shows_the_scale_without_being_asked(library):
    with installed():
        model = make_model(library)
        model.compile("sgd", "mse")
        history = model.fit(X, Y, epochs=2, verbose=0).history
    assert history["loss_scale"] == [2.0**15, 2.0**15]
    assert history["skipped_steps"] == [0.0, 0.0]


def test_a_monitor_that_the_user_gives_is_the_only_one():
    with installed():
        model = make_model(keras)
        model.compile("sgd", "mse")
        mine = LossScaleMonitor()
        callbacks = keras.callbacks.CallbackList([mine], add_history=True, model=model)
        model.fit(X, Y, verbose=0, callbacks=callbacks)
        assert sum(isinstance(c, LossScaleMonitor) for c in callbacks.callbacks) == 1
        given = model.fit(X, Y, verbose=0, callbacks=[mine]).history
    assert given["skipped_steps"] == [0.0]


def test_patches_are_idempotent_and_reversible(library):
    owners = [library.Model, library.optimizers.Optimizer, v1.train.Optimizer, v1.train.Saver]
    names = ["compile", "apply_gradients", "compute_gradients", "restore"]
    before = [getattr(owner, name) for owner, name in zip(owners, names, strict=True)]
    with installed():
        first = [getattr(owner, name) for owner, name in zip(owners, names, strict=True)]
        loss_scaling.install(AmpConfig(precision="float16"), lambda: True)
        assert [getattr(owner, name) for owner, name in zip(owners, names, strict=True)] == first
        assert all(a is not b for a, b in zip(first, before, strict=True))
    loss_scaling.uninstall()
    assert [getattr(owner, name) for owner, name in zip(owners, names, strict=True)] == before


def test_a_failure_in_the_hook_leaves_the_program_alone_and_says_so_once(log):
    def broken():
        raise OSError("no devices")

    loss_scaling.install(AmpConfig(precision="float16"), broken)
    try:
        for _ in range(2):
            model = make_model(keras)
            model.compile("sgd", "mse")
            model.fit(X, Y, verbose=0)
    finally:
        loss_scaling.uninstall()
    assert not is_loss_scaled(model.optimizer)
    warnings = log("Model.compile: automatic loss scaling failed (OSError: no devices)")
    assert len(warnings) == 1
    assert "Wrap the optimizer in amp_tf.LossScaleOptimizer by hand" in warnings[0]


class ForgetsToScale(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def test_case_28_and_k05_a_train_step_that_does_not_scale_is_not_divided_but_told(log):
    weights = []
    for context in (installed(), contextlib.nullcontext()):
        with context:
            model = make_model(keras, ForgetsToScale)
            model.compile(keras.optimizers.SGD(0.0625), "mse")
            model.fit(X, Y, epochs=3, verbose=0, shuffle=False)
            weights.append(model.get_weights())
    for actual, expected in zip(*weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    warnings = log("never scaled")
    assert len(warnings) == 1
    assert "optimizer.scale_loss(loss)" in warnings[0]


def custom_loop(optimizer, weight):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight**2)
            loss = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    step()


def test_a_custom_loop_in_float16_without_scaling_is_warned_once_with_what_to_write(library, log):
    with installed():
        for _ in range(2):
            custom_loop(library.optimizers.SGD(0.5), tf.Variable([1.0]))
    warnings = log("custom training loop runs in float16 without loss scaling")
    assert len(warnings) == 1
    assert "optimizer = amp_tf.LossScaleOptimizer(optimizer)" in warnings[0]
    assert "optimizer.scale_loss(loss)" in warnings[0]


def test_a_custom_loop_that_scales_or_does_not_run_in_float16_is_not_warned(library, log):
    with installed():
        custom_loop(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5)), tf.Variable([1.0]))
        if library is keras:
            custom_loop(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5)), tf.Variable([1.0]))
    with installed(in_float16=False):
        custom_loop(library.optimizers.SGD(0.5), tf.Variable([1.0]))
    assert not log("custom training loop")


class Session:
    """A TF1 training graph: Adam, clipped between compute_gradients and apply_gradients or minimized."""

    def __init__(self, how="minimize", make=lambda: v1.train.AdamOptimizer(0.1)):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, (None, 3))
            self.weight = v1.get_variable("w", initializer=np.ones((3, 1), "float32"))
            loss = tf.reduce_mean((self.x @ self.weight - 1) ** 2)
            self.steps = v1.train.get_or_create_global_step()
            self.optimizer = make()
            if how == "minimize":
                self.step = self.optimizer.minimize(loss, self.steps)
            else:
                pairs = self.optimizer.compute_gradients(loss)
                gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.5)
                self.step = self.optimizer.apply_gradients(
                    list(zip(gradients, [v for _, v in pairs], strict=True)), self.steps
                )
            self.saver = v1.train.Saver()
            self.initialize = v1.global_variables_initializer()

    def train(self, batches, path=None, restore=None):
        with v1.Session(graph=self.graph) as session:
            session.run(self.initialize)
            if restore:
                self.saver.restore(session, restore)
            for batch in batches:
                session.run(self.step, {self.x: batch})
            if path:
                self.saver.save(session, path)
            return session.run([self.weight, self.steps])

    @property
    def scales(self):
        return [v.op.name for v in self.graph.get_collection("variables") if "loss_scale" in v.op.name]


BATCHES = [np.random.RandomState(i).randn(4, 3).astype("float32") for i in range(5)]
NANS = np.full((4, 3), np.nan, "float32")


@pytest.mark.parametrize("how", ["minimize", "clip"])
def test_tf1_optimizers_scale_by_themselves(how):
    with installed():
        session = Session(how)
        weight, steps = session.train([*BATCHES[:2], NANS, *BATCHES[2:]])
    assert len(session.scales) == 2  # the scale and its counters
    expected, count = Session(how).train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count == 5


def test_case_27_a_tf1_optimizer_that_is_wrapped_is_left_alone():
    def make():
        return v1.mixed_precision.MixedPrecisionLossScaleOptimizer(v1.train.AdamOptimizer(0.1), "dynamic")

    with installed():
        theirs, ours = Session(make=make), Session(make=lambda: amp_tf.LossScaleOptimizer(v1.train.AdamOptimizer(0.1)))
        np.testing.assert_array_equal(theirs.train(BATCHES)[0], ours.train(BATCHES)[0])
    assert len(theirs.scales) == 1
    assert len(ours.scales) == 2


class Delegating(v1.train.Optimizer):
    """As Horovod's DistributedOptimizer does: averages between the two calls to another optimizer."""

    def __init__(self):
        super().__init__(use_locking=False, name="Delegating")
        self._inner = v1.train.AdamOptimizer(0.1)

    def compute_gradients(self, *args, **kwargs):
        return [(g * 1.0, v) for g, v in self._inner.compute_gradients(*args, **kwargs)]

    def apply_gradients(self, *args, **kwargs):
        return self._inner.apply_gradients(*args, **kwargs)


def test_an_optimizer_that_delegates_to_another_is_scaled_once():
    with installed():
        session = Session(make=Delegating)
        weight, steps = session.train([NANS, *BATCHES])
    assert len(session.scales) == 2
    np.testing.assert_array_equal(weight, Session(make=Delegating).train(BATCHES)[0])
    assert steps == 5


def test_case_32_and_k09_a_float32_saver_checkpoint_restores_into_the_scaled_graph(tmp_path, log):
    plain = Session()
    plain.train(BATCHES[:2], path=str(tmp_path / "plain"))
    with installed():
        scaled = Session()
        weight, steps = scaled.train(BATCHES[2:], restore=str(tmp_path / "plain"), path=str(tmp_path / "scaled"))
        again = Session().train([], restore=str(tmp_path / "scaled"))
    expected, count = plain.train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count
    np.testing.assert_array_equal(again[0], weight)
    assert len(log("the loss scale starts at its initial value")) == 1


def test_k09_a_monitored_session_resumes_a_float32_run(tmp_path):
    def train(graph, batches):
        with graph.graph.as_default(), v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            for batch in batches:
                session.run(graph.step, {graph.x: batch})
            return session.run([graph.weight, graph.steps])

    train(Session(), BATCHES[:2])
    with installed():
        weight, steps = train(Session(), BATCHES[2:])
    expected, count = Session().train(BATCHES)
    np.testing.assert_array_equal(weight, expected)
    assert steps == count


def test_a_checkpoint_that_lacks_more_than_the_scale_fails_as_ever(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        other = v1.get_variable("other", initializer=1.0)
        session.run(other.initializer)
        path = v1.train.Saver().save(session, str(tmp_path / "other"))
    with installed(), pytest.raises(tf.errors.NotFoundError):
        Session().train([], restore=path)


def test_a_tf1_optimizer_with_its_wrapper_is_garbage_when_nobody_uses_it():
    with installed():
        session = Session()
    gone = weakref.ref(session.optimizer)
    del session
    gc.collect()
    assert gone() is None


def test_the_default_predicate_asks_the_devices_of_this_process():
    on_cpu = not tf.config.list_physical_devices("GPU")
    assert loss_scaling.resolves_to_float16(AmpConfig(precision="float16"))
    assert loss_scaling.resolves_to_float16(AmpConfig()) is not on_cpu


def test_the_line_at_exit_tells_the_scale_and_the_skipped_steps():
    with installed():
        model = make_model(keras)
        model.compile("sgd", "mse")
        model.fit(np.concatenate([X, X * np.nan]), np.concatenate([Y, Y]), verbose=0, shuffle=False)
    assert "loss scale 2^14, 1 of 2 steps skipped" in loss_scaling.describe()


KERAS_PROGRAM = """
import keras, numpy as np
x = np.random.RandomState(0).randn(64, 16).astype("float32")
layers = [keras.layers.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile("adam", "mse")
x = np.concatenate([x, x[:8] * np.nan])
history = model.fit(x, np.ones((72, 1)), batch_size=8, verbose=0, shuffle=False).history
(scale,), (skipped,) = history["loss_scale"], history["skipped_steps"]
print(type(model.optimizer).__module__, skipped >= 1, scale == 2.0 ** (15 - skipped))  # the first steps may overflow
"""
SESSION_PROGRAM = """
import numpy as np, tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
x = v1.placeholder(tf.float32, (None, 16))
w = v1.get_variable("w", initializer=np.ones((16, 8), "float32"))
step = v1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.nn.relu(tf.matmul(x, w))))
scale = [v for v in v1.global_variables() if "current_loss_scale" in v.op.name]
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    for factor in (1.0, float("nan"), 1.0):
        session.run(step, {x: np.ones((4, 16)) * factor})
    print([float(s) for s in session.run(scale)], np.isfinite(session.run(w)).all())
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (KERAS_PROGRAM, "amp_tf.loss_scaling.keras3 True True"),
        (SESSION_PROGRAM, "[16384.0] True"),
    ],
    ids=["keras", "session"],
)
def test_the_environment_variable_alone_scales_an_unchanged_program(program, expected, site_folder):
    ended = running.run(["-c", program], site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"})
    assert ended.status == 0, ended.err
    assert ended.out.strip().splitlines()[-1] == expected
    assert ended.converted > 0


def test_the_environment_variable_can_leave_the_loss_alone(site_folder):
    variables = {running.SWITCH: "1", f"{running.SWITCH}_LOSS_SCALING": "0", "AMP_TF_PRECISION": "float16"}
    ended = running.run(["-c", SESSION_PROGRAM], site_folder, variables)
    assert ended.status == 0, ended.err
    assert ended.out.strip().splitlines()[-1] == "[] False"
