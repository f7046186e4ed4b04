"""Reads and writes graphs on disk: a GraphDef, binary or text, or the graphs of a SavedModel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from amp_tf.errors import FileError
from amp_tf.offline.live_model import is_keras_file, saved_model_of
from amp_tf.offline.saved_model import preserved_nodes, read_saved_model
from amp_tf.reporting import files

TEXT_SUFFIXES = (".pbtxt", ".txt")
_KERAS_FILES = (b"PK\x03\x04", b"\x89HDF")  # how a .keras file (a zip) and a .h5 file begin


def read_graphs(path: str | Path) -> list[tuple[Any, set[str]]]:
    """The GraphDef of a file, or those of a SavedModel or a Keras file, one for each MetaGraph.

    Returns:
        Each GraphDef, and the names of the nodes that stay as they are when it is converted, because a SavedModel's
        signatures name them; none for a file.

    Raises:
        FileError: there is no such file or model, or it holds no graph.
    """
    if os.path.isdir(path) or is_keras_file(path):
        with saved_model_of(path) as folder:
            meta_graphs = read_saved_model(folder).meta_graphs
        return [(meta_graph.graph_def, preserved_nodes(meta_graph)) for meta_graph in meta_graphs]
    return [(read_graph_file(path), set())]


def read_graph_file(path: str | Path) -> Any:
    """A GraphDef from a ``.pb`` or ``.pbtxt`` file.

    Raises:
        FileError: there is no such file, or it holds no graph.
    """
    path = Path(path)
    fix = "Name a SavedModel's folder, a Keras file, or a file that holds a GraphDef: .pb (binary) or .pbtxt (text)"
    try:
        data = path.read_bytes()  # before TensorFlow is imported, which takes seconds
    except OSError as error:
        raise FileError(f"cannot be read ({error.strerror})", where=str(path), fix=fix) from None
    if not data:
        raise FileError("the file is empty", where=str(path), fix=fix)
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import graph_pb2

    try:
        if not path.name.endswith(TEXT_SUFFIXES):
            return graph_pb2.GraphDef.FromString(data)
        return text_format.Parse(data.decode(), graph_pb2.GraphDef())
    except text_format.ParseError as error:
        if _is_truncated(data.decode(), error.GetLine() or 0):
            what, fix = f"the text ends too early ({error}): the file is truncated", "Write or copy it again"
            raise FileError(what, where=str(path), fix=fix) from None
        raise FileError(f"holds no graph ({error})", where=str(path), fix=_other_kind(path) or fix) from None
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"holds no graph ({error})", where=str(path), fix=_other_kind(path) or fix) from None


def _is_truncated(text: str, line: int) -> bool:
    """Whether text that does not parse begins as a graph does and ends with open braces."""
    is_at_the_end = line >= len(text.rstrip().splitlines())  # the parser names the last word that it could read
    return _is_graph_text(text.encode()) and is_at_the_end and text.count("{") > text.count("}")


def _is_graph_text(data: bytes) -> bool:
    return data.lstrip()[:4] in (b"node", b"vers", b"libr")


def _other_kind(path: Path) -> str:
    """What to do with a file that holds another kind of TensorFlow's data; empty where it is not recognized."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

    data = path.read_bytes()
    if data.startswith(_KERAS_FILES):
        return "It looks like a Keras model: write it as a SavedModel with model.export(folder)"
    kinds = (
        (saved_model_pb2.SavedModel, "meta_graphs", f"It is a SavedModel's: name its folder, {str(path.parent)!r}"),
        (meta_graph_pb2.MetaGraphDef, "graph_def", "It holds a MetaGraphDef: write its graph_def to a file of its own"),
    )
    for kind, field, fix in kinds:
        try:
            if getattr(kind.FromString(data), field):
                return fix
        except DecodeError:
            continue
    is_misnamed = _is_graph_text(data) and not path.name.endswith(TEXT_SUFFIXES)
    return "It is text: give it a name that ends in .pbtxt" if is_misnamed else ""


def write_graph_file(graph: Any, path: str | Path) -> None:
    """Writes a GraphDef, as text where the name ends in ``.pbtxt`` or ``.txt``.

    Raises:
        FileError: the file cannot be written; its old content, which may be the input, is still there.
    """
    data = str(graph) if str(path).endswith(TEXT_SUFFIXES) else graph.SerializeToString()
    with files.writing(path):
        files.write(path, data)
