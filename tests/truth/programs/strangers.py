"""Programs of many fields, written by somebody who does not know by which rules amp_tf converts a program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.truth.bench import Bench, Program

DRAWS = 8
Layers = list[tuple[tf.Variable, tf.Variable]]
Activation = Callable[[tf.Tensor], tf.Tensor]


def _layers(bench: Bench, name: str, *widths: int, last: float = 1.0) -> Layers:
    """Kernels and biases of a perceptron; the last kernel may be small."""
    layers = []
    for number, (inside, outside) in enumerate(itertools.pairwise(widths)):
        kernel = bench.weight(inside, outside, name=f"{name}{number}")
        if number == len(widths) - 2:
            kernel.assign(kernel * last)
        layers.append((kernel, tf.Variable(bench.normal(outside, scale=0.1), name=f"{name}{number} bias")))
    return layers


def _perceptron(layers: Layers, x: tf.Tensor, activation: Activation = tf.tanh) -> tf.Tensor:
    for kernel, bias in layers[:-1]:
        x = activation(tf.matmul(x, kernel) + bias)
    return tf.matmul(x, layers[-1][0]) + layers[-1][1]


def _variables(*networks: Layers) -> list[tf.Variable]:
    return [variable for layers in networks for pair in layers for variable in pair]


def _with_gradients(
    bench: Bench,
    compute: Callable[..., dict[str, tf.Tensor]],
    variables: Sequence[tf.Variable],
    draw: Callable[[], Sequence[Any]],
) -> None:
    """Runs a function on many draws, with the gradients of its ``loss``, and notes all of it."""

    def step(*inputs: tf.Tensor) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            results = compute(*inputs)
        return results, tape.gradient(results["loss"], variables)

    function = bench.function(step)
    for _ in range(DRAWS):
        results, gradients = function(*[tf.constant(value) for value in draw()])
        for name, value in results.items():
            bench.note("", name, value)
        for variable, gradient in zip(variables, gradients, strict=True):
            bench.note("", f"gradient {variable.name.split(':')[0]}", gradient)


def molecular_forces(bench: Bench) -> None:
    """Energies and forces of molecules by continuous filters over distances, with coordinates of a protein's file."""
    atoms, width = 20, 48
    first, second = (np.array([pair for pair in np.ndindex(atoms, atoms) if pair[0] != pair[1]]).T).astype(np.int32)
    centers = tf.linspace(0.0, 5.0, 40)
    embedding = tf.Variable(bench.normal(4, width), name="embedding")
    filters = [_layers(bench, f"filter{block}", 40, width, width) for block in range(2)]
    updates = [_layers(bench, f"update{block}", width, width, width, last=0.3) for block in range(2)]
    readout = _layers(bench, "readout", width, 24, 1)
    references = np.array([-13.61, -1036.1, -1488.9, -2042.6], np.float32)  # electron volts: H, C, N, O

    def energy_of(places: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
        apart = tf.norm(tf.gather(places, first) - tf.gather(places, second), axis=1)
        basis = tf.exp(-10.0 * tf.square(apart[:, None] - centers[None]))
        cutoff = tf.where(apart < 5.0, 0.5 * (tf.cos(math.pi * apart / 5.0) + 1.0), 0.0)
        nodes = tf.gather(embedding, kinds)
        for by_distance, update in zip(filters, updates, strict=True):
            weights = _perceptron(by_distance, basis, tf.nn.softplus) * cutoff[:, None]
            messages = tf.math.unsorted_segment_sum(tf.gather(nodes, second) * weights, first, atoms)
            nodes += _perceptron(update, messages, tf.nn.softplus)
        return tf.reduce_sum(_perceptron(readout, nodes, tf.nn.softplus))

    def compute(places: tf.Tensor, kinds: tf.Tensor, energy: tf.Tensor, forces: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(places)
            binding = energy_of(places, kinds)
        found = -tape.gradient(binding, places)
        loss = 0.01 * tf.square(binding - energy) + tf.reduce_mean(tf.square(found - forces))
        total = binding + tf.reduce_sum(tf.gather(references, kinds))
        return {"loss": loss, "metric binding energy": binding, "metric total energy": total, "forces": found}

    def draw() -> Sequence[Any]:
        grid = np.array(list(np.ndindex(3, 3, 3)))[:atoms] * 1.6 + np.array([31.0, 44.0, 18.0])
        places = bench.given(grid + bench.normal(atoms, 3, scale=0.12))
        return places, bench.integers(4, atoms), bench.given(-80.0), bench.normal(atoms, 3)

    _with_gradients(bench, compute, [embedding, *_variables(*filters, *updates, readout)], draw)


def speech_enhancement(bench: Bench) -> None:
    """A mask on a spectrogram, the signal back by overlapping and adding, and frequencies from phases."""
    network, rate, hop = _layers(bench, "net", 40, 64, 257), 16000.0, 128
    mel = tf.signal.linear_to_mel_weight_matrix(40, 257, 16000, 60.0, 7600.0)

    def decibels(clean: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        share = tf.reduce_sum(clean * found, 1, keepdims=True) / (tf.reduce_sum(clean * clean, 1, keepdims=True) + 1e-8)
        target = share * clean
        left = tf.reduce_sum(tf.square(found - target), 1) + 1e-8
        return 10.0 * tf.math.log(tf.reduce_sum(tf.square(target), 1) / left) / math.log(10.0)

    def compute(noisy: tf.Tensor, clean: tf.Tensor) -> dict[str, tf.Tensor]:
        spectrum = tf.signal.stft(noisy, 512, hop)
        size = tf.abs(spectrum)
        loudness = tf.math.log(tf.matmul(tf.square(size), mel[None]) + 1e-6)
        mask = tf.sigmoid(_perceptron(network, (loudness + 2.0) / 4.0, tf.nn.relu))
        inverse = tf.signal.inverse_stft_window_fn(hop)
        found = tf.signal.inverse_stft(spectrum * tf.complex(mask, tf.zeros_like(mask)), 512, hop, window_fn=inverse)
        inner = slice(512, 3072)
        phase = tf.math.angle(spectrum)
        expected = 2.0 * math.pi * hop / 512.0 * tf.range(257.0)
        turn = phase[:, 1:] - phase[:, :-1] - expected
        turn -= 2.0 * math.pi * tf.round(turn / (2.0 * math.pi))
        frequency = (expected + turn) * rate / (2.0 * math.pi * hop)
        weight = tf.square(size[:, 1:] * mask[:, 1:])
        centroid = tf.reduce_sum(weight * frequency, -1) / tf.reduce_sum(weight, -1)
        ratio = decibels(clean[:, inner], found[:, inner])
        return {
            "loss": -tf.reduce_mean(ratio) + 20.0,
            "metric centroid": tf.reduce_mean(centroid),
            "loudness": loudness,
            "centroid": centroid,
            "found": found[:, inner],
        }

    def draw() -> Sequence[Any]:
        time = np.arange(3584)[None] / rate
        pitch = 120.0 + bench.integers(100, 3, 1)
        voice = sum(np.sin(2 * np.pi * pitch * k * time + k) / k for k in range(1, 9)) * 0.12
        clean = bench.given(voice)
        return bench.given(clean + bench.normal(3, 3584, scale=0.03)), clean

    _with_gradients(bench, compute, _variables(network), draw)


def sphere_tracing(bench: Bench) -> None:
    """Rays through pixels of a photograph march until a learned surface; normals, shading, and the pixels' error."""
    network = _layers(bench, "net", 24, 48, 48, 1, last=0.15)
    colours = _layers(bench, "colours", 6, 32, 3)
    frequencies = tf.pow(2.0, tf.range(4.0))

    def distance(points: tf.Tensor) -> tf.Tensor:
        angles = tf.reshape(points[..., None] * frequencies, [-1, 12])
        bumps = _perceptron(network, tf.concat([tf.sin(angles), tf.cos(angles)], 1), tf.nn.softplus)[:, 0]
        return tf.norm(points, axis=1) - 1.0 + 0.2 * bumps

    def compute(pixels: tf.Tensor, pose: tf.Tensor, photograph: tf.Tensor) -> dict[str, tf.Tensor]:
        rays = tf.concat([(pixels - 400.0) / 1111.1 * tf.constant([1.0, -1.0]), -tf.ones([128, 1])], 1)
        rays = tf.math.l2_normalize(tf.matmul(rays, pose[:, :3], transpose_b=True), 1)
        eye = pose[:, 3]

        def march(number: tf.Tensor, depth: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return number + 1, depth + 0.7 * distance(eye + depth[:, None] * rays)

        start = (tf.constant(0), tf.fill([128], 2.0))
        _, depth = tf.while_loop(lambda number, _: number < 24, march, start, maximum_iterations=24)
        points = eye + tf.stop_gradient(depth)[:, None] * rays
        with tf.GradientTape() as tape:
            tape.watch(points)
            left = distance(points)
        normals = tape.gradient(left, points)
        eikonal = tf.reduce_mean(tf.square(tf.norm(normals, axis=1) - 1.0))
        facing = tf.math.l2_normalize(normals, 1)
        shade = tf.sigmoid(_perceptron(colours, tf.concat([points, facing], 1), tf.nn.relu))
        light = tf.nn.relu(tf.reduce_sum(facing * tf.constant([0.4, -0.6, 0.69]), 1, keepdims=True))
        error = tf.reduce_mean(tf.square(shade * (0.3 + 0.7 * light) - photograph))
        return {
            "loss": error + 0.1 * eikonal + tf.reduce_mean(tf.square(left)),
            "metric signal to noise": -10.0 * tf.math.log(error) / math.log(10.0),
            "metric depth": tf.reduce_mean(depth),
            "depth": depth,
            "points": points,
            "normals": facing,
        }

    def draw() -> Sequence[Any]:
        turn, up = 0.7 + bench.normal(), -0.5
        around = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
        tilt = np.array([[1, 0, 0], [0, -np.sin(up), -np.cos(up)], [0, np.cos(up), -np.sin(up)]])
        pose = around @ tilt
        pose = bench.given(np.concatenate([pose, 4.0 * pose[:, 2:]], 1))
        pixels = bench.given(290.0 + bench.integers(220, 128, 2))
        return pixels, pose, bench.given(1 / (1 + np.exp(bench.normal(128, 3))))

    _with_gradients(bench, compute, _variables(network, colours), draw)


RUNS = (
    molecular_forces,
    speech_enhancement,
    sphere_tracing,
)


def programs() -> Iterator[Program]:
    for run in RUNS:
        yield Program(f"strangers/{run.__name__}", run)
