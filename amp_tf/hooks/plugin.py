"""TensorFlow's pluggable graph optimizer, with a rewrite in Python behind it.

Source of the mechanism: tensorflow/c/experimental/grappler/grappler.h. TensorFlow calls the
optimizer for the graph of each session, tf.function, Keras step and SavedModel function before its
first run: twice per graph, on threads of its own, several at once. A registration lasts as long as
the process; :func:`uninstall` makes the optimizer the identity.

The shim has no TensorFlow symbols and no create or destroy functions. It passes the serialized
graph to Python. It is the identity when no callback is set, in a child forked after a first graph,
and once shutdown has begun; removing the callback waits for calls in flight. It knows whether it is
registered, because TensorFlow aborts on a second registration. Both device types are always
registered, because which GPUs exist must not be asked when TensorFlow is imported. A child forked
before the first graph takes the callback over: no visit in its parent can have left a lock taken.
After the first graph, TensorFlow's own threads are missing in a child too.

*TensorFlow's layout optimizer* is off while the plugin is registered. It runs before any plugin and
moves float32 convolutions on GPUs to NCHW; those that then become 16 bit would stay there, between
Transposes, although tensor cores want NHWC. Convolutions that stay in float32 pay for this on GPUs
before Ampere, or without TF32. The toggle is read at registration, when the GPUs are not known yet,
and :func:`uninstall` does not undo it.

*Threads.* Each visit of a graph runs on a thread of the shim's own. TensorFlow's thread waits until
it has Python's lock, as long as nothing shows that the lock's holder waits for the graph. TFLite's
converter does: it holds the lock while TensorFlow optimizes its graphs on other threads, so a visit
gives up at once while the converter is at work. For other calls the sign is a minute in which the
process computed nothing. Also, Python runs signal handlers on the main thread only: an exception of
theirs would end in a rewrite that ran there, and not in the program.

*Second visits.* TensorFlow runs its optimizers over each graph twice, one visit right after the
other on the same thread, and does not say which it is. No model of the suite changed at the second
one, which took half of a first step's extra time. So a graph that was just rewritten is recognized,
once, by one of our casts and the same nodes to preserve. Graphs in which nothing changed are
painted twice: they may be a retrace with other shapes.

*Input pipelines* stay in float32 (:mod:`amp_tf.hooks.input_pipelines`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from amp_tf.config import DISABLE_VAR, AmpConfig, variable_of
from amp_tf.errors import ConfigError
from amp_tf.graph.names import CAST_SUFFIX
from amp_tf.graph.sizes import Shape, Shapes
from amp_tf.hooks import input_pipelines, native, notices, state, summary, xla
from amp_tf.hooks.conflicts import OTHER_PLUGIN, WITHOUT_IT, other_graph_plugins
from amp_tf.hooks.internals import TFLITE_CONVERTER
from amp_tf.hooks.native import DEVICE_TYPES, ItemShapes, Shim, Skip
from amp_tf.hooks.patches import Patches
from amp_tf.hooks.summary import name_in_python
from amp_tf.reporting import reports
from amp_tf.reporting.text import plural
from amp_tf.rewriting import pipeline

Convert = Callable[[bytes, frozenset[str], Shapes], bytes | None]

_WHERE = "Grappler plugin"
_OF_SESSIONS = "tf_graph"  # TensorFlow's name for the graph of each session
# Attributes by which TensorFlow marks calls of XLA-compiled functions
# (tensorflow/compiler/jit/defs.h).
_XLA_MARKS = (b"_XlaMustCompile", b"_XlaRun")
_THREADS = 1024  #: the most threads whose first visits are remembered; far fewer visit at once


class _Shims(dict[str, Shim]):
    """The shims that TensorFlow has, by their device types."""


def _waiting() -> int:
    """The number of TensorFlow's thread that waits for this one, or its own."""
    # The kernel uses a number again only when all were used, Python's own get_ident() at once.
    number: int = getattr(state.current().here, "waiting", threading.get_native_id())
    return number


