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
    autograph: bool = False,
) -> None:
    """Runs a function on many draws, with the gradients of its ``loss``, and notes all of it."""

    def step(*inputs: tf.Tensor) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            results = compute(*inputs)
        return results, tape.gradient(results["loss"], variables)

    function = bench.function(step, autograph=autograph)
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


def burgers_equation(bench: Bench) -> None:
    """A physics-informed network: the residual of a viscous flow, and its values at the start and the walls."""
    network = _layers(bench, "net", 2, 40, 40, 40, 1)
    viscosity = 0.01 / math.pi

    def compute(place: tf.Tensor, time: tf.Tensor, start: tf.Tensor) -> dict[str, tf.Tensor]:
        def value_at(place: tf.Tensor, time: tf.Tensor) -> tf.Tensor:
            return _perceptron(network, tf.concat([place, time], 1))

        with tf.GradientTape() as outer:
            outer.watch(place)
            with tf.GradientTape() as inner:
                inner.watch([place, time])
                value = value_at(place, time)
            slope, change = inner.gradient(value, [place, time])
        bend = outer.gradient(slope, place)
        residual = change + value * slope - viscosity * bend
        at_start = value_at(start, tf.zeros_like(start)) + tf.sin(math.pi * start)
        walls = value_at(tf.sign(start), time)
        parts = [tf.reduce_mean(tf.square(part)) for part in (residual, at_start, walls)]
        return {"loss": tf.add_n(parts), "metric residual": parts[0], "value": value, "bend": bend}

    def draw() -> Sequence[Any]:
        place, start = (bench.given(np.tanh(bench.normal(96, 1))) for _ in range(2))
        return place, bench.given(1 / (1 + np.exp(bench.normal(96, 1)))), start

    _with_gradients(bench, compute, _variables(network), draw)


