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
        idle: why the plugin is not at work although amp_tf is on; empty if it is.
        not_installed: hooks that failed to install, module to the error.
    """

    xla_graphs: int = 0
    failures: int = 0
    idle: str = ""
    not_installed: Mapping[str, str] = dataclasses.field(default_factory=dict)


_lock = threading.Lock()
_seen = Evidence()


def count(*, xla_graphs: int = 0, failures: int = 0) -> None:
    """Adds to the counts. Thread-safe."""
    global _seen
    with _lock:
        _seen = dataclasses.replace(
            _seen,
            xla_graphs=_seen.xla_graphs + xla_graphs,
            failures=_seen.failures + failures,
        )


def set_idle(reason: str) -> None:
    """Notes why the plugin is not at work, or with an empty string that it is."""
    global _seen
    with _lock:
        _seen = dataclasses.replace(_seen, idle=reason)


def note_install(home: str, failure: str = "") -> None:
    """Notes that a hook was installed, or why it was not; a later success takes an earlier failure back.

    Args:
        home: the module that holds it.
        failure: the error; empty for none.
    """
    global _seen
    with _lock:
        others = {module: why for module, why in _seen.not_installed.items() if module != home}
        _seen = dataclasses.replace(_seen, not_installed={**others, home: failure} if failure else others)


def seen() -> Evidence:
    """The counts so far."""
    return _seen
