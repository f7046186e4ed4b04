"""Layers, guessed from the names of nodes: name scopes without those that TensorFlow adds."""

from __future__ import annotations

import functools
import re

_DEPTH = 2  # a model and a layer of it
# What TensorFlow puts around the names of what it inlines, differentiates, optimizes or names by itself.
_TENSORFLOWS = re.compile(
    r"((Stateful|Stateless)?PartitionedCall|gradient_tape|gradients|cond|while|body|then|else)?(_\d+)?|__inference_.*"
    r"|Func|(Constant|Arithmetic|Layout)(Folding|Optimizer)"
)


def scopes(name: str) -> list[str]:
    """The name scopes around a node, outermost first."""
    return [part for part in name.split("/")[:-1] if not _TENSORFLOWS.fullmatch(part)]


@functools.lru_cache(maxsize=65_536)
def layer_of(name: str) -> str:
    """The layer of a node, such as ``"functional/dense_1"``; empty where its name has none."""
    return "/".join(scopes(name)[:_DEPTH])
