"""Finds the Keras layer that a node belongs to, by the name scopes in the node's name.

A node's name holds the name scopes in which it was made. They do not quite tell the layer: Keras 3
opens a scope twice for each call, so ``encoder/block_1`` is ``net_1/encoder_1/block_1_1`` in
``fit``, and the scope ``dense_1`` may be that of the layer ``dense``. So scopes are recorded while
a program's graphs are traced (:mod:`amp_tf.hooks.layer_paths`), each with the layer that opened it.
The graphs of files have no record, and there a number at the end of a scope may be TensorFlow's or
the layer's.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import threading
from collections.abc import Container, Iterable, Sequence

# Names of scopes that TensorFlow adds. Layers may have names of the last three groups, too.
_KINDS = re.compile(
    r"(?P<added>((Stateful|Stateless)?PartitionedCall|gradient_tape)?(_\d+)?|__inference_.*|Func"
    r"|(Constant|Arithmetic|Layout)(Folding|Optimizer))"
    r"|(?P<branch>body|then|else|branch\d+)"
    r"|(?P<op>(while|cond)(_grad)?(_\d+)?)"
    r"|(?P<gradients>gradients(_\d+)?)"
)
_NUMBER = re.compile(r"_\d+")  # of the body of a lowered loop or branch: while/body/_12
_OF_GRADIENT = "_grad"  # TF1 has MatMul_grad/MatMul for what eager tapes call MatMul/MatMul
# The limit of recorded scopes: a program that makes models without end must not fill the memory.
_MOST = 50_000
_DEPTH = 2  # a model and a layer of it


@dataclasses.dataclass(frozen=True)
class KerasLayer:
    """A layer that opened a name scope.

    Attributes:
        path: Keras' ``layer.path``, which begins below a functional model; tf_keras has none, so
            there it is the names joined by slashes.
        names: the names of the layers around it, the outermost first, and its own.
    """

    path: str
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Place:
    """The place in the program where a node was made, according to its scopes.

    Attributes:
        parts: the scopes that TensorFlow did not add, the outermost first.
        named: ``parts``, and scopes that may belong to a loop, a branch or a layer.
        layers: the recorded layers of the innermost scope that a layer opened; several where layers
            of different graphs share it.
    """

    parts: tuple[str, ...]
    named: tuple[str, ...]
    layers: tuple[KerasLayer, ...]
    is_gradient: bool


class Scopes:
    """The record of one process: which layers opened which name scopes. Thread-safe.

    Several graphs may use one scope.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._layers: dict[str, tuple[KerasLayer, ...]] = {}
        self._place_in = functools.lru_cache(_MOST)(self._read)  # forgets when the record grows

    def record(self, scope: str, layer: KerasLayer) -> None:
        """Notes that a layer opened a scope.

        Several layers may open one scope in different graphs; the latest comes first.

        Args:
            scope: its whole name, such as ``"net_1/lstm_1/while/lstm_cell_1"``.
            layer: the layer.
        """
        with self._lock:
            known = self._layers.get(scope, ())
            if not scope or known[:1] == (layer,):
                return
            if not known and len(self._layers) >= _MOST:
                self._layers.pop(next(iter(self._layers)))
            self._layers[scope] = (layer, *(other for other in known if other != layer))
            self._place_in.cache_clear()

    def forget(self) -> None:
        """Forgets everything."""
        self._layers = {}
        self._place_in.cache_clear()

    def paths(self) -> list[str]:
        """Returns the paths of all layers, each once."""
        with self._lock:
            layers = itertools.chain.from_iterable(self._layers.values())
            return list(dict.fromkeys(layer.path for layer in layers))

    def place(self, name: str) -> _Place:
        """Returns the place where a node was made."""
        return self._place_in(name.rpartition("/")[0])

    def _read(self, around: str) -> _Place:
        """Separates the scopes that TensorFlow added from those of layers.

        A recorded scope may begin at any part, because a loop's body repeats the scopes around the
        loop. A scope named like a loop, a branch or a gradient is a layer's only if the record has
        it from the beginning of a graph's names: the first part, or one behind a scope that
        TensorFlow added.
        """
        scopes = around.split("/") if around else []
        parts = []
        named = []
        layers: tuple[KerasLayer, ...] = ()
        begins = [0]
        is_gradient = False
        for number, scope in enumerate(scopes):
            kind = _kind(scope)
            starts: Sequence[int] = range(number + 1)
            if kind:
                starts = begins
            opened = self._opening(scopes[: number + 1], starts)
            if not kind or opened or not _is_added(kind, scopes[number:], number in begins):
                parts.append(scope)
                named.append(scope)
                layers = opened or layers
                continue
            begins.append(number + 1)
            is_gradient |= scope.startswith("gradient")
            if kind == "op" and not _is_numbered(scopes[number:]):
                named.append(scope)
        return _Place(tuple(parts), tuple(named), layers, is_gradient)

    def _opening(self, scopes: Sequence[str], starts: Iterable[int]) -> tuple[KerasLayer, ...]:
        """Returns the recorded layers that opened the last of some scopes.

        The recorded name may begin at any of the starts; the first one in the record counts.
        """
        for start in starts:
            layers = self._layers.get("/".join(scopes[start:]))
            if layers:
                return layers
        return ()


