"""Replaces attributes of classes and modules of other libraries, and restores them.

Other libraries wrap the same functions. A wrapper that somebody put around a patch of ours stays, with ours inside it,
so a patch must be harmless after it was restored. If the patch is installed again, the buried replacement is used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

Patch = tuple[Any, str, Callable[[Any], Any]]  #: owner, attribute, and what makes its replacement from the original


class _Installed(NamedTuple):
    owner: Any
    name: str
    original: Any
    is_own: bool  #: whether the owner had it itself, not from a base class
    replacement: Any


def calling(ours: Callable[..., Any], *first: Any) -> Callable[[Any], Any]:
    """Makes a replacement that calls our function with the original, and what is given here before it."""

    def make(original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return ours(*first, original, *args, **kwargs)

        return replacement

    return make


class Patches:
    """A set of patches that are restored together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._patches: list[_Installed] = []
        self._buried: list[_Installed] = []  # restored, but still inside a wrapper of somebody else

    def __bool__(self) -> bool:
        return bool(self._patches)

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> bool:
        """Replaces an attribute of a class or module, or of its base class, until :meth:`restore`.

        Does nothing if ours is in place, perhaps wrapped by others; returns whether it was replaced now.
        """
        with self._lock:
            is_own = name in vars(owner)
            original = vars(owner)[name] if is_own else getattr(owner, name)
            known = [patch for patch in (*self._patches, *self._buried) if patch.owner is owner and patch.name == name]
            if known and original is not known[0].original:  # else somebody put that back
                if was_buried := known[0] in self._buried:
                    self._buried.remove(known[0])
                    self._patches.append(known[0])
                return was_buried
            for patches in (self._patches, self._buried):
                patches[:] = [patch for patch in patches if patch not in known]
            replacement = functools.wraps(original)(make(original))
            setattr(owner, name, replacement)
            self._patches.append(_Installed(owner, name, original, is_own, replacement))
            return True

    def restore(self) -> None:
        """Restores every attribute that still holds our replacement. Idempotent."""
        with self._lock:
            for patch in reversed(self._patches):
                if vars(patch.owner).get(patch.name) is not patch.replacement:
                    self._buried.append(patch)
                elif patch.is_own:
                    setattr(patch.owner, patch.name, patch.original)
                else:
                    delattr(patch.owner, patch.name)
            self._patches.clear()
