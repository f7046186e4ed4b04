"""Learns energies and forces of small clusters: SchNet, forces as the gradient of the energy.

Schuett et al., SchNet: A continuous-filter convolutional neural network for modeling quantum
interactions, NeurIPS 2017 (arXiv:1706.08566). The teacher is a potential of Finnis and Sinclair
(1984): pairs repel, and the square root of what surrounds an atom binds it.
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

ATOMS = 12
SPECIES = 3
CUTOFF = 5.0


def distances(positions):
    """(batch, atoms, atoms), and which pairs are of two atoms; an atom's to itself is 1."""
    apart = positions[:, :, None] - positions[:, None]
    other = 1.0 - tf.eye(ATOMS, dtype=positions.dtype)
    squares = tf.reduce_sum(apart**2, -1) + 1.0 - other
    return tf.sqrt(squares), other


def teach(species, positions):
    """Energy (eV) and forces (eV/Angstrom) in float64."""
    sizes = tf.constant([1.3, 1.6, 1.9], tf.float64)
    depths = tf.constant([0.6, 1.0, 1.4], tf.float64)
    positions = tf.constant(positions, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(positions)
        far, other = distances(positions)
        size = tf.gather(sizes, species)
        depth = tf.gather(depths, species)
        mean_size = 0.5 * (size[:, :, None] + size[:, None])
        shrunk = far / mean_size - 1.6
        strength = other * tf.sqrt(depth[:, :, None] * depth[:, None])
        repulsion = 0.5 * tf.reduce_sum(strength * tf.exp(-5.0 * shrunk), -1)
        density = tf.reduce_sum(strength * tf.exp(-2.5 * shrunk), -1)
        energy = tf.reduce_sum(repulsion - 1.5 * tf.sqrt(density), -1)
    forces = -tape.gradient(energy, positions)
    return energy.numpy(), forces.numpy()


def make_clusters(count, rng):
    """Atoms near the sites of a small lattice, moved as heat would."""
    lattice = np.meshgrid(range(3), range(2), range(2), indexing="ij")
    sites = 2.5 * np.stack(lattice, -1).reshape(-1, 3)
    positions = sites + rng.normal(0, 0.25, (count, ATOMS, 3))
    species = rng.integers(0, SPECIES, (count, ATOMS))
    parts = (positions, *teach(species, positions))
    return species.astype("int32"), *(part.astype("float32") for part in parts)


def shifted_softplus(x):
    return tf.nn.softplus(x) - np.log(2.0).astype("float32")


def softplus_layer(width):
    return layers.Dense(width, activation=shifted_softplus)


class Interaction(layers.Layer):
    """A continuous-filter convolution over the neighbours of each atom, and a residual."""

    def __init__(self, width):
        super().__init__()
        self.filters = keras.Sequential([softplus_layer(width), softplus_layer(width)])
        self.inside = layers.Dense(width, use_bias=False)
        self.outside = keras.Sequential([softplus_layer(width), layers.Dense(width)])

    def call(self, x, basis, weights):
        filters = self.filters(basis) * weights[..., None]
        gathered = tf.einsum("bijf,bjf->bif", filters, self.inside(x))
        return x + self.outside(gathered)


class SchNet(keras.Model):
    """Species and positions to one energy for each cluster."""

    def __init__(self, width=64, blocks=3):
        super().__init__()
        self.embedding = layers.Embedding(SPECIES, width)
        self.blocks = [Interaction(width) for _ in range(blocks)]
        self.head = keras.Sequential([softplus_layer(width // 2), layers.Dense(1)])
        self.centers = np.linspace(0.0, CUTOFF, 32, dtype="float32")

    def call(self, inputs):
        species, positions = inputs
        far, other = distances(positions)
        basis = tf.exp(-10.0 * (far[..., None] - self.centers) ** 2)
        fading = 0.5 * (tf.cos(np.pi / CUTOFF * far) + 1.0)
        weights = other * tf.where(far < CUTOFF, fading, 0.0)
        x = self.embedding(species)
        for block in self.blocks:
            x = block(x, basis, weights)
        return tf.reduce_sum(self.head(x)[..., 0], -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(0)
    species, positions, energy, forces = make_clusters(min(args.batch * args.steps, 8000), rng)
    held_out = make_clusters(400, rng)
    mean = energy.mean()

    model = SchNet()
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(2e-3, args.steps))

    def predict(species, positions):
        with tf.GradientTape() as tape:
            tape.watch(positions)
            energy = model([species, positions])
        return energy, -tape.gradient(energy, positions)

    @tf.function
    def train_step(species, positions, energy, forces):
        with tf.GradientTape() as tape:
            found_energy, found_forces = predict(species, positions)
            of_energy = tf.reduce_mean((found_energy - energy) ** 2)
            of_forces = tf.reduce_mean((found_forces - forces) ** 2)
            loss = 0.01 * of_energy + of_forces
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    data = tf.data.Dataset.from_tensor_slices((species, positions, energy - mean, forces))
    data = data.shuffle(8000, seed=args.seed).repeat().batch(args.batch).take(args.steps)
    for number, batch in enumerate(data):
        loss = train_step(*batch)
        if number % 100 == 0:
            print(f"step {number}: loss {float(loss):.4f}")

    test = tf.function(predict)
    species, positions, _, forces = held_out
    found = []
    for n in range(0, 400, 50):
        _, some = test(species[n : n + 50], tf.constant(positions[n : n + 50]))
        found.append(some)
    error = 1000 * float(np.abs(np.concatenate(found) - forces).mean())
    chance = 1000 * float(np.abs(forces).mean())
    print(json.dumps({"metric": "force MAE, meV/Å", "value": error, "chance": chance}))


if __name__ == "__main__":
    main()