@functools.lru_cache(maxsize=65_536)
def _kind(scope: str) -> str:
    """Returns the group of ``_KINDS`` that a scope's name is in, or an empty text."""
    found = _KINDS.fullmatch(scope)
    if found is None or found.lastgroup is None:
        return ""
    return found.lastgroup


def _is_added(kind: str, scopes: Sequence[str], is_first: bool) -> bool:
    """Tells whether TensorFlow added the first of some scopes, which no known layer opened.

    A branch's body has a number behind its name. A scope of gradients is the first of a graph's
    names, or is followed by names of forward nodes that end with ``_grad``.
    """
    if kind == "branch":
        return _is_numbered(scopes)
    if kind == "gradients":
        return is_first or any(scope.endswith(_OF_GRADIENT) for scope in scopes)
    return True


def _is_numbered(scopes: Sequence[str]) -> bool:
    """Tells whether the first of some scopes is a loop, a branch, or the body of one."""
    return any(map(_NUMBER.fullmatch, scopes[1:3]))


recorded = Scopes()  #: of this process


def scopes(name: str) -> list[str]:
    """Returns the name scopes around a node, the outermost first.

    The scopes that TensorFlow itself adds are left out.
    """
    return list(recorded.place(name).parts)


def scope_of(name: str) -> str:
    """Returns the scopes around a forward node, such as ``"functional_1/dense_1"``.

    A node without scopes gives its own name.
    """
    return "/".join(scopes(name)) or name.rpartition("/")[2]


def is_gradient(name: str) -> bool:
    """Tells whether TensorFlow made a node to compute a gradient."""
    return recorded.place(name).is_gradient


def innermost_scope(name: str, known: Container[str]) -> str:
    """Returns the longest known scope around a node, or around the forward node of a gradient.

    Scopes that TensorFlow adds do not count. The text is empty where no known scope is around it.
    """
    parts = _whole(name).split("/")
    innermost = ""
    for start, end in itertools.combinations(range(len(parts) + 1), 2):
        scope = "/".join(parts[start:end])
        if scope in known and len(scope) > len(innermost):
            innermost = scope
    return innermost


def _whole(name: str) -> str:
    """Returns a node's name without the scopes that TensorFlow adds.

    In the name of a gradient, the forward node's name comes before its own.
    """
    place = recorded.place(name)
    parts = [*place.parts, name.rpartition("/")[2]]
    if place.is_gradient:
        parts = [part.removesuffix(_OF_GRADIENT) for part in parts]
    return "/".join(parts)


def path_of(name: str) -> str:
    """Returns the recorded path of the innermost layer of a node, or an empty text."""
    layers = recorded.place(name).layers
    if not layers:
        return ""
    return layers[0].path


def layer_of(name: str) -> str:
    """Returns the layer of a node: its path in Keras where it was recorded, else a guess.

    A guess is the outermost scopes, such as ``"functional_1/dense_1"``; it is empty for a node
    without scopes.
    """
    return path_of(name) or "/".join(scopes(name)[:_DEPTH])
