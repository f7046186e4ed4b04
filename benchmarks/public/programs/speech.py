"""Writes down what is said in made spectrograms: convolutions, recurrent layers and CTC.

Graves et al., Connectionist Temporal Classification, ICML 2006, in a small Deep Speech 2 (Amodei et
al., 2015, arXiv:1512.02595).
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

MELS = 32
FRAMES = 112
SOUNDS = 12
MOST = 8


def make_speech(count, rng):
    """Each sound has three formants, moved by the speaker; loud and long as it comes, with silence
    and noise around.
    """
    formants = np.random.default_rng(5).uniform(2, MELS - 2, (SOUNDS, 3))
    mels = np.arange(MELS)[:, None]
    spectra = np.zeros((count, FRAMES, MELS), "float32")
    texts = np.zeros((count, MOST), "int32")
    lengths = rng.integers(3, MOST + 1, count)
    for n in range(count):
        at = rng.integers(0, 6)
        shift = rng.normal(0, 0.6)
        for place in range(lengths[n]):
            sound = rng.integers(SOUNDS)
            texts[n, place] = sound
            frames = rng.integers(6, 13)
            apart = mels - formants[sound] - shift
            shape = np.exp(-(apart**2) / 3).sum(1)
            swell = np.sin(np.linspace(0.3, np.pi - 0.3, frames))
            loudness = rng.uniform(0.7, 1.5)
            spectra[n, at : at + frames] += loudness * swell[:, None] * shape
            at += frames + rng.integers(-1, 2)
    spectra += rng.gamma(1.0, 0.3, spectra.shape)
    return np.log(spectra + 1e-2).astype("float32"), texts, lengths.astype("int32")


def new_model(width=64):
    inputs = keras.Input((FRAMES, MELS))
    x = layers.LayerNormalization()(inputs)
    x = layers.Conv1D(width, 11, strides=2, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    x = layers.ReLU(max_value=20.0)(x)
    for _ in range(2):
        gru = layers.GRU(width, return_sequences=True)
        x = layers.Bidirectional(gru)(x)
    x = layers.Dense(2 * width, activation="relu")(x)
    logits = layers.Dense(SOUNDS + 1)
    x = layers.Dropout(0.2)(x)
    return keras.Model(inputs, logits(x))


def read(path):
    """The sounds of the best path: one that lasts is one, and blanks are none."""
    sounds = []
    before = SOUNDS
    for sound in path:
        if sound not in (before, SOUNDS):
            sounds.append(sound)
        before = sound
    return sounds


def edits(found, text):
    """Levenshtein's distance."""
    row = np.arange(len(text) + 1)
    for n, sound in enumerate(found):
        above = row
        row = np.full(len(text) + 1, n + 1)
        for m, other in enumerate(text):
            changed = above[m] + (sound != other)
            inserted = row[m] + 1
            left_out = above[m + 1] + 1
            row[m + 1] = min(changed, inserted, left_out)
    return int(row[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(0)
    spectra, texts, lengths = make_speech(min(args.batch * args.steps, 4000), rng)
    held_out, spoken, spoken_lengths = make_speech(400, rng)

    model = new_model()
    schedule = keras.optimizers.schedules.ExponentialDecay(3e-3, args.steps, 0.1)
    optimizer = keras.optimizers.Adam(schedule, global_clipnorm=5.0)

    @tf.function
    def train_step(spectra, texts, lengths):
        with tf.GradientTape() as tape:
            logits = model(spectra, training=True)
            frames = tf.fill([tf.shape(logits)[0]], tf.shape(logits)[1])
            losses = tf.nn.ctc_loss(
                texts, logits, lengths, frames, logits_time_major=False, blank_index=SOUNDS
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    data = tf.data.Dataset.from_tensor_slices((spectra, texts, lengths))
    data = data.shuffle(4000, seed=args.seed).repeat().batch(args.batch).take(args.steps)
    for number, batch in enumerate(data):
        loss = train_step(*batch)
        if number % 50 == 0:
            print(f"step {number}: loss {float(loss):.3f}")

    best = model.predict(held_out, batch_size=100, verbose=0).argmax(-1)
    wrong = 0
    for path, text, length in zip(best, spoken, spoken_lengths, strict=True):
        wrong += edits(read(path), text[:length])
    rate = wrong / int(spoken_lengths.sum())
    print(json.dumps({"metric": "label error rate", "value": rate, "chance": 1.0}))


if __name__ == "__main__":
    main()
