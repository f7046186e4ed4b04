"""Holds the state of the hooks in this process: settings in force, counts, and what hooks record.

Inside a garbage collection amp_tf must not take locks or run graphs. It may begin anywhere, also
while this thread holds a lock, and it runs other people's finalizers: that of a session closes it,
which is patched. An object also ends when its last reference goes, which is a safe place; only the
collector's callbacks tell one from the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from amp_tf.config import AmpConfig, Switches
from amp_tf.hooks.patches import Patches
from amp_tf.oplists.hardware import Hardware

_Record = TypeVar("_Record")
_began = time.monotonic()


@dataclasses.dataclass
class Runtime:
    """The state of amp_tf in a process, which the functions below read and change."""

    #: the settings in force, or the last ones; ``None`` if nothing was ever turned on
    config: AmpConfig | None = None
    switches: Switches = dataclasses.field(default_factory=Switches)  #: what is on now
    #: graphs that TensorFlow passed to the plugin and that only call XLA-compiled functions
    xla_graphs: int = 0
    failures: int = 0  #: rewrites that failed; TensorFlow asks twice for each graph
    first_failure: str = ""  #: the error of the first of them
    #: why amp_tf, or its graph rewrite, is off; empty if on, ``None`` if never turned on or off
    off: str | None = None
    idle: str = ""  #: why the plugin is not at work although amp_tf is on; empty if it is
    #: functions that TensorFlow had traced when amp_tf was turned on; it optimizes each only once
    traced: Sequence[str] = ()
    policy: str = ""  #: Keras' own 16-bit policy that the program uses; empty for none
    #: failed hooks: module to error
    not_installed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: by the module of the hook
    patches: dict[str, Patches] = dataclasses.field(default_factory=dict)
    #: what hooks remember of this process, by its class
    records: dict[type, Any] = dataclasses.field(default_factory=dict)
    #: the keys of the warnings that were printed
    warned: set[str] = dataclasses.field(default_factory=set)
    #: what hooks add to the summary line
    parts: list[Callable[[], str]] = dataclasses.field(default_factory=list)
    #: called after each step with its way, name, seconds, count and subject, where the program is
    #: timed; the subject is a ``tf.function``, a session with what it fetches, or ``None`` of Keras
    on_step: Callable[[str, str, float, int, Any], None] | None = None
    #: the switch's handles, of which the last one is on
    stack: list[Any] = dataclasses.field(default_factory=list)
    refused: str = ""  #: the error in the environment, if that is why amp_tf is off
    #: of the process that prints the summary line; a forked child does not
    exit_pid: int | None = None
    #: of each thread: its scope, and what it is doing
    here: threading.local = dataclasses.field(default_factory=threading.local)
    lock: Any = dataclasses.field(default_factory=threading.RLock)
    #: taken while amp_tf is turned on or off. That waits for rewrites that are running, and these
    #: take the lock above to count what they did
    switching: Any = dataclasses.field(default_factory=threading.RLock)


# Changes with all that the hooks do. It lives as long as the process, because TensorFlow calls the
# hooks from anywhere.
_runtime = Runtime()


def current() -> Runtime:
    """The runtime of this process."""
    return _runtime


def settings() -> AmpConfig:
    """The settings in force; once amp_tf is off, the last ones, or the defaults."""
    return _runtime.config or AmpConfig()


def patches(hook: str) -> Patches:
    """The patches of a hook, by its module's name."""
    return _runtime.patches.setdefault(hook, Patches())


def record(kind: type[_Record]) -> _Record:
    """The one object of a class in this process, which holds what a hook remembers.

    It is made at the first request. Takes no lock, because a forked child may have got it locked.
    """
    if kind not in _runtime.records:
        _runtime.records.setdefault(kind, kind())
    found: _Record = _runtime.records[kind]
    return found


@contextlib.contextmanager
def within(**values: Any) -> Iterator[None]:
    """Sets attributes of this thread (``Runtime.here``) for a block."""
    here = vars(_runtime.here)
    before = {name: here.get(name) for name in values}
    here.update(values)
    try:
        yield
    finally:
        here.update(before)


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
    """Records that a hook was installed, or why it could not be.

    A later success replaces the failure.
    """
    with _runtime.lock:
        failures = dict(_runtime.not_installed)
        failures.pop(home, None)
        if failure:
            failures[home] = failure
        _runtime.not_installed = failures


@functools.cache
def hardware() -> Hardware:
    """Detects what the GPUs that TensorFlow sees and this CPU can do.

    Must be called when TensorFlow runs a graph, not before: asking for the GPUs fixes which ones
    are visible, and a script may not have chosen them yet.
    """
    import tensorflow as tf

    capabilities = []
    for device in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        if details.get("compute_capability"):
            capabilities.append(tuple(details["compute_capability"]))
    return dataclasses.replace(Hardware.detect_cpu(), gpu_capabilities=tuple(capabilities))


def uses_tf32(capability: tuple[int, ...]) -> bool | None:
    """Tells whether TensorFlow lets a GPU use TF32 for float32 products; ``None`` before Ampere."""
    import tensorflow as tf

    if capability < (8, 0):
        return None
    return tf.config.experimental.tensor_float_32_execution_enabled()  # type: ignore[no-any-return]


TRACED = "__inference_"  #: begins TensorFlow's names of traced functions
#: how tf.data begins the names of functions: with the transformations that call them
OF_TRANSFORMATIONS = ("Dataset_", "tf_data_experimental_", "map_on_gpu_")


def traced_functions() -> list[str]:
    """The live functions that TensorFlow has traced, without those of input pipelines."""
    found = []
    for name in sorted(function_names()):
        plain = name.removeprefix(TRACED)
        if plain != name and not plain.startswith(OF_TRANSFORMATIONS):
            found.append(name)
    return found


def function_names() -> set[str]:
    """The names of the functions that TensorFlow has."""
    home = sys.modules.get("tensorflow.python.eager.context")
    if home is None or not hasattr(home, "context_safe"):
        return set()
    running = home.context_safe()
    if running is None or not running._initialized:
        return set()
    return set(running.list_function_names())


def find_function(name: str | bytes) -> Any:
    """The FunctionDef that TensorFlow has under a name, or ``None``."""
    from tensorflow.python.eager import context

    running = context.context()
    if not running.has_function(name):
        return None
    return running.get_function_def(name)


def find_functions(names: Iterable[str]) -> Iterator[Any]:
    """Yields the FunctionDefs that TensorFlow has under some names.

    A garbage collection may remove functions meanwhile.
    """
    for name in names:
        definition = find_function(name)
        if definition is not None:
            yield definition


def watch_collections() -> None:
    """Records from now on, permanently, when this process collects garbage. Idempotent."""
    if _note_collection not in gc.callbacks:
        gc.callbacks.append(_note_collection)


def is_collecting() -> bool:
    """Tells whether this thread is inside a garbage collection.

    It is always false before :func:`watch_collections`.
    """
    return getattr(_runtime.here, "is_collecting", False)


def _note_collection(phase: str, info: Mapping[str, int]) -> None:
    _runtime.here.is_collecting = phase == "start"
