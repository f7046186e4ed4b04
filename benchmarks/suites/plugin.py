"""Changes what pytest does while it runs a peer's tests.

Calls of built layers become functions, because amp_tf converts nothing that runs eagerly. A
comparison that fails is tried again within what one 16-bit type allows. Each test's outcome is
written to a file at once, so that it survives a crash.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import pkgutil
import re
import sys
from collections.abc import Callable
from typing import Any, TextIO

import absl.flags
import numpy as np

Call = Callable[..., Any]
_PLAIN = (bool, int, float, str, np.ndarray, np.generic, type(None))
OF_TESTS = re.compile(r"(_test|/test\w*)\.py$")  #: paths of tests, and of what helps them
COMPARISONS = ("assert_allclose", "assert_almost_equal", "assert_array_almost_equal")


class Tolerance:
    """Accepts differences of up to a share of the largest value, and counts how often.

    Args:
        share: 0 accepts nothing.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.used = 0

    def install(self) -> None:
        """Replaces NumPy's comparisons, which TensorFlow's and Keras' own call."""
        for name in COMPARISONS:
            setattr(np.testing, name, self._tolerant(getattr(np.testing, name)))

    def _tolerant(self, strict: Call) -> Call:
        def compare(actual: Any, desired: Any, *rest: Any, **named: Any) -> None:
            __tracebackhide__ = True  # the error's place is the line of the test
            try:
                strict(actual, desired, *rest, **named)
            except AssertionError:
                if _expects_a_difference() or not is_close(actual, desired, self._share):
                    raise
                self.used += 1

        return compare


def _expects_a_difference() -> bool:
    """True inside of an assertion that passes where the comparison fails."""
    return any(frame.function == "assertNotAllClose" for frame in inspect.stack(0))


def is_close(actual: Any, desired: Any, share: float) -> bool:
    """Returns True if floating-point values differ by at most ``share`` of the largest one.

    Infinities, NaNs and integers must be equal.
    """
    ours = np.asarray(actual)
    theirs = np.asarray(desired)
    if {ours.dtype.kind, theirs.dtype.kind} <= set("biuOSU"):
        return False
    if ours.shape != theirs.shape and ours.ndim and theirs.ndim:
        return False
    ours, theirs = np.broadcast_arrays(ours.astype(np.complex128), theirs.astype(np.complex128))
    finite = np.isfinite(ours) & np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return False
    off = np.abs(ours - theirs)[finite].max(initial=0.0)
    largest = np.abs([ours[finite], theirs[finite]]).max(initial=0.0)
    return bool(off <= share * largest)


def call_functions(calls: list[tuple[str, str]], modules: list[str]) -> None:
    """Makes functions of methods of classes and their subclasses, and of modules' functions."""
    for name, method in calls:
        kinds = [pkgutil.resolve_name(name)]
        for kind in kinds:  # which grows meanwhile
            kinds += type.__subclasses__(kind)
            if method in vars(kind):
                is_layer = method == "__call__"
                setattr(kind, method, in_function(vars(kind)[method], False, is_layer))
    for name in modules:
        module = importlib.import_module(name)
        package = sys.modules[module.__package__]  # which has some of them, too
        for attribute, function in list(vars(module).items()):
            if inspect.isfunction(function) and function.__module__ == name:
                wrapped = in_function(function, True)
                for owner in (module, package):
                    if getattr(owner, attribute, None) is function:
                        setattr(owner, attribute, wrapped)


def in_function(call: Call, is_of_module: bool, makes_variables: bool = False) -> Call:
    """The same call, but as a ``tf.function`` where it can be one.

    It runs eagerly inside of another function, for symbolic inputs, and where it cannot be traced;
    errors of the running function are the test's.

    Args:
        call: a function or method.
        is_of_module: runs eagerly where the library calls it, which does so for each op of a
            metric, and a trace takes a hundred times as long as an op.
        makes_variables: of the object that is called, if it has none yet; then it runs eagerly.
    """
    import tensorflow as tf

    @functools.wraps(call)
    def traced_call(*args: Any, **named: Any) -> Any:
        if not tf.executing_eagerly() or _are_symbolic(args, named):
            return call(*args, **named)
        if is_of_module and not OF_TESTS.search(sys._getframe(1).f_code.co_filename):
            return call(*args, **named)
        if makes_variables and not _has_variables(args[0]):
            return call(*args, **named)
        return _trace(call, args, named)

    return traced_call


