"""Every optimizer of Keras 3: what some steps make of weights and of the optimizer's own
variables.
"""

import functools

import keras

from tests.truth.bench import Program, in_a_quarter, public_classes

_STEPS = 6
_ROWS = 32
_WIDTH = 16

#: A larger epsilon where the usual one makes a first step the gradient's sign, which flips where it
#: is near zero.
_SMOOTH = {"epsilon": 1e-2}
ARGUMENTS = {
    **dict.fromkeys(("Adagrad", "AdamW", "Adamax", "Lamb", "Nadam", "ScheduleFreeAdamW"), _SMOOTH),
    "Adam": {"amsgrad": True, **_SMOOTH},
    "SGD": {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.9, "centered": True, **_SMOOTH},
}
#: Settings that every optimizer knows, each a program with SGD and Adam.
SETTINGS = {
    "clipnorm": {"clipnorm": 0.1},
    "clipvalue": {"clipvalue": 0.01},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "use_ema": {"use_ema": True, "ema_momentum": 0.9},
    "weight_decay": {"weight_decay": 0.1},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
}
LEFT_OUT = {
    "Optimizer": "a base class",
    "LossScaleOptimizer": "scales losses itself; amp_tf says so and leaves it alone",
    "MultiOptimizer": "hands weights to other optimizers, which are here",
}


def programs():
    for name in public_classes(keras.optimizers, keras.optimizers.Optimizer):
        if name not in LEFT_OUT:
            yield _program(name, name, {})
    for setting, arguments in SETTINGS.items():
        for name in ("SGD", "Adam"):
            yield _program(f"{name} {setting}", name, arguments)


def _program(title, name, arguments):
    given = {**ARGUMENTS.get(name, {}), **arguments}
    run = functools.partial(_train, name, given)
    return Program(f"keras.optimizers/{title}", run, compiled=in_a_quarter(title))


def _train(name, arguments, bench):
    """A step at a time, as ``fit`` does it."""
    model = keras.Sequential(
        [
            keras.Input((_WIDTH,)),
            keras.layers.Dense(_WIDTH, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(_WIDTH, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    optimizer = getattr(keras.optimizers, name)(**arguments)
    model.compile(optimizer, "mse", jit_compile=bench.jit)
    before = [weight.numpy() for weight in model.weights]
    for _ in range(_STEPS):
        x = bench.normal(_ROWS, _WIDTH)
        y = bench.normal(_ROWS, 4)
        loss = model.train_on_batch(x, y)
        bench.note("1", "loss", loss)
    for variable, start in zip(model.weights, before, strict=True):
        if "float" in variable.dtype:
            bench.note("1", f"move of {variable.path}", variable.numpy() - start)
    for number, variable in enumerate(optimizer.variables):
        if "float" in variable.dtype and variable.shape:
            bench.note("1", f"state {number} {variable.path}", variable.numpy())
