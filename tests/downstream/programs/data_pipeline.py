"""Input is most of the program: files, interleave, parallel map with augmentation, cache, window, prefetch."""

import json
import pathlib
import tempfile

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
digits = load_digits()


def write_records(folder):
    for shard in range(4):
        with tf.io.TFRecordWriter(str(pathlib.Path(folder, f"digits-{shard}.tfrecord"))) as writer:
            for image, label in zip(digits.images[shard::4], digits.target[shard::4], strict=True):
                png = tf.io.encode_png((image[..., None] * 15).astype("uint8")).numpy()
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def parse(record):
    kinds = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, kinds)
    return tf.io.decode_png(example["image"], channels=1), example["label"]


def augment(image, label):
    image = tf.image.resize(tf.cast(image, tf.float32) / 255.0, [24, 24])
    image = tf.image.random_brightness(image, 0.1, seed=3)
    return tf.image.per_image_standardization(image), label


with tempfile.TemporaryDirectory() as folder:
    write_records(folder)
    options = tf.data.Options()
    options.deterministic = True
    files = tf.data.Dataset.list_files(f"{folder}/*.tfrecord", shuffle=False)
    data = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=2).map(parse, 2).cache()
    data = data.shuffle(256, seed=5).map(augment, 1).batch(64, drop_remainder=True).prefetch(2).with_options(options)
    model = keras.Sequential(
        [
            keras.Input((24, 24, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.02, 0.9), loss=loss, jit_compile=False)
    history = model.fit(data, epochs=2, verbose=0).history
print(json.dumps({"loss": history["loss"]}))
