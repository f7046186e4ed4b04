"""fit with the TensorBoard callback: histograms, graph, and a profile of two batches."""

import json
import pathlib
import tempfile

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
digits = load_digits()
images, labels = (digits.data / 16.0).astype("float32"), digits.target
with tempfile.TemporaryDirectory() as folder:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10, "softmax")])
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", jit_compile=False)
    board = keras.callbacks.TensorBoard(folder, histogram_freq=1, write_graph=True, profile_batch=(3, 4))
    history = model.fit(images, labels, 64, 2, shuffle=False, verbose=0, callbacks=[board]).history
    files = sorted({path.suffix for path in pathlib.Path(folder).rglob("*") if path.is_file()})
print(json.dumps({"loss": history["loss"], "files": files}))
