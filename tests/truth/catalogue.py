"""All programs, by name: those of each module of ``programs/``.

A new program is a function ``(w, x)`` in one of these modules, such as ``squares``: ``w``, the
:class:`~tests.truth.models.Weights`, makes its variables, ``x`` has the shape (16, 32), and the
results, with the scalar ``loss`` among them, are judged with the gradients of the loss. A program
that does not train on such an input is a function ``(bench)``, as in ``origins``. The function's
name, with blanks, is that of the program; helpers begin with an underscore. More programs of a
module come from its ``programs()``. A new module needs a row of :data:`GROUPS`.
"""

import functools
import importlib
import inspect
import re

from tests.truth import models
from tests.truth.bench import Program, title_of

#: Modules of ``programs/``; the order in which they run.
GROUPS = (
    "defects",
    "origins",
    "loops",
    "calls",
    "training",
    "practice",
    "decompositions",
    "squares",
    "bounded",
    "softmaxes",
    "moments",
    "numbers",
    "rules",
    "parts",
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
    module = importlib.import_module(f"tests.truth.programs.{group}")
    not_by_xla = getattr(module, "NOT_BY_XLA", ())
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if name.startswith("_") or function.__module__ != module.__name__:
            continue
        run = {"w, x": functools.partial(models.train, function), "bench": function}.get(
            ", ".join(inspect.signature(function).parameters)
        )
        title = title_of(function)
        if run is not None:
            yield Program(f"{group}/{title}", run, compiled=title not in not_by_xla)
    if hasattr(module, "programs"):
        yield from module.programs()
