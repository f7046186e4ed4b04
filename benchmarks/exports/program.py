"""A program as people write it: trains a small model of many kinds of layers, then exports it to every format.

    python program.py FOLDER [--policy mixed_bfloat16] [--formats saved_model tflite …]

Nothing here knows of amp_tf. The last line is JSON: the losses of training, and for each format the error of its
conversion, or "". ``--read`` loads what was written, in another process without mixed precision, and the last line has
the worst difference of each format's answers from those of the model with the same weights in float32, as a share of
the largest, and the 16-bit types in the file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 8
IMAGES, WORDS = (BATCH, 16, 16, 3), (BATCH, 6)
SIGNATURE = [tf.TensorSpec(IMAGES, tf.float32, name="images"), tf.TensorSpec(WORDS, tf.int32, name="words")]


def build() -> keras.Model:
    """Convolutions, batch normalization, an embedding, attention, an LSTM and dense layers."""
    layers = keras.layers
    images = layers.Input(IMAGES[1:], name="images")
    words = layers.Input(WORDS[1:], dtype="int32", name="words")
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(images)
    x = layers.Activation("relu")(layers.BatchNormalization()(x))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(32, 3, strides=2, activation="relu")(x))
    y = layers.Embedding(100, 32)(words)
    y = layers.LayerNormalization()(layers.Add()([y, layers.MultiHeadAttention(2, 16)(y, y)]))
    y = layers.LSTM(32, unroll=True)(y)  # neither Core ML nor TFLite takes the loop, in float32 either
    z = layers.Dense(64, "silu")(layers.Concatenate()([x, y]))
    return keras.Model([images, words], layers.Dense(10, dtype="float32")(z))


def examples(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, words and labels, of which the labels can be told from both."""
    dice = np.random.default_rng(1)
    labels = dice.integers(0, 10, count)
    images = dice.normal(size=(count, *IMAGES[1:])) + labels[:, None, None, None] / 10
    words = (labels[:, None] * 10 + dice.integers(0, 10, (count, WORDS[1]))) % 100
    return images.astype("float32"), words.astype("int32"), labels


def fine_tune(call: Callable[..., Any], variables: Any) -> list[float]:
    """Trains a loaded module further by a loop of its own; the loss of each step."""
    images, words, labels = (tf.constant(given) for given in examples(64))
    labels = labels[::-1]  # others than those that it knows
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(variables)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, call(images, words)))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return [float(step()) for _ in range(10)]


class Module(tf.train.Checkpoint):
    """A model as a hub has it: a function to call, in training or not, and its variables."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.model = model
        self.variables = [variable.value for variable in model.variables]
        self.trainable_variables = [variable.value for variable in model.trainable_variables]
        batches = [tf.TensorSpec((None, *spec.shape[1:]), spec.dtype) for spec in SIGNATURE]
        for training in (False, True):
            self.__call__.get_concrete_function(batches, training=training)

    @tf.function
    def __call__(self, inputs: list[tf.Tensor], training: bool = False) -> tf.Tensor:
        return self.model(inputs, training=training)


def fixed(model: keras.Model) -> Any:
    """A function of one size of batch, as converters for small devices want it."""
    return tf.function(lambda images, words: model([images, words], training=False), input_signature=SIGNATURE)


def write_tflite(model: keras.Model, file: str, *, half: bool = False) -> None:
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if half:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    pathlib.Path(file).write_bytes(converter.convert())


def write_onnx(model: keras.Model, file: str) -> None:
    import tf2onnx

    tf2onnx.convert.from_function(fixed(model), SIGNATURE, output_path=file)


def write_coreml(model: keras.Model, file: str) -> None:
    import coremltools

    functions = [fixed(model).get_concrete_function()]
    precision = coremltools.precision.FLOAT32
    coremltools.convert(functions, source="tensorflow", compute_precision=precision).save(file)


def write_module(model: keras.Model, folder: str) -> None:
    tf.saved_model.save(Module(model), folder)
    loaded = tf.saved_model.load(folder)
    check_that_it_falls(fine_tune(lambda *given: loaded(list(given), training=True), loaded.trainable_variables))


def write_hub(model: keras.Model, folder: str) -> None:
    import tensorflow_hub
    import tf_keras

    tf.saved_model.save(Module(model), folder)
    inputs = [tf_keras.Input(spec.shape[1:], dtype=spec.dtype) for spec in SIGNATURE]
    tuned = tf_keras.Model(inputs, tensorflow_hub.KerasLayer(folder, trainable=True)(inputs))
    tuned.compile("sgd", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, words, labels = examples(256)
    check_that_it_falls(tuned.fit([images, words], labels[::-1], epochs=3, verbose=0).history["loss"])


def check_that_it_falls(losses: list[float]) -> None:
    if not losses[-1] < losses[0]:
        raise ValueError(f"the loss does not fall: {losses}")


def read_saved_model(folder: str) -> Any:
    loaded = tf.saved_model.load(folder)  # to be kept: its variables live as long as it does

    def call(*given: np.ndarray) -> Any:
        serve = loaded.serve if hasattr(loaded, "serve") else loaded
        return serve([tf.constant(value) for value in given])

    return call


def read_tflite(file: str) -> Any:
    interpreter = tf.lite.Interpreter(file)
    return lambda images, words: interpreter.get_signature_runner()(images=images, words=words).popitem()[1]


def read_onnx(file: str) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    return lambda images, words: session.run(None, {"images": images, "words": words})[0]


def read_weights(file: str) -> Any:
    model = build()
    model.load_weights(file)
    return lambda images, words: model([images, words], training=False)


def read_keras(file: str) -> Any:
    model = keras.models.load_model(file)
    return lambda images, words: model([images, words], training=False)


# Format: the file, how it is written, how it is read (Core ML runs on Apple's machines alone), and what it needs.
FORMATS: dict[str, tuple[str, Callable[..., None], Callable[[str], Any] | None, str]] = {
    "keras": ("model.keras", lambda model, file: model.save(file), read_keras, ""),
    "h5": ("model.h5", lambda model, file: model.save(file), read_keras, ""),
    "weights": ("model.weights.h5", lambda model, file: model.save_weights(file), read_weights, ""),
    "export": ("exported", lambda model, file: model.export(file, verbose=False), read_saved_model, ""),
    "module": ("module", write_module, read_saved_model, ""),
    "hub": ("hub", write_hub, read_saved_model, "tensorflow_hub"),
    "tflite": ("model.tflite", write_tflite, read_tflite, ""),
    "tflite16": ("model16.tflite", lambda model, file: write_tflite(model, file, half=True), read_tflite, ""),
    "onnx": ("model.onnx", write_onnx, read_onnx, "tf2onnx"),
    "coreml": ("model.mlpackage", write_coreml, None, "coremltools"),
}


def types_in(path: pathlib.Path) -> list[str]:
    """The 16-bit types that a SavedModel's graphs, a TFLite, an ONNX or a Core ML model hold."""
    if path.is_dir() and (path / "saved_model.pb").exists():
        from tensorflow.core.protobuf import saved_model_pb2

        graph = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        kinds = {kind for node in nodes for value in node.attr.values() for kind in (value.type, *value.list.type)}
        return sorted({14: "bfloat16", 19: "float16"}[kind] for kind in kinds & {14, 19})
    if path.suffix == ".tflite":
        details = tf.lite.Interpreter(str(path)).get_tensor_details()
        return sorted({detail["dtype"].__name__ for detail in details} & {"float16", "bfloat16"})
    if path.suffix == ".onnx":
        import onnx

        model = onnx.load(str(path))
        kinds = {tensor.data_type for tensor in model.graph.initializer}
        kinds |= {attribute.i for node in model.graph.node for attribute in node.attribute if attribute.name == "to"}
        return sorted({10: "float16", 16: "bfloat16"}[kind] for kind in kinds & {10, 16})
    if path.suffix == ".mlpackage":
        import coremltools

        text = str(coremltools.models.MLModel(str(path), skip_model_load=True).get_spec().mlProgram)
        return ["float16"] if "FLOAT16" in text else []
    return []


