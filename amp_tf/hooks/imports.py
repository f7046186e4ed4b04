"""Runs actions right after a module was imported, without importing it.

Every interpreter start with amp_tf on imports this module, so it imports only ``sys``. The idea is
PEP 369's: during one import the loader's ``exec_module`` is shadowed on the loader object, and
nothing stays behind on the module.
"""

from __future__ import annotations

import sys

# the name that type checkers know; importing typing would cost more than the rest of the start
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Action = Callable[[str], None]


class _AfterImport:
    """A meta path finder that finds nothing itself."""

    def __init__(self) -> None:
        #: what to do after the import of each module that is noticed, perhaps nothing yet
        self.actions: dict[str, list[Action]] = {}
        self._searching: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.actions or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = None
            for finder in sys.meta_path:
                if spec is None and finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(name, path, target)
        finally:
            self._searching.discard(name)
        loader: Any = spec and spec.loader
        original: Any = getattr(loader, "exec_module", None)

        def exec_module(module: ModuleType) -> None:
            try:
                del loader.exec_module
            except AttributeError:
                loader.exec_module = original
            original(module)
            self.act(name)

        try:
            if original is not None:  # as in a loader from before PEP 451
                loader.exec_module = exec_module
        except AttributeError:  # it takes no attributes: amp_tf stays off, and the import as it is
            pass
        return spec

    def act(self, name: str) -> None:
        done: list[Action] = []
        # An action may add and remove others. Those that it adds are due now, because they wait for
        # this import.
        while due := [action for action in self.actions[name] if action not in done]:
            done.append(due[0])
            _run(due[0], name)


def _run(action: Action, name: str) -> None:
    try:
        action(name)
    except Exception as error:
        print(f"amp_tf: stays off: {type(error).__name__}: {error}", file=sys.stderr)


# Changes as actions come and go. It stands in sys.meta_path as long as the process lives.
_finder = _AfterImport()


def watch(*names: str) -> None:
    """Watches the imports of modules from now on, for actions that are added later.

    They may be added even while the import runs.
    """
    for name in names:
        _finder.actions.setdefault(name, [])
    if _finder not in sys.meta_path:
        # Behind the finder of _amp_tf_start, which may be searching right now: this one is then
        # asked next.
        place = 0
        for number, finder in enumerate(sys.meta_path, start=1):
            if type(finder).__name__ == "AmpTfStart":
                place = number
        sys.meta_path.insert(place, _finder)


def after_import(name: str, action: Action) -> None:
    """Calls ``action(name)`` after every first import of a top-level module.

    If it is imported already, the action is called at once. Adding the same action again does
    nothing. One that raises is reported in one line on stderr; the import goes on.
    """
    watch(name)
    if action in _finder.actions[name]:
        return
    _finder.actions[name].append(action)
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _run(action, name)  # this one alone: it may have been added by another, which is running


def forget(action: Action) -> None:
    """Removes an action from every module. Idempotent."""
    for actions in _finder.actions.values():
        if action in actions:
            actions.remove(action)
