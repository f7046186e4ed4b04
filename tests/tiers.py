"""Which tests start processes of their own, found by what they call, which the quick tier keeps,
and their order.

A program in a process of its own takes 5 to 60 seconds, most of it TensorFlow's import.
``scripts/test`` leaves such tests, and others that are marked ``slow``, to ``scripts/test --all``,
but for those that are marked ``quick``: one way in of each kind, and what judges numbers.
"""

import collections
import functools
import inspect
import subprocess
import types
from pathlib import Path

STARTERS = frozenset(
    {subprocess.run, subprocess.Popen, subprocess.check_output, subprocess.check_call}
)
_ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{_ROOT / folder}/" for folder in ("tests", "benchmarks", "scripts"))


def is_quick(item):
    """Tells whether a test, once marked, belongs to the quick tier."""
    marks = {mark.name for mark in item.iter_markers()}
    return "quick" in marks or marks.isdisjoint({"process", "slow"})


def starts_process(item):
    """Tells whether a test or one of its fixtures calls a function that starts a process."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # pytest has no public name for it
    functions = [item.function, *(definitions[-1].func for definitions in fixtures)]
    return any(map(_starts_process, functions))


def long_files_first(items):
    """Tests in the order in which xdist hands out their files: those with slow tests, then those
    that start processes.
    """
    marks = collections.defaultdict(set)
    for item in items:
        marks[item.path].update(mark.name for mark in item.iter_markers())

    def rank(item):
        of_file = marks[item.path]
        return "slow" not in of_file, "process" not in of_file

    return sorted(items, key=rank)


@functools.cache
def _starts_process(function):
    return _reaches(inspect.unwrap(function), set())


def _reaches(function, seen):
    if function in STARTERS:
        return True
    if isinstance(function, type):  # making an object counts as calling its methods
        methods = (value for base in function.__mro__ for value in vars(base).values())
        return any(
            _reaches(method, seen) for method in methods if isinstance(method, types.FunctionType)
        )
    is_ours = isinstance(function, types.FunctionType) and function.__code__.co_filename.startswith(
        _OURS
    )
    if function in seen or not is_ours:
        return False
    seen.add(function)
    return any(_reaches(called, seen) for called in _called(function))


@functools.cache
def _called(function):
    return tuple(dict.fromkeys(_named(function.__code__, function.__globals__)))


def _named(code, names):
    """Yields the functions, and attributes of modules, that a function's code names."""
    known = [names[name] for name in code.co_names if name in names]
    for value in list(known):
        if isinstance(value, types.ModuleType):
            known += [vars(value).get(name) for name in code.co_names]
    for value in known:
        if isinstance(value, (types.FunctionType, type)):
            yield value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # a function or comprehension inside
            yield from _named(constant, names)