def attempt(action: Callable[[], Any]) -> tuple[Any, str]:
    """What an action gives, and the first line of its error, or ""."""
    try:
        return action(), ""
    except Exception as error:  # whatever a converter raises is what is reported
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]


def write(folder: pathlib.Path, formats: list[str]) -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    images, words, labels = examples(256)
    losses = model.fit([images, words], labels, epochs=3, batch_size=32, shuffle=False, verbose=0).history["loss"]
    np.savez(folder / "weights.npz", *model.get_weights())
    errors = {}
    for name in formats:
        file, write_format, _, needs = FORMATS[name]
        if needs and not importlib.util.find_spec(needs):
            errors[name] = f"{needs} is not installed"
        else:
            errors[name] = attempt(lambda write=write_format, file=file: write(model, str(folder / file)))[1]
    return {"losses": losses, "errors": errors}


def read(folder: pathlib.Path, formats: list[str]) -> dict[str, Any]:
    model = build()
    with np.load(folder / "weights.npz") as weights:
        model.set_weights([weights[name] for name in weights.files])
    images, words, _ = examples(BATCH)
    expected = model([images, words], training=False).numpy()
    found: dict[str, Any] = {}
    for name in formats:
        file, _, read_format, _ = FORMATS[name]
        if not (folder / file).exists():
            continue
        off, error = None, ""
        if read_format:
            got, error = attempt(lambda read=read_format, file=file: read(str(folder / file))(images, words))
            off = None if error else float(np.abs(np.asarray(got, "float32") - expected).max() / np.abs(expected).max())
        found[name] = {"off": off, "error": error, "types": types_in(folder / file)}
    return found


def take(folder: pathlib.Path) -> dict[str, str]:
    """The error of each converter that is given a SavedModel."""

    def take_tflite() -> None:
        tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()

    def take_onnx() -> None:
        import tf2onnx

        loaded = tf.saved_model.load(str(folder))
        signature = loaded.signatures["serving_default"]
        given = signature.structured_input_signature[1]
        function = tf.function(lambda *values: signature(**dict(zip(given, values, strict=True))))
        tf2onnx.convert.from_function(function, list(given.values()), output_path=f"{folder}.onnx")

    def take_coreml() -> None:
        import coremltools

        loaded = tf.saved_model.load(str(folder))
        coremltools.convert([loaded.signatures["serving_default"]], source="tensorflow")

    return {
        name: attempt(action)[1]
        for name, action in (("tflite", take_tflite), ("onnx", take_onnx), ("coreml", take_coreml))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--policy", default="float32")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--read", action="store_true", help="load what was written, and compare")
    parser.add_argument("--take", action="store_true", help="FOLDER is a SavedModel that other converters are given")
    options = parser.parse_args()
    if options.take:
        print(json.dumps(take(options.folder)))
        return
    keras.config.set_dtype_policy(options.policy)
    print(json.dumps((read if options.read else write)(options.folder, options.formats)))


if __name__ == "__main__":
    main()