def _trace(call: Call, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Makes one call in a function, if it can be traced; results have Keras' masks.

    It is no part of ``traced_call``, because AutoGraph rewrites that one's source where a function
    calls it.
    """
    import tensorflow as tf

    kept: dict[str, Any] = {}

    def body() -> list[Any]:
        kept["result"] = call(*args, **named)
        leaves = tf.nest.flatten(kept["result"])
        tensors = [leaf for leaf in leaves if tf.is_tensor(leaf)]
        return [tensors, [getattr(leaf, "_keras_mask", None) for leaf in tensors]]

    try:
        function = tf.function(body, autograph=False).get_concrete_function()
        leaves = tf.nest.flatten(kept["result"])
        if not all(tf.is_tensor(leaf) or isinstance(leaf, _PLAIN) for leaf in leaves):
            return call(*args, **named)  # such as a distribution, with tensors inside
    except Exception:
        return call(*args, **named)
    tensors, masks = function()
    for tensor, mask in zip(tensors, masks, strict=True):
        if mask is not None:
            tensor._keras_mask = mask
    found = iter(tensors)
    return tf.nest.map_structure(
        lambda leaf: next(found) if tf.is_tensor(leaf) else leaf, kept["result"]
    )


def _are_symbolic(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Tells whether a call is one of those that define a functional model."""
    import tensorflow as tf

    leaves = tf.nest.flatten([args, named])
    return any("KerasTensor" in type(leaf).__name__ for leaf in leaves)


def _has_variables(callee: Any) -> bool:
    """Tells whether a layer is built, or a module made its variables."""
    import tensorflow as tf

    if hasattr(callee, "built"):
        return bool(callee.built)
    is_module = isinstance(callee, tf.Module)
    return not is_module or bool(tf.Module.variables.fget(callee))


class Recorder:
    """Writes a line of JSON when a test begins, and one when it ends.

    Args:
        lines: where to.
        tolerance: counts comparisons.
        flags: of absl, which TensorFlow's tests read.
    """

    def __init__(self, lines: TextIO, tolerance: Tolerance, flags: list[str]) -> None:
        self._lines = lines
        self._tolerance = tolerance
        self._flags = flags

    def pytest_pycollect_makeitem(self) -> None:
        """Sets flags once their module is imported; the constructors of tests read them."""
        absl.flags.FLAGS(["pytest", *self._flags], known_only=True)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write(test=report.nodeid, outcome="failed", message=_message(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(test=nodeid)
        self._outcome = "passed"
        self._text = ""
        self._tolerance.used = 0
        self._before = converted()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._outcome = "failed"
            self._text = _message(report)
        elif report.skipped and self._outcome == "passed":
            self._outcome = "skipped"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self._outcome == "passed" and self._tolerance.used:
            self._outcome = "tolerated"
        self._write(
            test=nodeid,
            outcome=self._outcome,
            message=self._text,
            converted=converted() - self._before,
        )

    def _write(self, **row: Any) -> None:
        print(json.dumps(row), file=self._lines, flush=True)


def converted() -> int:
    """The nodes that amp_tf converted in this process so far."""
    reports = sys.modules.get("amp_tf.reporting.reports")
    return reports.totals().converted if reports else 0


def _message(report: Any) -> str:
    """The end of an error's text, and its place, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr)
    if crash:
        text = f"{crash.message} ({os.path.basename(crash.path)}:{crash.lineno})"
    return " ".join(text.split())[-240:]
