"""What the hooks know of this process beside its graphs: settings in force, counts, and why nothing is converted."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from amp_tf.config import AmpConfig

_began = time.monotonic()
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class ProcessState:
    """What is known of this process now; counts begin with the process.

    Attributes:
        config: the settings in force; ``None`` if nothing was ever turned on.
        xla_graphs: graphs that TensorFlow passed to the plugin and that only call XLA-compiled functions.
        failures: rewrites that failed, so that the graph stayed as it was; TensorFlow asks twice for each graph.
        first_failure: the error of the first of them.
        off: why amp_tf, or its graph rewrite, is off; empty if it is on, ``None`` if nothing was ever turned on or off.
        idle: why the plugin is not at work although amp_tf is on; empty if it is.
        traced: the functions that TensorFlow had traced when amp_tf was turned on; it optimizes each only once.
        policy: Keras' own 16-bit policy that the program uses; empty for none.
        not_installed: the hooks that failed to install: module to error.
        ended: how the process ended, where not by itself; else empty.
    """

    config: AmpConfig | None = None
    xla_graphs: int = 0
    failures: int = 0
    first_failure: str = ""
    off: str | None = None
    idle: str = ""
    traced: Sequence[str] = ()
    policy: str = ""
    not_installed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ended: str = ""


_state = ProcessState()


def current() -> ProcessState:
    """The state of this process now."""
    return _state


def settings() -> AmpConfig:
    """The settings in force; the defaults if nothing was ever turned on."""
    return _state.config or AmpConfig()


def seconds() -> float:
    """How long amp_tf has been loaded, in seconds."""
    return time.monotonic() - _began


def note(**found: Any) -> None:
    """Sets fields of the state: ``config``, ``off``, ``idle``, ``traced``, ``policy`` or ``ended``. Thread-safe."""
    global _state
    with _lock:
        _state = dataclasses.replace(_state, **found)


def count_xla_graph() -> None:
    """Counts a graph that only calls into XLA-compiled functions. Thread-safe."""
    global _state
    with _lock:
        _state = dataclasses.replace(_state, xla_graphs=_state.xla_graphs + 1)


def count_failure(error: BaseException) -> None:
    """Counts a rewrite that failed. Thread-safe."""
    global _state
    with _lock:
        first = _state.first_failure or f"{type(error).__name__}: {str(error).rstrip('.')}".splitlines()[0]
        _state = dataclasses.replace(_state, failures=_state.failures + 1, first_failure=first)


def note_install(home: str, failure: str = "") -> None:
    """Records that a hook was installed, or why it could not be; a later success replaces the failure."""
    global _state
    with _lock:
        others = {module: why for module, why in _state.not_installed.items() if module != home}
        _state = dataclasses.replace(_state, not_installed={**others, home: failure} if failure else others)
