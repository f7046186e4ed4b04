"""Reads the nodes of a GraphDef into arrays, and finds nodes that are alike.

TensorFlow's own protocol buffers hold the graph. Each node is asked once for its name, device and
inputs. Nodes of one *kind* have the same op and the same attributes. Attributes whose names begin
with an underscore are TensorFlow's own marks (a place, shapes) and do not count, unless they give a
type, a number or a list of types, as attributes of a library function may. Signatures and types are
read once for each kind: 132 times for an LSTM's 1,573 nodes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph.datatypes import Indices, Node

#: The source of a control input.
CONTROL = -1
#: The source of an input whose text names nothing.
UNKNOWN = -2
NO_TENSOR = (UNKNOWN, 0)
_TENSOR = re.compile(r"(.*):([0-9]{1,9})", re.DOTALL)  # no op has more ports
# A node of so many bytes is a constant, and a kind of its own: comparing it would keep the bytes.
_LARGE = 4096
_PORT_BITS = 32
_PORT_MASK = (1 << _PORT_BITS) - 1
_NOT_OF_A_KIND = ("name", "input", "device", "experimental_debug_info", "experimental_type")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of all nodes of a graph, control inputs included, one after the other.

    Attributes:
        counts: how many inputs each node has.
        sources: the node that each input names, or :data:`CONTROL`, or :data:`UNKNOWN`.
        ports: the output port that each input names; for a control input, the node.
    """

    counts: Indices
    sources: Indices
    ports: Indices

    @functools.cached_property
    def readers(self) -> Indices:
        """The node of each input."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    @functools.cached_property
    def positions(self) -> Indices:
        """The place of each input among those of its node."""
        starts = np.cumsum(self.counts, dtype=np.int32) - self.counts
        return np.arange(len(self.readers), dtype=np.int32) - starts[self.readers]


@dataclasses.dataclass(frozen=True)
class NodeFacts:
    """The nodes of a graph, without their attributes.

    Attributes:
        names, devices: the name and the device of each node.
        kinds: the number of each node's kind.
        firsts: the first node of each kind.
        inputs: the inputs of all nodes.
    """

    names: list[str]
    devices: list[str]
    kinds: Indices
    firsts: list[Node]
    inputs: Inputs


def read_facts(nodes: Sequence[Any]) -> NodeFacts:
    """Reads the NodeDefs of a graph.

    An input names the later one of two nodes with the same name.
    """
    names = [node.name for node in nodes]
    texts = [node.input[:] for node in nodes]
    tensors = _Tensors(names)
    all_texts = itertools.chain.from_iterable(texts)
    ends = np.fromiter(map(tensors.__getitem__, all_texts), np.int64)
    first_of: dict[bytes | Node, Node] = {}
    first_alike = []
    for number, node in enumerate(nodes):
        first_alike.append(first_of.setdefault(_kind_of(node, number), number))
    firsts, kinds = np.unique(np.array(first_alike, np.int32), return_inverse=True)
    return NodeFacts(
        names=names,
        devices=[sys.intern(node.device) for node in nodes],
        kinds=kinds.astype(np.int32).reshape(-1),
        firsts=firsts.tolist(),
        inputs=Inputs(
            counts=np.array(list(map(len, texts)), np.int32),
            sources=(ends >> _PORT_BITS).astype(np.int32),
            ports=(ends & _PORT_MASK).astype(np.int32),
        ),
    )


class _Tensors(dict[str, int]):
    """Maps each text that names an input to a node and a port, packed into one number.

    Each text is read once.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__((name, number << _PORT_BITS) for number, name in enumerate(names))
        self._nodes = dict(self)

    def __missing__(self, text: str) -> int:
        """Reads a text that is not the name of a node."""
        tensor = UNKNOWN << _PORT_BITS
        found = _TENSOR.fullmatch(text)
        if text.startswith("^"):
            if text[1:] in self._nodes:
                awaited = self._nodes[text[1:]] >> _PORT_BITS
                tensor = (CONTROL << _PORT_BITS) + awaited
        elif found and found[1] in self._nodes:
            tensor = self._nodes[found[1]] + int(found[2])
        self[text] = tensor
        return tensor


def _kind_of(node: Any, number: Node) -> bytes | Node:
    """Returns the key of a node's kind: the op and its attributes, serialized.

    If these are large, the key is the node's number.
    """
    kind = type(node)()
    kind.CopyFrom(node)
    for field in _NOT_OF_A_KIND:
        kind.ClearField(field)
    marks = [key for key in kind.attr if key[:1] == "_"]
    for key in marks:
        if not _gives_ports(kind.attr[key]):
            del kind.attr[key]
    content: bytes = kind.SerializeToString(deterministic=True)
    return content if len(content) < _LARGE else number


def _gives_ports(value: Any) -> bool:
    """Tells whether an attribute may give types or ports: a type, a number, or a list of types."""
    held = value.WhichOneof("value")
    if held == "list":
        return len(value.list.type) > 0
    return held in ("type", "i")


def parse_graph(data: bytes) -> Any:
    """Parses a serialized GraphDef.

    Raises:
        GraphError: the bytes are not a GraphDef.
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
    """Makes a GraphDef with these fields."""
    from tensorflow.core.framework import graph_pb2

    return graph_pb2.GraphDef(**fields)
