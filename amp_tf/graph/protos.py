"""Reads what the nodes of a GraphDef say into arrays, and which nodes are alike.

TensorFlow's own protocol buffers hold the graph. Each node is asked once for its name, device and
inputs. Nodes of one *kind* have the same op and the same attributes. Attributes whose names begin
with an underscore are TensorFlow's own marks (a place, shapes) and do not count, unless they give
a type, a number or a list of types: a function of the library may define such. Signatures and types
are read once a kind: 132 times for an LSTM's 1,573 nodes.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph.datatypes import Indices, Node

CONTROL = -1  #: among the sources of inputs: a control input
UNKNOWN = -2  #: not a tensor of the graph; smaller numbers: a control input that names no node
MAX_DIGITS = 9  #: digits of a port; no op has so many ports
_TENSOR = re.compile(rf"(.*):([0-9]{{1,{MAX_DIGITS}}})", re.DOTALL)
# bytes from which a node, a constant, is a kind of its own: they would be kept to compare it
_LARGE = 4096
_PORT_BITS = 32
_PORT_MASK = (1 << _PORT_BITS) - 1
_NOT_OF_A_KIND = ("name", "input", "device", "experimental_debug_info", "experimental_type")


@dataclasses.dataclass(frozen=True)
class NodeFacts:
    """What the nodes of a graph say, attributes apart.

    Attributes:
        names: of all nodes.
        devices: likewise.
        kinds: of each node, the number of its kind.
        firsts: the first node of each kind.
        input_counts: how many inputs each node has, control inputs included.
        sources: of all inputs of all nodes, in order: the node, :data:`CONTROL`, or
            :data:`UNKNOWN` and less.
        ports: of all inputs, in the same order, the port that is read.
    """

    names: list[str]
    devices: list[str]
    kinds: Indices
    firsts: list[Node]
    input_counts: Indices
    sources: Indices
    ports: Indices


def read_facts(nodes: Sequence[Any]) -> NodeFacts:
    """Reads the NodeDefs of a graph. Of two nodes with one name, inputs name the later."""
    names = [node.name for node in nodes]
    texts = [node.input[:] for node in nodes]
    tensors = _Tensors(names)
    ends = np.fromiter(map(tensors.__getitem__, itertools.chain.from_iterable(texts)), np.int64)
    first_of: dict[bytes | Node, Node] = {}
    first_alike = [
        first_of.setdefault(_kind_of(node, number), number) for number, node in enumerate(nodes)
    ]
    firsts, kinds = np.unique(np.array(first_alike, np.int32), return_inverse=True)
    return NodeFacts(
        names=names,
        devices=[sys.intern(node.device) for node in nodes],
        kinds=kinds.astype(np.int32).reshape(-1),
        firsts=firsts.tolist(),
        input_counts=np.array(list(map(len, texts)), np.int32),
        sources=(ends >> _PORT_BITS).astype(np.int32),
        ports=(ends & _PORT_MASK).astype(np.int32),
    )


class _Tensors(dict[str, int]):
    """What each text that names an input means: a node and a port, in one number.

    Texts are read once.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__((name, number << _PORT_BITS) for number, name in enumerate(names))
        self._nodes = dict(self)

    def __missing__(self, text: str) -> int:
        """Reads a text that is no node's name as it stands."""
        found = _TENSOR.fullmatch(text)
        if text.startswith("^"):
            tensor = (CONTROL if text[1:] in self._nodes else UNKNOWN - 1) << _PORT_BITS
        elif found is None or found[1] not in self._nodes:
            tensor = UNKNOWN << _PORT_BITS
        else:
            tensor = self._nodes[found[1]] + int(found[2])
        self[text] = tensor
        return tensor


def _kind_of(node: Any, number: Node) -> bytes | Node:
    """What nodes of one kind have in common: the op and its attributes, serialized."""
    kind = type(node)()
    kind.CopyFrom(node)
    for field in _NOT_OF_A_KIND:
        kind.ClearField(field)
    for key in [key for key in kind.attr if key[:1] == "_"]:
        if not _gives_ports(kind.attr[key]):
            del kind.attr[key]
    content: bytes = kind.SerializeToString(deterministic=True)
    return content if len(content) < _LARGE else number


def _gives_ports(value: Any) -> bool:
    """Whether an attribute's value gives types or ports: a type, a number, or a list of types."""
    held = value.WhichOneof("value")
    return held in ("type", "i") or (held == "list" and len(value.list.type) > 0)


def parse_graph(data: bytes) -> Any:
    """The GraphDef of a serialized one.

    Raises:
        GraphError: it is not a GraphDef.
    """
    from google.protobuf.message import DecodeError

    graph = new_graph()
    try:
        graph.MergeFromString(data)
    except DecodeError as error:
        what = f"not a serialized GraphDef ({error})"
        raise GraphError(what, where=f"{len(data)} bytes") from error
    return graph


def new_graph(**fields: Any) -> Any:
    """A GraphDef with these fields."""
    from tensorflow.core.framework import graph_pb2

    return graph_pb2.GraphDef(**fields)
