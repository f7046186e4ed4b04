"""On and off, from Python and from the environment."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
from types import TracebackType

from amp_tf.config import DISABLE_VAR, SWITCH_VARS, AmpConfig, Switches, is_disabled
from amp_tf.errors import ConfigError
from amp_tf.hooks import imports, notices, registry, summary

EVERYTHING = Switches(graph_rewrite=True, loss_scaling=True)
_EXIT_WAIT_MS = 10_000


@dataclasses.dataclass(frozen=True)
class _Active:
    config: AmpConfig
    switches: Switches
    by_environment: bool = False


_lock = threading.RLock()
_active: _Active | None = None
_refused = ""  # what was wrong with the environment, where that is why amp_tf is off
_exit_pid: int | None = None


class Handle:
    """What :func:`enable` returns. A context manager, too: it turns amp_tf off at the end of the block."""

    def __init__(self, active: _Active) -> None:
        self._active = active

    @property
    def config(self) -> AmpConfig:
        """The settings that were turned on."""
        return self._active.config

    def uninstall(self) -> None:
        """Turns amp_tf off, unless another ``enable`` came later. Calling it again does nothing."""
        with _lock:
            if _active is self._active:
                disable()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()


def enable(config: AmpConfig | None = None) -> Handle:
    """Does what ``TF_ENABLE_AUTO_MIXED_PRECISION=1`` does: rewrites graphs, and scales the loss where they are float16.

    It may be called before or after TensorFlow is imported, but before the functions and sessions that it is meant for
    run first: what TensorFlow has optimized already stays as it is. Called again, it replaces the settings. With
    ``AMP_TF_DISABLE=1`` it only says so, so that any program can be run without amp_tf from outside.

    Args:
        config: what to convert, in place of what the environment variables say.

    Returns:
        A handle with ``uninstall()``, which also works as a context manager.

    Raises:
        ConfigError: an environment variable has a value that means nothing.
    """
    wanted = _Active(AmpConfig.from_env() if config is None else config, EVERYTHING)
    if is_disabled():
        notices.emit(logging.WARNING, f"stays off, although the program calls amp_tf.enable(): {DISABLE_VAR} is set")
        return Handle(wanted)
    return _enable(wanted)


def obey_environment(changed: str | None = None) -> None:
    """Does what the environment asks for. A bad value is told in one message, and amp_tf stays off.

    What :func:`enable` turned on stays as it is until ``AMP_TF_DISABLE`` is set. Where amp_tf is off, perhaps by
    :func:`disable`, a change turns it on only if it is one of a switch, or if it mends the bad value for which amp_tf
    is off.

    Args:
        changed: the variable that the program has just set or deleted; ``None`` if none was.
    """
    with _lock:
        if _active is None and not _refused and changed is not None and changed not in (*SWITCH_VARS, DISABLE_VAR):
            return
        try:
            if _active is not None and not _active.by_environment and not is_disabled():
                return  # the program's own word
            asked = _asked_by_environment()
        except ConfigError as error:
            _refuse(str(error))
            return
        if asked is None:
            disable()
        elif asked != _active:
            _enable(asked)


def _asked_by_environment() -> _Active | None:
    switches = Switches.from_env()
    return _Active(AmpConfig.from_env(), switches, by_environment=True) if switches.any else None


def _refuse(error: str) -> None:
    """Turns amp_tf off and says why, once while that is why."""
    global _refused
    if error != _refused:
        notices.emit(logging.WARNING, f"stays off, the program runs in float32: {error}")
    disable()
    _refused = error


def disable() -> None:
    """Turns amp_tf off for graphs that TensorFlow optimizes from now on. Idempotent.

    What cannot be undone: the optimizer stays registered with TensorFlow, as the identity; functions and sessions that
    ran already keep their converted graphs; optimizers that were wrapped for loss scaling stay wrapped.
    """
    global _active, _refused
    with _lock:
        _active, _refused = None, ""
        imports.forget(_on_import)
        registry.uninstall()


def is_enabled() -> bool:
    """Whether amp_tf is on in this process, by the environment or by :func:`enable`."""
    return _active is not None


def _enable(wanted: _Active) -> Handle:
    global _active, _exit_pid, _refused
    with _lock:
        _refused = ""
        if _active is not None and _active.switches != wanted.switches:
            registry.uninstall()
        _active = wanted
        imports.forget(_on_import)
        if _exit_pid is None:
            _exit_pid = os.getpid()
            atexit.register(_at_exit)
        for trigger in registry.TRIGGERS:
            imports.after_import(trigger, _on_import)
        return Handle(wanted)


def _on_import(trigger: str) -> None:
    with _lock:
        if _active is not None:
            registry.install(trigger, _active.config, _active.switches)


def _at_exit() -> None:
    """No Python runs on TensorFlow's threads once the interpreter shuts down."""
    import sys

    is_child = os.getpid() != _exit_pid  # a forked one, which converts, too: its parent speaks
    was_on = is_enabled()
    plugin = sys.modules.get("amp_tf.hooks.grappler.plugin")
    if plugin is not None:
        (plugin.stop if is_child else plugin.uninstall)(wait_ms=_EXIT_WAIT_MS)
    if not is_child and (was_on or summary.is_due()):
        summary.log()
