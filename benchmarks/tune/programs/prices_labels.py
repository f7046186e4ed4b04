"""A regression on prices as they come, in cents.

The weakness: labels, and with them results, beyond float16.
"""

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(1536, 16)).astype("float32")
prices = (2e6 * np.tanh(x[:, :4].sum(1, keepdims=True)) + 3e6).astype("float32")

model = keras.Sequential(
    [
        keras.Input((16,)),
        keras.layers.Dense(64, activation="relu", name="features"),
        keras.layers.Dense(64, activation="relu", name="hidden_a"),
        keras.layers.Dense(64, activation="relu", name="hidden_b"),
        keras.layers.Dense(
            1, kernel_initializer=keras.initializers.RandomNormal(stddev=1e6), name="price"
        ),
    ]
)
model.compile(keras.optimizers.Adam(3e-3), keras.losses.MeanAbsolutePercentageError())


if __name__ == "__main__":
    validation = (x[1024:1280], prices[1024:1280])
    model.fit(
        x[:1024], prices[:1024], validation_data=validation, epochs=10, batch_size=64, verbose=2
    )
