"""What the hooks know of this process beside its graphs: settings in force, counts, devices,
garbage collections.

Inside a garbage collection amp_tf must not take locks or run graphs. It may begin anywhere, also
while this thread holds a lock, and it runs other people's finalizers: that of a session closes it,
which is patched. An object also ends when its last reference goes, which is a safe place; only the
collector's callbacks tell one from the other.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amp_tf.config import AmpConfig, Switches
from amp_tf.hooks.patches import Patches
from amp_tf.oplists.hardware import Hardware

_began = time.monotonic()


@dataclasses.dataclass
class Runtime:
    """What amp_tf knows and holds of a process.

    Whoever needs something of it asks the functions below.
    """

    config: AmpConfig | None = (
        None  #: the settings in force, or the last ones; ``None`` if nothing was ever turned on
    )
    switches: Switches = dataclasses.field(default_factory=Switches)  #: what is on now
    xla_graphs: int = (
        0  #: graphs that TensorFlow passed to the plugin and that only call XLA-compiled functions
    )
    failures: int = 0  #: rewrites that failed; TensorFlow asks twice for each graph
    first_failure: str = ""  #: the error of the first of them
    off: str | None = (
        #: why amp_tf, or its graph rewrite, is off; empty if on, ``None`` if never turned on or off
        None
    )
    idle: str = ""  #: why the plugin is not at work although amp_tf is on; empty if it is
    traced: Sequence[
        str
    ] = ()  #: what TensorFlow had traced when amp_tf was turned on; it optimizes each only once
    policy: str = ""  #: Keras' own 16-bit policy that the program uses; empty for none
    not_installed: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  #: failed hooks: module to error
    ended: str = ""  #: how the process ended, where not by itself; else empty
    patches: dict[str, Patches] = dataclasses.field(
        default_factory=dict
    )  #: by the module of the hook
    warned: set[str] = dataclasses.field(
        default_factory=set
    )  #: the keys of the warnings that were printed
    parts: list[Callable[[], str]] = dataclasses.field(
        default_factory=list
    )  #: what hooks add to the line at exit
    #: called after each step with its way, name, seconds and count, where the program is timed
    on_step: Callable[[str, str, float, int], None] | None = None
    stack: list[Any] = dataclasses.field(
        default_factory=list
    )  #: the switch's handles, of which the last one is on
    refused: str = ""  #: the error in the environment, if that is why amp_tf is off
    exit_pid: int | None = (
        None  #: of the process that prints the line at exit; a forked child does not
    )
    here: threading.local = dataclasses.field(
        default_factory=threading.local
    )  #: of each thread: scope, collection
    lock: Any = dataclasses.field(default_factory=threading.RLock)


# The one object that changes here. It lives as long as the process, because TensorFlow calls the
# hooks from anywhere.
_runtime = Runtime()


def current() -> Runtime:
    """The runtime of this process."""
    return _runtime


def settings() -> AmpConfig:
    """The settings in force, which the latest ``enable`` made; once amp_tf is off, the last ones,
    or the defaults.
    """
    return _runtime.config or AmpConfig()


def patches(hook: str) -> Patches:
    """The patches of a hook, by its module's name."""
    return _runtime.patches.setdefault(hook, Patches())


def seconds() -> float:
    """How long amp_tf has been loaded."""
    return time.monotonic() - _began


def note(**found: Any) -> None:
    """Sets fields of the state. Thread-safe."""
    with _runtime.lock:
        vars(_runtime).update(found)


def count_failure(error: BaseException) -> None:
    """Counts a rewrite that failed. Thread-safe."""
    this = f"{type(error).__name__}: {str(error).rstrip('.')}".splitlines()[0]
    with _runtime.lock:
        _runtime.failures += 1
        _runtime.first_failure = _runtime.first_failure or this


def count_xla_graph() -> None:
    """Counts a graph that only calls functions for XLA. Thread-safe."""
    with _runtime.lock:
        _runtime.xla_graphs += 1


def note_install(home: str, failure: str = "") -> None:
    """Records that a hook was installed, or why it could not be; a later success replaces the
    failure.
    """
    with _runtime.lock:
        failures = {**_runtime.not_installed, home: failure}
        _runtime.not_installed = {hook: why for hook, why in failures.items() if why}


@functools.cache
def hardware() -> Hardware:
    """What the GPUs that TensorFlow sees and this CPU can do.

    Must be called when TensorFlow runs a graph, not before: asking for the GPUs fixes which ones
    are visible, and a script may not have chosen them yet.
    """
    import tensorflow as tf

    details = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU"))
    found = tuple(
        tuple(known["compute_capability"]) for known in details if known.get("compute_capability")
    )
    return dataclasses.replace(Hardware.detect_cpu(), gpu_capabilities=found)


def uses_tf32(capability: tuple[int, ...]) -> bool | None:
    """Whether TensorFlow lets a GPU of a compute capability use TF32 for float32 products; ``None``
    before Ampere.
    """
    import tensorflow as tf

    return (
        tf.config.experimental.tensor_float_32_execution_enabled() if capability >= (8, 0) else None
    )


TRACED = "__inference_"  #: begins TensorFlow's names of traced functions


def traced_functions() -> list[str]:
    """The live functions that TensorFlow has traced, without those of input pipelines."""
    return sorted(
        name
        for name in functions()
        if name.startswith(TRACED) and not name.startswith(f"{TRACED}Dataset_")
    )


def functions() -> dict[str, Any]:
    """For each function that TensorFlow has, by name, a callable that returns its FunctionDef."""
    running = getattr(
        sys.modules.get("tensorflow.python.eager.context"), "context_safe", lambda: None
    )()
    if running is None or not running._initialized:
        return {}
    return {
        name: functools.partial(running.get_function_def, name)
        for name in running.list_function_names()
    }


def watch_collections() -> None:
    """Records from now on, permanently, when this process collects garbage. Idempotent."""
    if _note_collection not in gc.callbacks:
        gc.callbacks.append(_note_collection)


def is_collecting() -> bool:
    """Whether this thread is inside a garbage collection; always false before
    :func:`watch_collections`.
    """
    return getattr(_runtime.here, "is_collecting", False)


def _note_collection(phase: str, info: Mapping[str, int]) -> None:
    _runtime.here.is_collecting = phase == "start"
