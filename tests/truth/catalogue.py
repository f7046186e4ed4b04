"""All programs, by name: those of each module of ``programs/``.

A new program is a function ``(w: Weights, x: tf.Tensor) -> Results`` in a module whose
``programs()`` returns ``models_in(__name__)``, such as ``squares``. ``w`` makes its variables,
``x`` has the shape (16, 32), and the results, with the scalar ``loss`` among them, are judged with
the gradients of the loss. The function's name, with blanks, is that of the program; helpers begin
with an underscore. What does not train on such an input is a :class:`~tests.truth.bench.Program`
with a function of the bench, as in ``defects``. A new module needs a row of :data:`GROUPS`.
"""

from __future__ import annotations

import importlib
import re

#: Modules of ``programs/``; the order in which they run.
GROUPS = (
    "defects",
    "origins",
    "loops",
    "training",
    "practice",
    "decompositions",
    "squares",
    "bounded",
    "softmaxes",
    "moments",
    "numbers",
    "rules",
    "optimizers",
    "losses",
    "layers",
    "functions",
)
#: pytest runs one in so many of a group, or of what TensorFlow and Keras export; and all defects.
SHARE = 8
SHARE_OF_LIBRARIES = 32
LIBRARIES = ("optimizers", "losses", "layers", "functions")


def all_programs(only=""):
    """The programs whose name a regular expression finds; all by default."""
    for group in GROUPS:
        for program in _programs_of(group):
            if re.search(only, program.name):
                yield program


def sample():
    """Returns the names of the programs that pytest runs, a few of each group."""
    names = []
    for group in GROUPS:
        share = SHARE_OF_LIBRARIES if group in LIBRARIES else SHARE
        if group == "defects":
            share = 1
        names += sorted(program.name for program in _programs_of(group))[::share]
    return names


def _programs_of(group):
    return importlib.import_module(f"tests.truth.programs.{group}").programs()
