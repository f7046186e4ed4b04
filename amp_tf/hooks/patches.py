"""Replaces attributes of classes and modules of other libraries, and restores them.

Other libraries wrap the same functions. A wrapper that somebody put around a patch of ours stays,
with ours inside it. So does a replacement that is running, or that somebody keeps. Once restored,
each does what the original does; if the patch is installed again, the buried replacement is used.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class _Installed:
    original: Any
    replacement: Any = None
    # If not, it was restored, but may still be inside a wrapper of somebody else.
    is_on: bool = True


class Patches:
    """A set of patches that are restored together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._patches: dict[tuple[Any, str], _Installed] = {}  # by owner and name

    def __bool__(self) -> bool:
        return any(patch.is_on for patch in self._patches.values())

    def put(self, owner: Any, name: str, ours: Callable[..., Any]) -> bool:
        """Replaces an attribute of a module or class until :meth:`restore`.

        Does nothing if ours is in place, perhaps wrapped by others.

        Args:
            owner: the module or class; the attribute of a base class is replaced there.
            ours: is called with the original and the arguments.

        Returns whether it was replaced now.
        """
        with self._lock:
            for base in getattr(owner, "__mro__", ()):
                if name in vars(base):
                    owner = base
                    break
            original = vars(owner)[name]
            known = self._patches.get((owner, name))
            if known is not None and original is not known.original:
                was_on = known.is_on
                known.is_on = True
                return not was_on
            # If it is known, somebody put the original back.
            self._patches.pop((owner, name), None)
            patch = _Installed(original)

            @functools.wraps(original)
            def replacement(*args: Any, **kwargs: Any) -> Any:
                if not patch.is_on:
                    return original(*args, **kwargs)
                return ours(original, *args, **kwargs)

            patch.replacement = replacement
            setattr(owner, name, replacement)
            self._patches[owner, name] = patch
            return True

    def restore(self) -> None:
        """Restores every attribute that still holds our replacement. Idempotent."""
        with self._lock:
            for (owner, name), patch in reversed(list(self._patches.items())):
                patch.is_on = False
                if vars(owner).get(name) is patch.replacement:
                    setattr(owner, name, patch.original)
                    del self._patches[owner, name]
