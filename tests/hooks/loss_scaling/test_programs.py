"""The environment variable alone scales the loss of unchanged programs."""

import pytest

from tests.hooks import running

KERAS_PROGRAM = """
import keras, numpy as np
x = np.random.RandomState(0).randn(64, 16).astype("float32")
layers = [keras.layers.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile("adam", "mse")
x = np.concatenate([x, x[:8] * np.nan])
history = model.fit(x, np.ones((72, 1)), batch_size=8, verbose=0, shuffle=False).history
scale, skipped = model.optimizer.status().scale, model.optimizer.status().skipped
assert set(history) == {"loss"}
# The first steps may overflow.
print(type(model.optimizer).__module__, skipped >= 1, scale == 2.0 ** (15 - skipped))
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
KERAS_V1_PROGRAM = """
import numpy as np, tensorflow as tf
tf.compat.v1.disable_v2_behavior()
import tf_keras
x = np.random.RandomState(0).randn(64, 16).astype("float32")
x = np.concatenate([x, x[:8] * np.nan])
layers = [tf_keras.layers.Dense(32, "relu", input_shape=(16,)), tf_keras.layers.Dense(1)]
model = tf_keras.Sequential(layers)
model.compile(tf_keras.optimizers.legacy.Adam(), "mse")
model.fit(x, np.ones((72, 1)), batch_size=8, verbose=0, shuffle=False)
scale = tf_keras.backend.get_value(model.optimizer.loss_scale)
are_finite = all(np.isfinite(w).all() for w in model.get_weights())
print(type(model.optimizer).__module__, scale < 2.0**15, are_finite)
"""


@pytest.mark.quick
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (KERAS_PROGRAM, "amp_tf.loss_scaling.keras3 True True"),
        (SESSION_PROGRAM, "[16384.0] True"),
        (KERAS_V1_PROGRAM, "amp_tf.loss_scaling.tf_keras True True"),
    ],
    ids=["keras", "session", "tf_keras in TF1's graph mode"],
)
def test_the_environment_variable_alone_scales_an_unchanged_program(program, expected, site_folder):
    ended = running.run(
        ["-c", program], site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
    )
    assert ended.out.strip().splitlines()[-1] == expected
    assert ended.converted > 0


def test_the_environment_variable_can_leave_the_loss_alone(site_folder):
    variables = {
        running.SWITCH: "1",
        f"{running.SWITCH}_LOSS_SCALING": "0",
        "AMP_TF_PRECISION": "float16",
    }
    ended = running.run(["-c", SESSION_PROGRAM], site_folder, variables)
    assert ended.out.strip().splitlines()[-1] == "[] False"


LAYER_PROGRAM = """
import keras, numpy as np, tensorflow as tf

class Eighth(keras.layers.Layer):
    def call(self, x):
        return tf.cast(tf.cast(x, tf.dtypes.experimental.float8_e5m2), "float32")

layers = {"dense": [keras.layers.Dense(8)], "float8": [Eighth(), keras.layers.Dense(8)]}[KIND]
model = keras.Sequential([keras.layers.Input((16,)), *layers])
model.compile("sgd", "mse", jit_compile=False)
x = np.random.RandomState(0).randn(64, 16).astype("float32")
model.fit(x, x[:, :model.output_shape[1]], batch_size=16, epochs=2, verbose=0)
"""


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("dense", ""),
        (
            "float8",
            "TensorFlow's own graph optimizers removed it or failed before amp_tf was asked",
        ),
    ],
)
def test_no_loss_scale_is_told_where_nothing_is_16_bit(kind, why, tmp_path):
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
    ended = running.run(["-c", LAYER_PROGRAM.replace("KIND", repr(kind))], tmp_path, variables)
    assert ("loss scale 2^15" in ended.summary[6]) is (kind == "dense")
    assert why in ended.summary[6]
    assert (ended.converted > 0) is (kind == "dense")
