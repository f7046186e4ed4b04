"""Predicts coverage along DNA from its sequence: a small Basenji on made genomes.

Kelley et al., Sequential regulatory activity prediction across chromosomes with convolutional
neural networks, Genome Research 2018 (doi:10.1101/gr.227819.117): convolutions with pooling,
dilated ones with residuals, Poisson regression.
"""

import argparse
import json

import keras
import numpy as np
from keras import layers

LENGTH = 1024
BIN = 64
TRACKS = 3
#: The binding sites of Jun, Myc, GATA factors, CTCF and the TATA-binding protein.
MOTIFS = ("TGACTCA", "CACGTG", "GATAAG", "CCGCGNGGNGGCAG", "TATAAA")


def make_genome(count, rng):
    """Motifs in random sequence; the reads of a bin follow from the motifs in it and within 200
    bases.
    """
    bases = rng.integers(0, 4, (count, LENGTH))
    places = np.zeros((count, len(MOTIFS), LENGTH), "float32")
    for kind, motif in enumerate(MOTIFS):
        pattern = np.array(["ACGTN".index(base) for base in motif])
        is_fixed = pattern < 4
        for n in range(count):
            occurrences = rng.poisson(2.0)
            for start in rng.integers(0, LENGTH - len(motif), occurrences):
                piece = bases[n, start : start + len(motif)]
                piece[is_fixed] = pattern[is_fixed]
                places[n, kind, start] = 1
    # The motifs in each bin, and whether there is one of a kind nearby.
    in_bins = (count, len(MOTIFS), LENGTH // BIN, BIN)
    bins = places.reshape(in_bins).sum(-1)
    window = np.ones(2 * 200 + 1)
    near = []
    for row in places.reshape(-1, LENGTH):
        near.append(np.convolve(row, window, "same"))
    close = np.minimum(near, 1).reshape(in_bins).max(-1)
    jun, myc, gata, ctcf, tata = np.moveaxis(bins, 1, 0)
    _, myc_near, gata_near, ctcf_near, _ = np.moveaxis(close, 1, 0)
    pair = jun * (1 + 2 * myc_near)
    silenced = gata * (1 - ctcf_near) + tata  # by an insulator
    either = ctcf + myc * gata_near
    activity = np.stack([pair, silenced, either], axis=-1)
    reads = rng.poisson(1.0 + 10.0 * activity)
    return np.eye(4, dtype="float32")[bases], reads.astype("float32")


def new_model(filters=48):
    inputs = x = keras.Input((LENGTH, 4))
    for number, width in enumerate((15, 5, 5)):
        channels = filters * (number + 2) // 2
        x = layers.Conv1D(channels, width, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9)(x)
        x = layers.Activation("gelu")(x)
        x = layers.MaxPooling1D(4)(x)
    for rate in (1, 2, 4):
        y = layers.Conv1D(filters // 2, 3, padding="same", dilation_rate=rate, use_bias=False)(x)
        y = layers.BatchNormalization(momentum=0.9)(y)
        y = layers.Activation("gelu")(y)
        y = layers.Conv1D(x.shape[-1], 1, use_bias=False)(y)
        y = layers.BatchNormalization(momentum=0.9, gamma_initializer="zeros")(y)
        y = layers.Dropout(0.1)(y)
        x = layers.Add()([x, y])
    x = layers.Conv1D(2 * filters, 1)(x)
    x = layers.Activation("gelu")(x)
    tracks = layers.Conv1D(TRACKS, 1, activation="softplus")(x)
    return keras.Model(inputs, tracks)


def correlation(reads, found):
    """Pearson's, the mean over tracks."""
    coefficients = []
    for track in range(TRACKS):
        matrix = np.corrcoef(reads[..., track].ravel(), found[..., track].ravel())
        coefficients.append(matrix[0, 1])
    return float(np.mean(coefficients))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(0)
    sequences, reads = make_genome(min(args.batch * args.steps, 4000), rng)
    held_out, counted = make_genome(500, rng)

    model = new_model()
    model.compile(keras.optimizers.Adam(2e-3, clipnorm=2.0), keras.losses.Poisson())
    epochs = max(args.batch * args.steps // len(sequences), 1)
    model.fit(sequences, reads, batch_size=args.batch, epochs=epochs, verbose=2)
    found = model.predict(held_out, batch_size=100, verbose=0)
    value = correlation(counted, found)
    print(json.dumps({"metric": "Pearson's r", "value": value, "chance": 0.0}))


if __name__ == "__main__":
    main()