def _shapes_of_call(thread: int) -> list[Shape | None]:
    """Returns the shapes of the arguments of the function that a thread calls, as far as they are
    known.

    They are found on the thread's stack, so that no call takes longer.
    """
    threads = {each.native_id: each.ident for each in threading.enumerate()}
    # After a fork, Python has the number of the parent's thread.
    threads[os.getpid()] = threading.main_thread().ident
    frame = sys._current_frames().get(threads.get(thread) or 0)
    while frame and frame.f_code is not xla.call_function.__code__:
        frame = frame.f_back
    if frame is None:
        return []
    shapes: list[Shape | None] = []
    for argument in frame.f_locals["args"]:
        is_known = argument.shape.is_fully_defined()
        shapes.append(tuple(argument.shape) if is_known else None)
    return shapes


class Visit(NamedTuple):
    """A visit that was not followed by a second one of the same graph yet."""

    preserve: frozenset[str]
    nodes: int  #: how many the graph had
    is_rewritten: bool


class Visits:
    """The latest first visits, by TensorFlow's threads."""

    def __init__(self) -> None:
        self._firsts: dict[int, Visit] = {}

    def take(self, preserve: frozenset[str]) -> Visit | None:
        """Returns, and forgets, this thread's last visit, if it was of such a graph."""
        first = self._firsts.pop(_waiting(), None)
        if first is None or first.preserve != preserve:
            return None
        return first

    def note(self, first: Visit) -> None:
        """Remembers a first visit."""
        while len(self._firsts) >= _THREADS:  # threads that ended never come again
            self._firsts.pop(next(iter(self._firsts)), None)
        self._firsts[_waiting()] = first


def install(patches: Patches) -> None:
    """Rewrites every graph that TensorFlow optimizes from now on, by the settings then in force.

    If the plugin cannot work, one warning says why, and TensorFlow runs without it. Idempotent.
    """
    set_conversion(
        lambda data, preserve, shapes: convert_graph(data, preserve, shapes, state.settings())
    )
    home, _ = next(TFLITE_CONVERTER.each())
    if home in sys.modules:  # some builds have none
        TFLITE_CONVERTER.surround(patches, _convert_for_tflite)


def set_conversion(convert: Convert) -> bool:
    """Registers the plugin, if it is not registered yet, and passes each graph to a function.

    ``convert`` gets a serialized GraphDef, the names of the nodes to preserve and the static shapes
    of its tensors, and returns the new serialized GraphDef or ``None``. It may raise: the graph
    then stays as it is, and the first failure leads to one warning. Returns whether the plugin is
    at work.
    """
    shims = state.record(_Shims)
    if not shims and not _register():
        return False
    for shim in shims.values():
        shim.set_callback(functools.partial(_on_graph, shim, convert))
    state.note(idle="")
    summary.add_part(skipped)
    return True


def uninstall(wait_ms: int = 0) -> None:
    """Makes the registered optimizers the identity, and waits so long for running rewrites.

    Graphs that run already stay as they are. Idempotent. It takes no lock, which a forked child may
    have inherited in locked state.
    """
    for shim in state.record(_Shims).values():
        shim.clear_callback(wait_ms)


def skipped() -> str:
    """A part of the summary line: the program's own graphs that stayed in float32, and why."""
    parts = []
    for reason in Skip:
        count, name = count_skipped(reason)
        if count and reason is not Skip.PIPELINE:
            example = ""
            if name not in ("", _OF_SESSIONS):
                example = f" (such as {name_in_python(name)!r})"
            parts.append(f"{plural(count, 'graph')} skipped{example}, because {reason.value}")
    return "; ".join(parts)


def count_skipped(reason: Skip) -> tuple[int, str]:
    """How many graphs were left as they are for a reason, and the name of the first."""
    visits = 0
    first = ""
    for shim in state.record(_Shims).values():
        count, name = shim.skipped(reason)
        visits += count
        first = first or name
    return (visits + 1) // 2, first  # TensorFlow asks twice for each graph


def _convert_for_tflite(call: Any) -> Any:
    with contextlib.ExitStack() as blocks:
        for shim in state.record(_Shims).values():
            blocks.enter_context(shim.converting())
        return call()


