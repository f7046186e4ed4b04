"""Reads the nodes of a GraphDef into arrays, and finds nodes that are alike.

TensorFlow's own protocol buffers hold the graph. Each node is asked once for its name and inputs.
Python asks for attributes slowly. So protobuf itself writes the op, device and attributes of each
node as bytes (:func:`_contents`), and Python looks at nodes with equal bytes once.

Nodes of one *kind* have the same op and the same attributes. TensorFlow's own marks (a place,
shapes) begin with an underscore, and may have other values, unless these give a type, a number or a
list of types: a function of the library may define such. Signatures and types are read once a kind:
139 times for an LSTM's 1,573 nodes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph.datatypes import Indices, Node

#: The source of a control input.
CONTROL = -1
#: The source of an input whose text names nothing.
UNKNOWN = -2
_PORT_DIGITS = 9  # no op has more ports
_PORT_BITS = 32
_PORT_MASK = (1 << _PORT_BITS) - 1
_MARK = b"_"  # begins the names of marks
_LONG = 128  # the length of a name that takes two bytes
#: The messages as which a serialized GraphDef is read: a NodeDef has its attributes as bytes, and
#: no name and inputs; a GraphDef consists of these, or has its nodes as bytes.
_MESSAGES = """
    name: "amp_tf/contents.proto"
    message_type {
        name: "Content"
        field { name: "op" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
        field { name: "device" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "attr" number: 5 type: TYPE_BYTES label: LABEL_REPEATED }
    }
    message_type {
        name: "Contents"
        field {
            name: "node" number: 1 type: TYPE_MESSAGE type_name: ".Content" label: LABEL_REPEATED
        }
    }
    message_type {
        name: "Lines"
        field { name: "node" number: 1 type: TYPE_BYTES label: LABEL_REPEATED }
    }
"""


@dataclasses.dataclass(frozen=True)
class NodeFacts:
    """The nodes of a graph, without their attributes.

    Attributes:
        names, devices: those of each node.
        texts: the inputs of each node, as it names them.
        kinds: the number of each node's kind.
        firsts: the first node of each kind.
    """

    names: list[str]
    devices: list[str]
    texts: list[list[str]]
    kinds: Indices
    firsts: list[Node]


def read_facts(graph: Any) -> NodeFacts:
    """Reads the nodes of a GraphDef, but not its library."""
    nodes = graph.node
    devices, kinds, firsts = _find_alike(_contents(graph))
    return NodeFacts(
        names=[node.name for node in nodes],
        devices=devices,
        texts=[node.input[:] for node in nodes],
        kinds=np.array(kinds, np.int32),
        firsts=firsts,
    )


def pack(node: int, port: int) -> int:
    """Packs a node, or :data:`CONTROL`, and a port into one number."""
    return (node << _PORT_BITS) + port


NO_TENSOR = pack(UNKNOWN, 0)


def find_inputs(
    texts: Sequence[Sequence[str]], tensors: Mapping[str, int], nodes: Indices
) -> Indices:
    """Finds what nodes read.

    Args:
        texts: the inputs of each node, as it names them.
        tensors: what each text names, packed: a node and a port; :data:`CONTROL` and a node;
            :data:`NO_TENSOR`.
        nodes: the numbers of the nodes.

    Returns:
        Four rows, which have for each input what it names, unpacked, the node that reads it, and
        its place among the inputs of this node.
    """
    counts = np.array(list(map(len, texts)), np.int32)
    all_texts = itertools.chain.from_iterable(texts)
    ends = np.fromiter(map(tensors.__getitem__, all_texts), np.int64)
    starts = np.cumsum(counts) - counts
    positions = np.arange(len(ends)) - np.repeat(starts, counts)
    rows = [ends >> _PORT_BITS, ends & _PORT_MASK, np.repeat(nodes, counts), positions]
    return np.array(rows, np.int32)


class TensorNames(dict[str, int]):
    """Maps each text that names an input in a graph to what it names, packed.

    A text names the later one of two nodes with one name. Most texts are names of nodes, which are
    kept; the others are read each time.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(zip(names, itertools.count(0, pack(1, 0))))

    def __missing__(self, text: str) -> int:
        """Reads a text that is not the name of a node."""
        if text.startswith("^"):
            if text[1:] in self:
                return pack(CONTROL, self[text[1:]] >> _PORT_BITS)
            return NO_TENSOR
        name, _, port = text.rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS
        if is_port and name in self:
            return self[name] + int(port)
        return NO_TENSOR


def _find_alike(contents: Sequence[bytes]) -> tuple[list[str], list[int], list[Node]]:
    """Returns the device and the number of the kind of each node, and the first node of each kind.

    Args:
        contents: what :func:`_contents` returns for the nodes.
    """
    first_with: dict[bytes, Node] = {}
    same_content = list(map(first_with.setdefault, contents, range(len(contents))))
    messages = _messages()
    devices: dict[Node, str] = {}
    kinds: dict[Node, int] = {}
    numbers: dict[Hashable, int] = {}
    firsts: list[Node] = []
    for content, node in first_with.items():
        parsed = messages["Content"].FromString(content)
        devices[node] = sys.intern(parsed.device)
        kinds[node] = numbers.setdefault(_kind_of(parsed, messages["Attribute"]), len(firsts))
        if kinds[node] == len(firsts):
            firsts.append(node)
    all_devices = list(map(devices.__getitem__, same_content))
    return all_devices, list(map(kinds.__getitem__, same_content)), firsts


def _contents(graph: Any) -> list[bytes]:
    """Returns what each node of a GraphDef says but for its name and inputs, serialized.

    The serialized graph is parsed as a message that knows fewer fields, and written again.
    """
    messages = _messages()
    stripped = messages["Contents"].FromString(graph.SerializeToString(deterministic=True))
    stripped.DiscardUnknownFields()
    found: list[bytes] = messages["Lines"].FromString(stripped.SerializeToString()).node[:]
    return found


@functools.cache
def _messages() -> Mapping[str, Any]:
    """Makes the messages of :data:`_MESSAGES`; and ``Attribute``, an attribute with its name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
    from tensorflow.core.framework import node_def_pb2

    file = text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {"Attribute": node_def_pb2.NodeDef.AttrEntry}
    if hasattr(message_factory, "GetMessageClass"):
        class_of = message_factory.GetMessageClass
    else:  # protobuf before 4.22
        class_of = message_factory.MessageFactory(pool).GetPrototype
    for message in file.message_type:
        found[message.name] = class_of(pool.FindMessageTypeByName(message.name))
    return found


def _kind_of(content: Any, attribute: Any) -> Hashable:
    """Returns what nodes of one kind have in common: op and attributes, but the values of marks.

    Args:
        content: a ``Content`` of :func:`_messages`.
        attribute: the ``Attribute`` there.
    """
    kind = [content.op]
    for entry in content.attr:
        # The name stands behind its tag and its length; those of marks take one byte for that.
        if entry[2:3] == _MARK and entry[1] < _LONG:
            mark = attribute.FromString(entry)
            if not _gives_ports(mark.value):
                entry = mark.key
        kind.append(entry)
    return tuple(kind)


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
