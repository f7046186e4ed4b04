"""Installs single hooks of this process by settings that a test gives, and takes them back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType

from amp_tf.config import AmpConfig, Switches
from amp_tf.hooks import state, switch


def install(hook: ModuleType, config: AmpConfig | None = None) -> None:
    """Puts settings in force, and installs a hook by them."""
    state.note(config=config or AmpConfig(), switches=switch.EVERYTHING)
    switch.install(hook.__name__)


def uninstall(hook: ModuleType) -> None:
    """Takes a hook back, and says that amp_tf is off."""
    switch.uninstall(hook.__name__)
    state.note(switches=Switches())


@contextlib.contextmanager
def installed(*hooks: ModuleType, config: AmpConfig | None = None) -> Iterator[None]:
    """Installs hooks for a block."""
    for hook in hooks:
        install(hook, config)
    try:
        yield
    finally:
        for hook in reversed(hooks):
            uninstall(hook)