def _register() -> bool:
    from tensorflow.python.client import pywrap_tf_session

    try:
        native.tensorflow_library()  # so that an error shows before the first graph
    except (OSError, AttributeError) as error:
        return _stay_idle(
            f"this TensorFlow does not give what it needs, so graphs stay in float32 ({error})",
            fix=(
                "Install TensorFlow 2.16 to 2.21 with pip, as in pip install 'tensorflow<2.22', "
                "in place of another build"
            ),
        )
    try:
        shims = {device_type: Shim(device_type) for device_type in DEVICE_TYPES}
        for shim in shims.values():
            shim.leave_out(input_pipelines.BEGINNINGS, input_pipelines.LOOPS)
    except (OSError, AttributeError) as error:
        return _stay_idle(
            f"it does not load, so graphs stay in float32 ({error})",
            fix="Install amp-tf again with pip, for this machine",
        )
    missing = [shim for shim in shims.values() if not shim.is_registered]
    others = other_graph_plugins()
    if missing and others:
        return _stay_idle(OTHER_PLUGIN.format(", ".join(others)), fix=WITHOUT_IT)
    for shim in missing:
        try:
            # Not tf.load_pluggable_device_library: that one also enumerates the devices, which is
            # too early for a script that is about to choose its visible ones.
            pywrap_tf_session.TF_LoadPluggableDeviceLibrary(str(shim.path))
        except Exception as error:
            return _stay_idle(
                f"this TensorFlow does not take it, so graphs stay in float32 ({error})",
                fix="Use TensorFlow 2.16 to 2.21, or a newer amp-tf",
            )
    state.record(_Shims).update(shims)
    return True


def _stay_idle(what: str, *, fix: str) -> bool:
    state.note(idle=what)
    notices.warn_once("grappler.idle", what, where=_WHERE, fix=fix)
    return False


def _on_graph(
    shim: Shim, convert: Convert, data: int, length: int, item: int, output: int, thread: int
) -> None:
    """Converts one graph, on a thread for which one of TensorFlow's waits.

    No exception may leave it.
    """
    state.current().here.waiting = thread
    try:
        with contextlib.closing(ItemShapes(item)) as shapes:
            new = convert(ctypes.string_at(data, length), native.nodes_to_preserve(item), shapes)
        if new is not None:
            shim.emit(output, new)
    except Exception as error:
        state.count_failure(error)
        _warn_of(error)


def _warn_of(error: Exception) -> None:
    """Warns once of an error in a rewrite."""
    if isinstance(error, ConfigError):
        what = f"graphs stay in float32: {error.what}"
        notices.warn_once("grappler.failed", what, where=error.where, fix=error.fix)
        return
    why = f"{type(error).__name__}: {str(error).rstrip('.')}"
    notices.warn_once(
        "grappler.failed",
        f"a graph stays in float32 because amp_tf failed on it ({why})",
        where=_WHERE,
        fix=(
            "Training goes on; please report it, with the files that "
            f"{variable_of('log_path')}=<folder> makes amp_tf write. {DISABLE_VAR}=1 turns amp_tf "
            "off"
        ),
    )


def convert_graph(
    serialized: bytes, preserve: frozenset[str], shapes: Shapes, config: AmpConfig
) -> bytes | None:
    """Rewrites the serialized GraphDef of a graph that TensorFlow is about to run.

    Library functions stay as they are: TensorFlow passes the body of each one that it runs
    separately. Returns ``None`` if nothing changed. Raises a GraphError or RewriteError.
    """
    visits = state.record(Visits)
    first = visits.take(preserve)
    if first is not None and first.is_rewritten and CAST_SUFFIX.encode() in serialized:
        return None
    known = notices.known_only(config)
    result = pipeline.rewrite_serialized(
        serialized,
        known,
        hardware=state.hardware(),
        preserve=preserve,
        functions=False,
        shapes=shapes,
        given=_shapes_of_call(_waiting()),
    )
    nodes = result.report.total
    # This test for a second visit can be wrong, because TensorFlow's own optimizers change the
    # number of nodes. Only counts depend on it.
    if first is not None and not result.changed and abs(nodes - first.nodes) <= first.nodes // 2:
        return None
    visits.note(Visit(preserve, nodes, result.changed))
    reports.record(result.report, way="grappler")
    if not result.changed:
        if any(mark in serialized for mark in _XLA_MARKS):
            state.count_xla_graph()
        return None
    notices.warn_if_slow(known)
    new: bytes = result.graph
    return new
