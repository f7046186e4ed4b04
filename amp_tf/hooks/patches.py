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
    owner: Any
    name: str
    original: Any
    replacement: Any = None
    is_on: bool = (
        True  # if not, it was restored, but may still be inside a wrapper of somebody else
    )


class Patches:
    """A set of patches that are restored together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._patches: list[_Installed] = []

    def __bool__(self) -> bool:
        return any(patch.is_on for patch in self._patches)

    def put(self, owner: Any, name: str, ours: Callable[..., Any], *first: Any) -> bool:
        """Replaces an attribute of a module or class, of a base class if that has it, until
        :meth:`restore`.

        Our function is called with what is given here, the original, and the arguments. Does
        nothing if ours is in place, perhaps wrapped by others; returns whether it was replaced now.
        """
        with self._lock:
            owner = next(
                (base for base in getattr(owner, "__mro__", ()) if name in vars(base)), owner
            )
            original = vars(owner)[name]
            known = next(
                (patch for patch in self._patches if patch.owner is owner and patch.name == name),
                None,
            )
            if known is not None and original is not known.original:
                was_on, known.is_on = known.is_on, True
                return not was_on
            if known is not None:  # somebody put the original back
                self._patches.remove(known)
            patch = _Installed(owner, name, original)

            @functools.wraps(original)
            def replacement(*args: Any, **kwargs: Any) -> Any:
                return (
                    ours(*first, original, *args, **kwargs)
                    if patch.is_on
                    else original(*args, **kwargs)
                )

            patch.replacement = replacement
            setattr(owner, name, replacement)
            self._patches.append(patch)
            return True

    def restore(self) -> None:
        """Restores every attribute that still holds our replacement. Idempotent."""
        with self._lock:
            patches, self._patches = self._patches, []
            for patch in reversed(patches):
                patch.is_on = False
                if vars(patch.owner).get(patch.name) is not patch.replacement:
                    self._patches.append(patch)
                else:
                    setattr(patch.owner, patch.name, patch.original)
