"""What the hooks saw of this process, beside what they rewrote: cheap counts, to tell why nothing was converted."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Counts since the process began.

    Attributes:
        xla_graphs: graphs that TensorFlow handed to the plugin and that only call into XLA-compiled functions.
        failures: rewrites that failed, so that the graph stayed as it was; TensorFlow asks twice for each graph.
        first_failure: what the first of them was.
        off: why amp_tf, or its graph rewrite, is off; empty if it is on, ``None`` if nothing was ever turned on or off.
        idle: why the plugin is not at work although amp_tf is on; empty if it is.
        policy: Keras' own 16-bit policy that the program uses; empty for none.
        not_installed: hooks that failed to install, module to the error.
    """

    xla_graphs: int = 0
    failures: int = 0
    first_failure: str = ""
    off: str | None = None
    idle: str = ""
    policy: str = ""
    not_installed: Mapping[str, str] = dataclasses.field(default_factory=dict)


_lock = threading.Lock()
_seen = Evidence()


def count_xla_graph() -> None:
    """Counts a graph that only calls into XLA-compiled functions. Thread-safe."""
    global _seen
    with _lock:
        _seen = dataclasses.replace(_seen, xla_graphs=_seen.xla_graphs + 1)


def count_failure(error: BaseException) -> None:
    """Counts a rewrite that failed. Thread-safe."""
    global _seen
    with _lock:
        first = _seen.first_failure or f"{type(error).__name__}: {str(error).rstrip('.')}".splitlines()[0]
        _seen = dataclasses.replace(_seen, failures=_seen.failures + 1, first_failure=first)


def note(**found: str) -> None:
    """Notes what holds from now on: ``off``, ``idle`` or ``policy``. Thread-safe."""
    global _seen
    with _lock:
        _seen = dataclasses.replace(_seen, **found)  # type: ignore[arg-type]


def note_install(home: str, failure: str = "") -> None:
    """Notes that a hook was installed, or the failure, which a later success takes back."""
    global _seen
    with _lock:
        others = {module: why for module, why in _seen.not_installed.items() if module != home}
        _seen = dataclasses.replace(_seen, not_installed={**others, home: failure} if failure else others)


def seen() -> Evidence:
    """The counts so far."""
    return _seen
