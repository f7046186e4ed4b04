"""What a module of Keras exports."""

from __future__ import annotations

import inspect
from typing import Any


def public_classes(module: Any, base: type) -> list[str]:
    """The names of the classes of a kind that a module exports: one for each class, its own where that is exported."""
    name_of: dict[type, str] = {}
    for name, found in sorted(vars(module).items()):
        if inspect.isclass(found) and issubclass(found, base) and (found not in name_of or found.__name__ == name):
            name_of[found] = name
    return sorted(name_of.values())
