"""A script that uses Keras' own mixed_bfloat16 policy already."""

import json

import keras
from sklearn.datasets import load_digits

keras.config.set_dtype_policy("mixed_bfloat16")
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
print(json.dumps({"loss": history["loss"], "weights": model.layers[0].kernel.dtype}))