def glucose_dynamics(bench: Bench) -> None:
    """A minimal model of glucose and insulin after a meal, corrected by a network, through Heun's method."""
    network, minutes = _layers(bench, "net", 4, 48, 48, 2, last=0.5), 4.0

    def compute(state: tf.Tensor, meal: tf.Tensor, measured: tf.Tensor) -> dict[str, tf.Tensor]:
        def slope(time: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
            glucose, insulin = state[:, :1], state[:, 1:]
            since = tf.nn.relu(time - 30.0)
            appearance = meal * since / 1600.0 * tf.exp(-since / 40.0)
            hour = tf.fill(tf.shape(glucose), time / 60.0)
            known = tf.concat([(glucose - 110.0) / 30.0, (insulin - 12.0) / 6.0, hour, appearance], 1)
            learned = tf.tanh(_perceptron(network, known)) * tf.constant([[0.3, 0.05]])
            of_glucose = appearance - 0.01 * (glucose - 92.0) - 3e-4 * glucose * (insulin - 8.0)
            of_insulin = 0.005 * tf.nn.relu(glucose - 80.0) - 0.1 * (insulin - 8.0)
            return tf.concat([of_glucose, of_insulin], 1) + learned

        def step(
            number: tf.Tensor, time: tf.Tensor, state: tf.Tensor, path: tf.TensorArray, worst: tf.Tensor
        ) -> tuple[Any, ...]:
            first = slope(time, state)
            second = slope(time + minutes, state + minutes * first)
            worst = tf.maximum(worst, tf.reduce_max(tf.abs(second - first)) * minutes / 2.0)
            state += minutes / 2.0 * (first + second)
            return number + 1, time + minutes, state, path.write(number, state[:, 0]), worst

        path = tf.TensorArray(tf.float32, size=45, element_shape=[16])
        start = (tf.constant(0), tf.constant(0.0), state, path, tf.constant(0.0))
        _, time, end, path, worst = tf.while_loop(lambda number, *_: number < 45, step, start, maximum_iterations=45)
        glucose = tf.transpose(path.stack())
        loss = tf.reduce_mean(tf.square((glucose - measured) / 20.0))
        return {
            "loss": loss,
            "metric mean glucose": tf.reduce_mean(glucose),
            "metric minutes": time,
            "metric worst step": worst,
            "glucose": glucose,
            "end": end,
        }

    def draw() -> Sequence[Any]:
        state = bench.given(np.array([[95.0, 9.0]]) + bench.normal(16, 2) * np.array([[8.0, 2.0]]))
        meal = bench.given(150.0 + bench.normal(16, 1, scale=30.0))
        return state, meal, bench.given(125.0 + bench.normal(16, 45, scale=15.0))

    _with_gradients(bench, compute, _variables(network), draw)


def proximal_policy(bench: Bench) -> None:
    """Advantages by a loop backwards in time, with a discount near one and returns of hundreds."""
    steps, body = 64, _layers(bench, "body", 17, 64, 64)
    policy, critic = _layers(bench, "policy", 64, 6, last=0.1), _layers(bench, "critic", 64, 1)
    drift = bench.normal(64, 6, scale=0.003)

    def compute(seen: tf.Tensor, rewards: tf.Tensor, chance: tf.Tensor) -> dict[str, tf.Tensor]:
        hidden = tf.tanh(_perceptron(body, seen))
        mean = _perceptron(policy, hidden)
        values = 240.0 + 40.0 * _perceptron(critic, hidden)[:, 0]
        frozen = tf.stop_gradient(values)
        running = tf.constant(0.0)
        advantages = tf.TensorArray(tf.float32, size=steps)
        for turn in tf.range(steps - 1, -1, -1):
            later = frozen[tf.minimum(turn + 1, steps - 1)]
            surprise = rewards[turn] + 0.99 * later - frozen[turn]
            running = surprise + 0.99 * 0.95 * running
            advantages = advantages.write(turn, running)
        advantages = advantages.stack()
        returns = advantages + frozen
        normed = (advantages - tf.reduce_mean(advantages)) / (tf.math.reduce_std(advantages) + 1e-8)

        old_mean = tf.stop_gradient(mean + tf.matmul(hidden, drift))
        actions = old_mean + 0.4 * chance

        def log_chance(mean: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(-0.5 * tf.square((actions - mean) / 0.4) - math.log(0.4 * math.sqrt(2 * math.pi)), 1)

        difference = log_chance(mean) - log_chance(old_mean)
        ratio = tf.exp(difference)
        gain = tf.minimum(ratio * normed, tf.clip_by_value(ratio, 0.8, 1.2) * normed)
        of_values = tf.reduce_mean(tf.square(values - returns))
        return {
            "loss": -tf.reduce_mean(gain) + 0.5 * of_values / 1600.0,
            "loss of values": of_values,
            "metric mean return": tf.reduce_mean(returns),
            "metric divergence": tf.reduce_mean(ratio - 1.0 - difference),
            "advantages": advantages,
            "ratio": ratio,
        }

    def draw() -> Sequence[Any]:
        return bench.normal(steps, 17), bench.given(2.4 + bench.normal(steps)), bench.normal(steps, 6)

    _with_gradients(bench, compute, _variables(body, policy, critic), draw, autograph=True)


def survival_of_patients(bench: Bench) -> None:
    """Cox's partial likelihood on clinical values as they are measured, and the chance to survive a year."""
    network, patients = _layers(bench, "net", 12, 48, 48, 1), 192
    means = np.array([64.0, 138.0, 82.0, 1.1, 5.2, 27.0, 140.0, 4.2, 98.0, 13.5, 240.0, 72.0], np.float32)
    spreads = np.array([11.0, 19.0, 11.0, 0.4, 1.1, 4.5, 3.0, 0.5, 20.0, 1.6, 70.0, 12.0], np.float32)

    def compute(values: tf.Tensor, days: tf.Tensor, died: tf.Tensor) -> dict[str, tf.Tensor]:
        risk = _perceptron(network, (values - means) / spreads, tf.nn.selu)[:, 0]  # days fall from row to row
        most = tf.stop_gradient(tf.reduce_max(risk))
        at_risk = tf.cumsum(tf.exp(risk - most))
        likelihood = tf.reduce_sum(died * (risk - most - tf.math.log(at_risk))) / tf.reduce_sum(died)
        hazard = tf.cumsum(died / (at_risk * tf.exp(most)), reverse=True)
        a_year = tf.reduce_sum(tf.where(days <= 365.0, died / (at_risk * tf.exp(most)), 0.0))
        survives = tf.exp(-a_year * tf.exp(risk))
        earlier = (days[:, None] < days[None]) & (died[:, None] > 0)
        right = tf.reduce_sum(tf.where(earlier, tf.sigmoid(10.0 * (risk[:, None] - risk[None])), 0.0))
        brier = tf.reduce_mean(tf.square(tf.cast(days > 365.0, tf.float32) - survives))
        return {
            "loss": -likelihood,
            "metric concordance": right / tf.reduce_sum(tf.cast(earlier, tf.float32)),
            "metric brier": brier,
            "metric hazard in a year": a_year,
            "hazard": hazard,
            "survives": survives,
        }

    def draw() -> Sequence[Any]:
        values = bench.given(means + spreads * bench.normal(patients, 12))
        days = np.sort(1.0 + bench.integers(3650, patients))[::-1].astype(np.float32)
        return values, days.copy(), (bench.integers(3, patients) == 0).astype(np.float32)

    _with_gradients(bench, compute, _variables(network), draw)


class _Calendar(tf.keras.layers.Layer):  # type: ignore[misc]
    """Hours since 2015 to the time of the day, of the week and of the year."""

    def call(self, hours: tf.Tensor) -> tf.Tensor:
        parts = []
        for period in (24.0, 168.0, 8766.0):
            angle = 2.0 * math.pi * tf.math.floormod(hours, period) / period
            parts += [tf.sin(angle), tf.cos(angle)]
        return tf.concat([*parts, (hours - 78000.0) / 8766.0], 1)


def demand_for_energy(bench: Bench) -> None:
    """Keras: three quantiles of a country's load tomorrow, in megawatts, fitted."""
    keras = tf.keras
    hours, history, weather = (keras.Input([size]) for size in (1, 24, 24))
    known = keras.layers.Concatenate()(
        [
            _Calendar()(hours),
            keras.layers.Rescaling(1 / 6200.0, -41000.0 / 6200.0)(history),
            keras.layers.Rescaling(1 / 8.0, -284.0 / 8.0)(weather),
        ]
    )
    hidden = keras.layers.Dense(64, "relu")(known)
    hidden = keras.layers.LayerNormalization()(keras.layers.Dense(64, "relu")(hidden))
    quantiles = keras.layers.Rescaling(6200.0, 41000.0)(keras.layers.Dense(3)(hidden))
    model = keras.Model([hours, history, weather], quantiles)
    model.set_weights(
        [bench.normal(*w.shape, scale=w.shape[0] ** -0.5) if len(w.shape) > 1 else w for w in model.get_weights()]
    )

    def pinball(truth: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        levels = tf.constant([0.1, 0.5, 0.9])
        short = truth - found
        return tf.reduce_mean(tf.maximum(levels * short, (levels - 1.0) * short), -1)

    def percentage(truth: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        return 100.0 * tf.abs(truth[:, 0] - found[:, 1]) / truth[:, 0]

    def width(truth: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        return tf.abs(found[:, 2] - found[:, 0])

    model.compile(keras.optimizers.Adam(1e-3), loss=pinball, metrics=[percentage, width], jit_compile=bench.jit)
    days = 256
    at = (78000.0 + bench.integers(9000, days, 1)).astype(np.float32)
    past = np.sin((at + np.arange(24)[None]) * 2 * np.pi / 24)
    loads = bench.given(41000.0 + 5000.0 * past + bench.normal(days, 24, scale=800.0))
    kelvins = bench.given(284.0 + 3.0 * past + bench.normal(days, 24, scale=2.0))
    labels = bench.given(41000.0 + 5000.0 * past[:, :1] + bench.normal(days, 1, scale=900.0))
    history_of_fit = model.fit([at, loads, kelvins], labels, batch_size=64, epochs=6, shuffle=False, verbose=0).history
    for values in zip(*[history_of_fit[name] for name in ("loss", "percentage", "width")], strict=True):
        for name, value in zip(("loss", "metric percentage", "metric width"), values, strict=True):
            bench.note("", name, value)
    bench.note("", "forecast", model.predict([at, loads, kelvins], batch_size=64, verbose=0))


def taxi_arrivals(bench: Bench) -> None:
    """The time of a ride in New York from coordinates in degrees, with a map of places that the network remembers."""
    places = bench.given(np.array([[40.75, -73.98]]) + bench.normal(48, 2, scale=0.03))
    table = tf.Variable(bench.normal(48, 24), name="table")
    network = _layers(bench, "net", 24 * 2 + 5, 48, 32, 1)

    def kilometres(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        a, b = (p * (math.pi / 180.0) for p in (a, b))
        half = (b - a) / 2.0
        inside = tf.square(tf.sin(half[..., 0]))
        inside += tf.cos(a[..., 0]) * tf.cos(b[..., 0]) * tf.square(tf.sin(half[..., 1]))
        return 2.0 * 6371.0088 * tf.asin(tf.sqrt(inside))

    def bearing(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        a, b = (p * (math.pi / 180.0) for p in (a, b))
        east = b[..., 1] - a[..., 1]
        ahead = tf.cos(a[..., 0]) * tf.sin(b[..., 0]) - tf.sin(a[..., 0]) * tf.cos(b[..., 0]) * tf.cos(east)
        return tf.atan2(tf.sin(east) * tf.cos(b[..., 0]), ahead)

    def compute(start: tf.Tensor, end: tf.Tensor, clock: tf.Tensor, seconds: tf.Tensor) -> dict[str, tf.Tensor]:
        near = []
        for point in (start, end):
            apart = kilometres(point[:, None], tf.constant(places)[None])
            near.append(tf.matmul(tf.nn.softmax(-apart / 0.4), table))
        way, turn = kilometres(start, end), bearing(start, end)
        hour = 2.0 * math.pi * (clock % 86400.0) / 86400.0
        more = tf.stack([tf.math.log(way), tf.sin(turn), tf.cos(turn), tf.sin(hour), tf.cos(hour)], 1)
        pace = tf.nn.softplus(_perceptron(network, tf.concat([*near, more], 1), tf.nn.silu)[:, 0] + 1.5)
        found = 60.0 + 120.0 * pace * way
        loss = tf.reduce_mean(tf.square(tf.math.log(found / seconds)))
        return {
            "loss": loss,
            "metric error in seconds": tf.reduce_mean(tf.abs(found - seconds)),
            "metric kilometres": tf.reduce_mean(way),
            "way": way,
            "arrival": found,
        }

    def draw() -> Sequence[Any]:
        start, end = (bench.given(np.array([[40.75, -73.98]]) + bench.normal(64, 2, scale=0.025)) for _ in range(2))
        clock = bench.integers(604800, 64).astype(np.float32)
        return start, end, clock, bench.given(np.exp(6.6 + bench.normal(64, scale=0.4)))

    _with_gradients(bench, compute, [table, *_variables(network)], draw)


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


def clicks_on_advertisements(bench: Bench) -> None:
    """Keras: two towers and rare clicks, trained batch by batch; the metrics say whether chances can be trusted."""
    keras = tf.keras
    user, item = keras.Input([], dtype="int32"), keras.Input([], dtype="int32")
    context = keras.Input([4])
    towers = []
    for ids, count in ((user, 400), (item, 200)):
        vector = keras.layers.Embedding(count, 24)(ids)
        both = keras.layers.Concatenate()([vector, keras.layers.BatchNormalization()(context)])
        towers.append(keras.layers.Dense(24)(keras.layers.Dense(48, "relu")(both)))
    score = keras.layers.Dot(1)(towers)
    chance = keras.layers.Activation("sigmoid")(keras.layers.Rescaling(0.2, -3.4)(score))
    model = keras.Model([user, item, context], chance)

    def fresh(weight: np.ndarray) -> np.ndarray:
        return bench.normal(*weight.shape, scale=min(weight.shape) ** -0.5) if weight.ndim > 1 else weight

    model.set_weights([fresh(weight) for weight in model.get_weights()])

    def calibration(truth: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(found) / tf.reduce_sum(truth) * tf.ones_like(found)

    def entropy(truth: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        rate = tf.reduce_mean(truth)
        base = -(rate * tf.math.log(rate) + (1.0 - rate) * tf.math.log(1.0 - rate))
        each = -(truth * tf.math.log(found) + (1.0 - truth) * tf.math.log(1.0 - found))
        return tf.reduce_mean(each) / base * tf.ones_like(found)

    model.compile(
        keras.optimizers.Adagrad(0.05),
        loss=keras.losses.BinaryCrossentropy(),
        metrics=[calibration, entropy, keras.metrics.MeanSquaredError(name="brier")],
        jit_compile=bench.jit,
    )
    for _ in range(6):
        people, things = bench.integers(400, 256), bench.integers(200, 256)
        hours, price = np.abs(bench.normal(256, 1, scale=200.0)), np.exp(3.0 + bench.normal(256, 1))
        where = bench.given(np.concatenate([hours, price, bench.normal(256, 2)], 1))
        clicked = (bench.integers(25, 256, 1) == 0).astype(np.float32)
        clicked[0] = 1.0
        answer = model.train_on_batch([people, things, where], clicked, return_dict=True)
        for name, value in answer.items():
            bench.note("", name if name == "loss" else f"metric {name}", value)
        bench.note("", "chance", model.predict_on_batch([people, things, where]))


def transport_of_cells(bench: Bench) -> None:
    """Entropic optimal transport between two populations of cells, in a learned space, by Sinkhorn's loop."""
    network, count = _layers(bench, "net", 50, 48, 12), 64

    def compute(early: tf.Tensor, late: tf.Tensor, growth: tf.Tensor) -> dict[str, tf.Tensor]:
        a, b = (_perceptron(network, x, tf.nn.relu) for x in (early, late))
        cost = tf.reduce_sum(tf.square(a[:, None] - b[None]), -1)
        epsilon = 0.05 * tf.stop_gradient(tf.reduce_mean(cost))
        log_a = tf.nn.log_softmax(growth)
        log_b = -math.log(count) * tf.ones([count])

        def turn(number: tf.Tensor, f: tf.Tensor, g: tf.Tensor) -> tuple[tf.Tensor, ...]:
            f = epsilon * (log_a - tf.reduce_logsumexp((g[None] - cost) / epsilon, 1))
            g = epsilon * (log_b - tf.reduce_logsumexp((f[:, None] - cost) / epsilon, 0))
            return number + 1, f, g

        start = (tf.constant(0), tf.zeros([count]), tf.zeros([count]))
        _, f, g = tf.while_loop(lambda number, *_: number < 30, turn, start, maximum_iterations=30)
        plan = tf.exp((f[:, None] + g[None] - cost) / epsilon)
        fates = tf.matmul(plan / tf.reduce_sum(plan, 1, keepdims=True), late)
        return {
            "loss": tf.reduce_sum(plan * cost),
            "metric mass": tf.reduce_sum(plan),
            "potentials": f,
            "rows": tf.reduce_sum(plan, 1),
            "plan": plan,
            "fates": fates,
        }

    def draw() -> Sequence[Any]:
        falling = 3.0 * np.arange(1, 51) ** -0.5
        early, late = (bench.given(bench.normal(count, 50) * falling + shift) for shift in (0.0, 0.4))
        return early, late, bench.normal(count, scale=0.3)

    _with_gradients(bench, compute, _variables(network), draw)


def deep_kernel_process(bench: Bench) -> None:
    """A Gaussian process over a network's features: float32 features, float64 algebra, temperatures in kelvin."""
    network = _layers(bench, "net", 6, 48, 48, 3)
    length, level = tf.Variable(0.2, name="length"), tf.Variable(281.0, name="level")

    def compute(known: tf.Tensor, kelvins: tf.Tensor, asked: tf.Tensor) -> dict[str, tf.Tensor]:
        a, b = (_perceptron(network, x) for x in (known, asked))

        def kernel(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
            square = tf.reduce_sum(tf.square(a[:, None] - b[None]), -1)
            return 36.0 * tf.exp(-0.5 * square / tf.exp(2.0 * length))

        covariance = tf.cast(kernel(a, a), tf.float64) + 0.5 * tf.eye(72, dtype=tf.float64)
        root = tf.linalg.cholesky(covariance)
        residual = tf.cast(kelvins - level, tf.float64)[:, None]
        solved = tf.linalg.cholesky_solve(root, residual)
        fit = 0.5 * tf.reduce_sum(residual * solved)
        volume = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(root)))
        across = tf.cast(kernel(a, b), tf.float64)
        mean = level + tf.cast(tf.matmul(across, solved, transpose_a=True), tf.float32)[:, 0]
        explained = tf.reduce_sum(tf.square(tf.linalg.triangular_solve(root, across)), 0)
        loss = tf.cast(fit + volume, tf.float32) / 72.0 + 0.5 * math.log(2.0 * math.pi)
        return {
            "loss": loss,
            "metric mean kelvin": tf.reduce_mean(mean),
            "mean": mean,
            "spread": tf.cast(tf.sqrt(36.5 - explained), tf.float32),
        }

    def draw() -> Sequence[Any]:
        known, asked = bench.normal(72, 6), bench.normal(24, 6)
        kelvins = 283.0 + 4.0 * np.sin(known[:, 0]) + 2.0 * known[:, 1] + bench.normal(72, scale=0.7)
        return known, bench.given(kelvins), asked

    _with_gradients(bench, compute, [length, level, *_variables(network)], draw)


def portfolio(bench: Bench) -> None:
    """Daily weights of assets by a network, what a year makes of an index at 4,000, its Sharpe ratio and drawdown."""
    network, days, assets = _layers(bench, "net", 20, 48, 48, 10), 252, 10
    until = np.tril(np.ones([days, days], bool))

    def compute(signals: tf.Tensor, returns: tf.Tensor) -> dict[str, tf.Tensor]:
        held = tf.nn.softmax(_perceptron(network, signals, tf.nn.gelu))
        before = tf.concat([tf.fill([1, assets], 1.0 / assets), held[:-1] * (1.0 + returns[:-1])], 0)
        before /= tf.reduce_sum(before, 1, keepdims=True)
        turnover = tf.reduce_sum(tf.abs(held - before), 1)
        growth = 1.0 + tf.reduce_sum(held * returns, 1) - 2e-4 * turnover
        wealth = 4000.0 * tf.math.cumprod(growth)
        best = tf.reduce_max(tf.where(until, wealth[None], 0.0), 1)
        logs = tf.math.log(growth)
        sharpe = math.sqrt(252.0) * tf.reduce_mean(logs) / tf.math.reduce_std(logs)
        centred = returns - tf.reduce_mean(returns, 0)
        covariance = tf.matmul(centred, centred, transpose_a=True) / (days - 1.0)
        risk = tf.sqrt(252.0 * tf.reduce_sum(tf.matmul(held, covariance) * held, 1))
        return {
            "loss": tf.reduce_mean(risk) - 0.1 * sharpe,
            "metric end": wealth[-1],
            "metric gain": wealth[-1] / 4000.0 - 1.0,
            "metric sharpe": sharpe,
            "metric drawdown": tf.reduce_max(1.0 - wealth / best),
            "metric risk": tf.reduce_mean(risk),
            "metric turnover": tf.reduce_mean(turnover),
            "growth": growth - 1.0,
            "wealth": wealth,
        }

    def draw() -> Sequence[Any]:
        market = bench.normal(days, 1, scale=0.008)
        return bench.normal(days, 20), bench.given(8e-4 + market + bench.normal(days, assets, scale=0.01))

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


def visits_to_a_hospital(bench: Bench) -> None:
    """A point process: attention that fades with the hours between events, and the likelihood of when they happen."""
    patients, events, width = 6, 24, 32
    embedding = tf.Variable(bench.normal(5, width), name="embedding")
    query, key, value = (bench.weight(width, width, name=name) for name in ("query", "key", "value"))
    network, rates = _layers(bench, "net", width, 48, width), _layers(bench, "rates", width, 5, last=0.5)
    fading, slope = tf.Variable(-3.5, name="fading"), tf.Variable([0.02, -0.01, 0.01, -0.02, 0.0], name="slope")
    waves = tf.pow(5000.0, -tf.range(16.0) / 16.0)

    def compute(hours: tf.Tensor, kinds: tf.Tensor) -> dict[str, tf.Tensor]:
        angles = hours[..., None] * waves
        x = tf.gather(embedding, kinds) + tf.concat([tf.sin(angles), tf.cos(angles)], -1)
        scores = tf.einsum("bid,bjd->bij", x @ query, x @ key) / math.sqrt(width)
        passed = hours[:, :, None] - hours[:, None]
        scores -= tf.nn.softplus(fading) * passed
        scores = tf.where(passed >= 0, scores, -1e9)
        x += tf.matmul(tf.nn.softmax(scores), x @ value)
        x += _perceptron(network, x, tf.nn.gelu)
        ahead = _perceptron(rates, x)[:, :-1] - 3.0
        waits = hours[:, 1:] - hours[:, :-1]
        next_kinds = tf.one_hot(kinds[:, 1:], 5)
        at_event = tf.nn.softplus(ahead + slope * waits[..., None])
        happened = tf.reduce_sum(next_kinds * tf.math.log(at_event + 1e-9), -1)
        places = (tf.range(10.0) + 0.5) / 10.0
        between = tf.nn.softplus(ahead[:, :, None] + slope * (waits[..., None] * places)[..., None])
        integral = tf.reduce_mean(tf.reduce_sum(between, -1), -1) * waits
        per_hour = tf.reduce_sum(at_event, -1)
        return {
            "loss": -tf.reduce_mean(happened - integral),
            "metric expected events": tf.reduce_mean(tf.reduce_sum(integral, 1)),
            "metric wait": tf.reduce_mean(1.0 / per_hour),
            "metric error of wait": tf.sqrt(tf.reduce_mean(tf.square(1.0 / per_hour - waits))),
            "integral": integral,
            "rates": at_event,
        }

    def draw() -> Sequence[Any]:
        waits = -20.0 * np.log(1 / (1 + np.exp(bench.normal(patients, events))))
        hours = bench.given(1500.0 + np.cumsum(waits + 0.2, 1))
        return hours, bench.integers(5, patients, events)

    variables = [embedding, query, key, value, fading, slope, *_variables(network, rates)]
    _with_gradients(bench, compute, variables, draw)


RUNS = (
    molecular_forces,
    burgers_equation,
    glucose_dynamics,
    proximal_policy,
    survival_of_patients,
    demand_for_energy,
    taxi_arrivals,
    speech_enhancement,
    clicks_on_advertisements,
    transport_of_cells,
    deep_kernel_process,
    portfolio,
    sphere_tracing,
    visits_to_a_hospital,
)


def programs() -> Iterator[Program]:
    for run in RUNS:
        yield Program(f"strangers/{run.__name__}", run)
