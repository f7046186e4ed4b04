"""The public functions of TensorFlow's mathematical modules, each between two products.

All functions are looked at. Functions that take a float32 tensor, or two, and have a gradient are
called so, and ``arguments`` says how the others are called, some of them without a gradient. A
value on its way from the product to a function is turned into its domain where needed (absolute
values for logarithms), which is found by trying.
"""

import functools
import inspect

import numpy as np
import tensorflow as tf

from tests.truth.bench import ODD, SCALES, Program, in_a_quarter, mean_square
from tests.truth.programs.arguments import EXPLICIT, LEFT_OUT, ROWS, SQUARE

MODULES = tuple(EXPLICIT)
_WIDTH = 16  # of the inputs
# of the second product: the loss is a mean of so many that one rounding of each shows little
_RESULTS = 256
_DRAWS = 4
_SHAPES = {"nn": (ROWS,), "math": (ROWS,), "linalg": (SQUARE, ROWS)}
_DOMAINS = (
    lambda h: h,
    lambda h: tf.abs(h) + 0.1,
    lambda h: 0.9 * tf.tanh(h),
    lambda h: 0.01 + 0.98 * tf.sigmoid(h),
    lambda h: 1.1 + tf.abs(h),
)


def programs():
    for module in MODULES:
        for name in public_functions(module):
            found = find_call(module, name)
            if found is not None:
                shape, call = found
                run = functools.partial(_between_products, shape, call)
                yield Program(f"tf.{module}/{name}", run, compiled=in_a_quarter(name))


def public_functions(module):
    """The names of the functions that a module of TensorFlow exports."""
    found = getattr(tf, module)
    names = []
    for name in sorted(dir(found)):
        exported = getattr(found, name)
        is_function = callable(exported) and not inspect.isclass(exported)
        if is_function and not name.startswith("_"):
            names.append(name)
    return names


@functools.cache
def find_call(module, name):
    """How to call a function, so that its result is finite and has a gradient; ``None`` if that
    cannot be.
    """
    if f"{module}.{name}" in LEFT_OUT:
        return None
    if name in EXPLICIT[module]:
        return EXPLICIT[module][name]
    function = getattr(getattr(tf, module), name)
    for shape in _SHAPES[module]:
        values = np.random.default_rng(3).normal(size=shape)
        h = tf.constant(values.astype(np.float32))
        for domain in _DOMAINS:
            for call in (_with_one, _with_two):
                candidate = functools.partial(call, function, domain)
                if _works(candidate, h):
                    return shape, candidate
    return None


def _with_one(function, domain, h):
    return function(domain(h))


def _with_two(function, domain, h):
    first = domain(h)
    second = domain(tf.roll(0.7 * h, 1, 0))
    return function(first, second)


def _works(call, h):
    try:
        with tf.GradientTape() as tape:
            tape.watch(h)
            result = flat(parts(call(h)))
        gradient = tape.gradient(result, h)
    except Exception:
        return False
    return gradient is not None and bool(tf.reduce_all(tf.math.is_finite(result)))


def parts(result):
    """All float tensors of a result; of a complex one the real and the imaginary part."""
    found = []
    for part in tf.nest.flatten(result):
        if part.dtype.is_complex:
            found += [tf.math.real(part), tf.math.imag(part)]
        elif part.dtype.is_floating:
            found.append(tf.cast(part, tf.float32))
    return found


def flat(tensors):
    """All values, as one row."""
    return tf.concat([tf.reshape(part, [1, -1]) for part in tensors], 1)


def _between_products(shape, call, bench):
    """Product, function, product, loss, and the gradients where there are any."""
    before = bench.weight(_WIDTH, int(np.prod(shape[1:])), name="before")
    trial = tf.constant(bench.normal(*shape))
    example = parts(call(trial))
    width = sum(part.shape.num_elements() for part in example)
    after = bench.weight(width, _RESULTS, name="after")

    def forward(x, target):
        h = tf.reshape(tf.matmul(x, before), shape)
        result = parts(call(h))
        y = tf.matmul(flat(result), after)
        results = {f"result {number}": part for number, part in enumerate(result)}
        return {**results, "output": y, "loss": mean_square(y - target)}

    step = bench.function(forward)
    if _works(call, trial):
        step = bench.step(forward, {"before": before, "after": after})
    for case in (*SCALES, *ODD):
        for _ in range(_DRAWS):
            x = bench.case(case, shape[0], _WIDTH)
            target = bench.normal(1, _RESULTS)
            with bench.attempt():
                bench.note_all(case, step(x, target))
