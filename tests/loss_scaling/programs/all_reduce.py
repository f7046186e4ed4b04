"""One of two workers that average gradients as Horovod does: between the tape and the optimizer. Prints JSON.

Arguments: this worker's rank and the port at which they meet. The all-reduce is a stand-in for Horovod's, which does
not build for these versions: one socket between the two processes. Where it stands in the program is Horovod's.
"""

import json
import sys
from multiprocessing.connection import Client, Listener

import keras
import numpy as np
import tensorflow as tf

import amp_tf

v1 = tf.compat.v1
STEPS, POISONED = 5, (1, 3)


class Ring:
    """``hvd``: two ranks."""

    def __init__(self, rank, port):
        self.rank = rank
        if rank == 0:
            with Listener(("127.0.0.1", port)) as listener:
                self.connection = listener.accept()
        else:
            self.connection = self.connect(port)

    @staticmethod
    def connect(port):
        while True:
            try:
                return Client(("127.0.0.1", port))
            except ConnectionRefusedError:
                continue

    def exchange(self, *arrays):
        self.connection.send(arrays)
        return [(own + other) / 2 for own, other in zip(arrays, self.connection.recv(), strict=True)]

    def allreduce(self, tensors):
        reduced = tf.numpy_function(self.exchange, tensors, [t.dtype for t in tensors])
        return [tf.ensure_shape(r, t.shape) for r, t in zip(reduced, tensors, strict=True)]


class DistributedOptimizer(v1.train.Optimizer):
    """As ``hvd.DistributedOptimizer`` around a TF1 optimizer: the gradients are averaged when they are computed."""

    def __init__(self, optimizer, ring):
        super().__init__(use_locking=False, name="Distributed")
        self._optimizer, self._ring = optimizer, ring

    def compute_gradients(self, *args, **kwargs):
        gradients, variables = zip(*self._optimizer.compute_gradients(*args, **kwargs), strict=True)
        return list(zip(self._ring.allreduce(list(gradients)), variables, strict=True))

    def apply_gradients(self, *args, **kwargs):
        return self._optimizer.apply_gradients(*args, **kwargs)


def batches(rank, bad):
    """The batches of one worker; the poisoned ones are NaN on the worker ``bad``, and left out if that is ``None``."""
    rng = np.random.RandomState(0)
    for i in range(STEPS):
        own = rng.randn(2, 3).astype("float32")[rank]
        if bad is not None and i in POISONED:
            yield own * np.float32("nan") if rank == bad else own
        yield own


def train_keras(ring, bad):
    weights = [keras.Variable(np.ones(3, "float32")), keras.Variable(np.ones((2, 2), "float32"))]
    values = [w.value for w in weights]
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.Adam(0.1, global_clipnorm=0.5), 2.0**10)
    optimizer.build(weights)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(values[0] * x) + tf.reduce_sum(values[1] ** 2) * x[0])
        gradients = ring.allreduce(tape.gradient(loss, values))  # as hvd.DistributedGradientTape
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    for x in batches(ring.rank, bad):
        step(tf.constant(x))
    status = optimizer.status()
    return {"weights": [w.numpy().tolist() for w in weights], "scale": status.scale, "skipped": status.skipped}


def train_v1(ring, bad):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (3,))
        weight = v1.get_variable("w", initializer=np.ones(3, "float32"))
        inner = DistributedOptimizer(v1.train.AdamOptimizer(0.1), ring)
        optimizer = amp_tf.LossScaleOptimizer(inner, 2.0**10)
        train = optimizer.minimize(tf.reduce_sum(weight**2 * x))
        session.run(v1.global_variables_initializer())
        for batch in batches(ring.rank, bad):
            session.run(train, {x: batch})
        status = optimizer.status(session)
        return {"weights": session.run(weight).tolist(), "scale": status.scale, "skipped": status.skipped}


def main(rank, port):
    ring = Ring(rank, port)
    runs = {"keras": train_keras, "v1": train_v1}
    results = {f"{name}-{bad}": train(ring, bad) for name, train in runs.items() for bad in (None, 0, 1)}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
