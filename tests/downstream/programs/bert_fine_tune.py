"""Fine-tuning of a BERT classifier in tf_keras, built from a config as Hugging Face's TF models are."""

import dataclasses
import json
import random

import numpy as np
import tensorflow as tf
import tf_keras as keras

# Not tf_keras' own set_random_seed: up to 2.18 it does not work on Python 3.12.
random.seed(1)
tf.random.set_seed(1)


@dataclasses.dataclass
class Config:
    vocabulary: int = 200
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    intermediate: int = 128
    positions: int = 32
    labels: int = 2
    epsilon: float = 1e-12
    dropout: float = 0.1


class SelfAttention(keras.layers.Layer):
    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.size = config.heads, config.hidden // config.heads
        self.query, self.key, self.value = (
            keras.layers.Dense(config.hidden, name=n) for n in ("query", "key", "value")
        )
        self.dropout = keras.layers.Dropout(config.dropout, seed=1)

    def split(self, x):
        shape = tf.shape(x)
        return tf.transpose(tf.reshape(x, [shape[0], shape[1], self.heads, self.size]), [0, 2, 1, 3])

    def call(self, x, mask, training=False):
        query, key, value = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = tf.matmul(query, key, transpose_b=True) / tf.math.sqrt(tf.cast(self.size, x.dtype)) + mask
        weights = self.dropout(tf.nn.softmax(scores, axis=-1), training=training)
        context = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
        return tf.reshape(context, [tf.shape(x)[0], tf.shape(x)[1], self.heads * self.size])


class Block(keras.layers.Layer):
    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.attention = SelfAttention(config, name="attention")
        self.output_dense = keras.layers.Dense(config.hidden, name="output_dense")
        self.up = keras.layers.Dense(config.intermediate, activation=keras.activations.gelu, name="up")
        self.down = keras.layers.Dense(config.hidden, name="down")
        self.norms = [keras.layers.LayerNormalization(epsilon=config.epsilon) for _ in range(2)]

    def call(self, x, mask, training=False):
        x = self.norms[0](x + self.output_dense(self.attention(x, mask, training=training)))
        return self.norms[1](x + self.down(self.up(x)))


class Bert(keras.Model):
    def __init__(self, config):
        super().__init__()
        self.words = keras.layers.Embedding(config.vocabulary, config.hidden)
        self.places = keras.layers.Embedding(config.positions, config.hidden)
        self.norm = keras.layers.LayerNormalization(epsilon=config.epsilon)
        self.blocks = [Block(config, name=f"layer_{i}") for i in range(config.layers)]
        self.pooler = keras.layers.Dense(config.hidden, activation="tanh")
        self.classifier = keras.layers.Dense(config.labels)

    def call(self, inputs, training=False):
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        x = self.norm(self.words(ids) + self.places(tf.range(tf.shape(ids)[1])))
        bias = (1.0 - tf.cast(mask[:, None, None, :], tf.float32)) * -10000.0
        for block in self.blocks:
            x = block(x, bias, training=training)
        return self.classifier(self.pooler(x[:, 0]))


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        return 1e-3 * tf.minimum(step / 10.0, (60.0 - step) / 50.0)


config = Config()
random = np.random.default_rng(0)
ids = random.integers(5, config.vocabulary, (512, config.positions))
mask = (np.arange(config.positions) < random.integers(8, config.positions + 1, (512, 1))).astype("int32")
labels = ((ids * mask < 60) & (mask > 0)).sum(axis=1) > 0.28 * mask.sum(axis=1)
model = Bert(config)
model.compile(
    optimizer=keras.optimizers.AdamW(Warmup(), weight_decay=0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
inputs = {"input_ids": ids.astype("int32"), "attention_mask": mask}
history = model.fit(inputs, labels.astype("int32"), 32, 3, shuffle=False, verbose=0).history
logits = model.predict(inputs, 128, verbose=0)
print(json.dumps({"loss": history["loss"], "logits": np.abs(logits).mean().item()}))
