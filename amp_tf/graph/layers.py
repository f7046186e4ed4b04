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
_CALLS = re.compile(r"((Stateful|Stateless)?PartitionedCall(_\d+)?/)+")
_GRADIENTS = re.compile(r"(^|/)gradient(_tape|s)(_\d+)?/")
_OF_GRADIENT = "_grad"  # TF1 has MatMul_grad/MatMul for what eager tapes call MatMul/MatMul


def scopes(name: str) -> list[str]:
    """The name scopes around a node, outermost first."""
    return [part for part in name.split("/")[:-1] if not _TENSORFLOWS.fullmatch(part)]


@functools.lru_cache(maxsize=65_536)
def layer_of(name: str) -> str:
    """The layer of a node, such as ``"functional/dense_1"``; empty where its name has none."""
    return "/".join(scopes(name)[:_DEPTH])


def path_of(name: str) -> str:
    """The innermost layer of a forward node, such as ``"functional/dense"``; the node's name where it has none."""
    return "/".join(scopes(name)) or name.rpartition("/")[2]


def without_calls(name: str) -> str:
    """A node's name in the function that it was inlined from."""
    found = _CALLS.match(name)
    return name[found.end() :] if found else name


def is_gradient(name: str) -> bool:
    """Whether a node was made by TensorFlow to compute a gradient."""
    return _GRADIENTS.search(name) is not None


def is_within(name: str, path: str) -> bool:
    """Whether a node belongs to a layer: its own nodes, those of layers in it, and the gradients of both.

    Args:
        name: the node's.
        path: the layer's, or the name of a node outside of layers.
    """
    return f"/{path}/" in f"/{_whole(name)}/"


@functools.lru_cache(maxsize=65_536)
def _whole(name: str) -> str:
    """The scopes and the last part of a name; of a gradient, the parts of the forward node's name before its own."""
    parts = [*scopes(name), name.rpartition("/")[2]]
    return "/".join(part.removesuffix(_OF_GRADIENT) for part in parts) if is_gradient(name) else "/".join(parts)
