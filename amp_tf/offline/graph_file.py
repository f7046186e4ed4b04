"""Reads and writes a graph on disk: a GraphDef, binary or text, or the first graph of a SavedModel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amp_tf.errors import GraphError
from amp_tf.offline.saved_model import MODEL_FILE, is_saved_model

TEXT_SUFFIXES = (".pbtxt", ".txt")


def read_graph_file(path: str | Path) -> Any:
    """A GraphDef from a ``.pb`` or ``.pbtxt`` file, or from a SavedModel's folder (its first MetaGraph).

    Raises:
        GraphError: there is no such file, or it holds no graph.
    """
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import graph_pb2
    from tensorflow.core.protobuf import saved_model_pb2

    path = Path(path)
    fix = "Name a SavedModel's folder, or a file that holds a GraphDef: .pb (binary) or .pbtxt (text)"
    try:
        if is_saved_model(path):
            model = saved_model_pb2.SavedModel.FromString((path / MODEL_FILE).read_bytes())
            return model.meta_graphs[0].graph_def
        if path.name.endswith(TEXT_SUFFIXES):
            return text_format.Parse(path.read_text(encoding="utf-8"), graph_pb2.GraphDef())
        return graph_pb2.GraphDef.FromString(path.read_bytes())
    except OSError as error:
        raise GraphError(f"cannot be read ({error.strerror})", where=str(path), fix=fix) from None
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, IndexError) as error:
        raise GraphError(f"holds no graph ({error})", where=str(path), fix=fix) from None


def write_graph_file(graph: Any, path: str | Path) -> None:
    """Writes a GraphDef, as text where the name ends in ``.pbtxt`` or ``.txt``.

    Raises:
        GraphError: the file cannot be written.
    """
    path = Path(path)
    try:
        if path.name.endswith(TEXT_SUFFIXES):
            path.write_text(str(graph), encoding="utf-8")
        else:
            path.write_bytes(graph.SerializeToString())
    except OSError as error:
        raise GraphError(
            f"cannot be written ({error.strerror})", where=str(path), fix="Name a file that can be written"
        ) from None
