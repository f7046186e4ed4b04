"""TensorFlow's pluggable graph optimizer, with a rewrite in Python behind it.

Source of the mechanism: tensorflow/c/experimental/grappler/grappler.h. TensorFlow calls the optimizer for the graph of
each session, tf.function, Keras step and SavedModel function before its first run: twice per graph, on threads of its
own, several at once. A registration lasts as long as the process; :func:`uninstall` makes the optimizer the identity.

The shim has no TensorFlow symbols and no create or destroy functions. It passes the serialized graph to Python. It is
the identity when no callback is set, in a child forked after a first graph, and once shutdown has begun; removing the
callback waits for calls in flight. It knows whether it is registered, because TensorFlow aborts on a second
registration. Both device types are always registered, because which GPUs exist must not be asked when TensorFlow is
imported. A child forked before the first graph takes the callback over: no visit in its parent can have left a lock
taken. After the first graph, TensorFlow's own threads are missing in a child too.

TensorFlow's layout optimizer is off while the plugin is registered. It runs once, before any plugin, and moves float32
convolutions on GPUs to NCHW; those that then become 16 bit would stay there, between Transposes, although tensor cores
want NHWC. (TensorFlow's own pass runs before it, which no plugin can.) Convolutions that stay in float32 pay for this
on GPUs before Ampere, or without TF32, where each kernel transposes; from Ampere on, kernels compute float32 in NHWC
too (``ComputeInNhwcEnabled`` in tensorflow/core/kernels). The toggle is read at registration, when the GPUs are not
known yet, and :func:`uninstall` does not undo it. With ``AMP_TF_DISABLE`` nothing is registered.

Each visit of a graph runs on a thread of the shim's own. TensorFlow's thread waits up to 5 seconds until it has
Python's lock, and half a second where the process computes nothing meanwhile: some calls, TFLite's converter among
them, hold the lock while they wait for graphs that TensorFlow optimizes on its own threads, and would otherwise wait
for ever. CPython does not say who holds the lock and waits for what. Also, Python runs signal handlers on the main
thread only: an exception of theirs would end in a rewrite that ran there, and not in the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable

from amp_tf.config import DISABLE_VAR, AmpConfig
from amp_tf.errors import ConfigError
from amp_tf.graph.sizes import Shapes
from amp_tf.hooks.grappler import conflicts, item, visits
from amp_tf.hooks.grappler.library import DEVICE_TYPES, DONE, INTERRUPTED, Shim
from amp_tf.hooks.grappler.shapes import ItemShapes
from amp_tf.hooks.process import notices, summary
from amp_tf.hooks.process import state as process_state

Convert = Callable[[bytes, frozenset[str], Shapes], bytes | None]

LOG_PATH_VAR = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH"
_WHERE = "Grappler plugin"
_lock = threading.Lock()
_shims: dict[str, Shim] = {}


def install(config: AmpConfig) -> None:
    """Rewrites every graph that TensorFlow optimizes from now on. Idempotent; a later config replaces the earlier.

    To be called after TensorFlow was imported. It creates no device and does not look for any.
    If the plugin cannot work, one warning says why, and TensorFlow runs without it.

    Args:
        config: what to convert.
    """
    from amp_tf.hooks.grappler.conversion import convert

    set_conversion(functools.partial(convert, config=config))


def set_conversion(convert: Convert) -> bool:
    """Registers the plugin, if it is not registered yet, and passes each graph to a function.

    Args:
        convert: gets a serialized GraphDef, the names of the nodes to preserve and the static shapes of its tensors;
            returns the new serialized GraphDef or ``None``. It may raise: the graph then stays as it is, and the first
            failure leads to one warning.

    Returns:
        Whether the plugin is at work.
    """
    with _lock:
        if not _shims and not _register():
            return False
        for shim in _shims.values():
            shim.set_callback(functools.partial(_on_graph, shim, convert))
        process_state.note(idle="")
        summary.add_part(skipped)
        return True


def uninstall(wait_ms: int = 0) -> None:
    """Makes the registered optimizers the identity. Graphs that run already stay as they are. Idempotent.

    Args:
        wait_ms: how long to wait for rewrites that are under way, in milliseconds.
    """
    with _lock:
        stop(wait_ms)


def stop(wait_ms: int) -> None:
    """Does what :func:`uninstall` does without its lock, which a forked child may have inherited in locked state."""
    for shim in _shims.values():
        shim.clear_callback(wait_ms)


def skipped() -> str:
    """A part of the line at exit: graphs that stayed in float32 because a call that waited for them held Python."""
    from amp_tf.reporting.text import plural

    count = sum(shim.skipped for shim in _shims.values())
    if not count:
        return ""
    # TensorFlow asks twice for each graph
    return (
        f"{plural((count + 1) // 2, 'graph')} skipped, because the call that ran them held Python's lock "
        "meanwhile, as TFLite's converter does"
    )


def _register() -> bool:
    from tensorflow.python.client import pywrap_tf_session

    try:
        item.tensorflow_library()  # so that an error shows before the first graph
        shims = {device_type: Shim(device_type) for device_type in DEVICE_TYPES}
    except (OSError, AttributeError) as error:
        return _step_back(
            f"it does not load, so graphs stay in float32 ({error})",
            fix="Install amp-tf again with pip, for this machine and with TensorFlow 2.16 to 2.21",
        )
    if not all(shim.is_registered for shim in shims.values()):
        if others := conflicts.other_graph_plugins():
            return _step_back(
                f"another graph optimizer plugin is loaded, and TensorFlow takes only one, so amp_tf converts nothing "
                f"({', '.join(others)})",
                fix="Uninstall that plugin, or unset TF_PLUGGABLE_DEVICE_LIBRARY_PATH, to use amp_tf",
            )
        for shim in shims.values():
            if not shim.is_registered:
                try:
                    # Not tf.load_pluggable_device_library: that one also enumerates the devices, which is too early
                    # for a script that is about to choose its visible ones.
                    pywrap_tf_session.TF_LoadPluggableDeviceLibrary(str(shim.path))
                except Exception as error:
                    return _step_back(
                        f"this TensorFlow does not take it, so graphs stay in float32 ({error})",
                        fix="Use TensorFlow 2.16 to 2.21, or a newer amp-tf",
                    )
    _shims.update(shims)
    return True


def _step_back(what: str, *, fix: str) -> bool:
    process_state.note(idle=what)
    notices.warn_once("grappler.idle", what, where=_WHERE, fix=fix)
    return False


def _on_graph(shim: Shim, convert: Convert, data: int, length: int, item_address: int, output: int, thread: int) -> int:
    """Converts one graph, on a thread for which one of TensorFlow's waits. No exception may leave it."""
    visits.waiting.thread = thread
    try:
        with contextlib.closing(ItemShapes(item_address)) as shapes:
            new = convert(ctypes.string_at(data, length), item.nodes_to_preserve(item_address), shapes)
        if new is not None:
            shim.emit(output, new)
    except KeyboardInterrupt:
        return INTERRUPTED  # Ctrl-C hit this code by chance; it belongs to the program
    except Exception as error:
        process_state.count_failure(error)
        _tell(error)
    return DONE


def _tell(error: Exception) -> None:
    if isinstance(error, ConfigError):
        notices.warn_once("grappler.failed", f"graphs stay in float32: {error.what}", where=error.where, fix=error.fix)
        return
    notices.warn_once(
        "grappler.failed",
        f"a graph stays in float32 because amp_tf failed on it ({type(error).__name__}: {str(error).rstrip('.')})",
        where=_WHERE,
        fix=f"Training goes on; please report it, with the files that {LOG_PATH_VAR}=<folder> makes amp_tf write. "
        f"{DISABLE_VAR}=1 turns amp_tf off",
    )
