"""A script that uses Keras' own mixed precision already: mixed_bfloat16, or the policy in the first argument."""

import json
import sys

import keras
from sklearn.datasets import load_digits

POLICY = sys.argv[1] if sys.argv[1:] else "mixed_bfloat16"
keras.config.set_dtype_policy(POLICY)
keras.utils.set_random_seed(1)
digits = load_digits()
images, labels = (digits.data / 16.0).astype("float32"), digits.target
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(256, "relu"),
        keras.layers.Dense(128, "relu"),
        keras.layers.Dense(10, dtype="float32"),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, jit_compile=False)
history = model.fit(images, labels, 64, 3, shuffle=False, verbose=0).history
optimizers = [model.optimizer]
while hasattr(optimizers[-1], "inner_optimizer"):
    optimizers.append(optimizers[-1].inner_optimizer)
result = {
    "loss": history["loss"],
    "weights": model.layers[0].kernel.dtype,
    "computes_in": model.layers[0].compute_dtype,
    "optimizers": [f"{type(one).__module__.partition('.')[0]}.{type(one).__name__}" for one in optimizers],
}
print(json.dumps(result))
