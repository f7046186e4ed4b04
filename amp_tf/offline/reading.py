"""Reads what holds graphs: SavedModels, Keras files, models in memory, GraphDef files; writes the last."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from amp_tf.errors import FileError, GraphError
from amp_tf.reporting import files

TEXT_SUFFIXES = (".pbtxt", ".txt")
MODEL_FILE = "saved_model.pb"
TEXT_MODEL_FILE = "saved_model.pbtxt"  # read where there is no binary one, as TensorFlow does
_SPLIT_MODEL_FILE = "saved_model.cpb"  # what TensorFlow writes for models above protobuf's 2 GiB, on request
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
        text = data.decode()  # the parser names the last word that it could read
        is_at_the_end = (error.GetLine() or 0) >= len(text.rstrip().splitlines())
        if _is_graph_text(data) and is_at_the_end and text.count("{") > text.count("}"):
            what, fix = f"the text ends too early ({error}): the file is truncated", "Write or copy it again"
            raise FileError(what, where=str(path), fix=fix) from None
        raise FileError(f"holds no graph ({error})", where=str(path), fix=_other_kind(path) or fix) from None
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"holds no graph ({error})", where=str(path), fix=_other_kind(path) or fix) from None


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


KERAS_SUFFIXES = (".keras", ".h5")


def is_keras_file(source: Any) -> bool:
    """Whether a value is the path of a file written by Keras' ``model.save``."""
    return isinstance(source, (str, os.PathLike)) and str(source).endswith(KERAS_SUFFIXES) and os.path.isfile(source)


@contextlib.contextmanager
def saved_model_of(source: Any) -> Iterator[Path]:
    """The folder of a SavedModel: the given one, or a temporary one that exists during the block.

    Args:
        source: a SavedModel's folder, a ``.keras`` or ``.h5`` file, a Keras model, or a ``tf.Module``.

    Raises:
        GraphError: the model cannot be loaded or exported.
    """
    is_path = isinstance(source, (str, os.PathLike))
    if is_path and not is_keras_file(source):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        where = str(source) if is_path else type(source).__name__
        if is_path:
            files.check_unpacked(source)
        try:
            _export(_load(Path(source)) if is_path else source, f"{folder}/model")
        except Exception as error:  # whatever Keras, its layers or TensorFlow raise
            why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            fix = "Call the model on data once before, or export it by hand: model.export(folder)"
            raise GraphError(f"the model cannot be exported ({why})", where=where, fix=fix) from error
        yield Path(folder, "model")


def _load(path: Path) -> Any:
    library = "keras"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            is_old = json.loads(archive.read("metadata.json")).get("keras_version", "").startswith("2.")
        library = "tf_keras" if is_old else "keras"
    return importlib.import_module(library).models.load_model(path, compile=False)


def _export(model: Any, folder: str) -> None:
    if hasattr(model, "export"):
        with contextlib.redirect_stdout(io.StringIO()):  # hides Keras' description of a folder that is only temporary
            model.export(folder)
    else:
        import tensorflow as tf

        tf.saved_model.save(model, folder)


def is_saved_model(folder: str | Path) -> bool:
    """Whether a folder holds a SavedModel."""
    return any(os.path.isfile(Path(folder) / name) for name in (MODEL_FILE, TEXT_MODEL_FILE))


def read_saved_model(folder: Path) -> Any:
    """Reads the ``SavedModel`` proto of a folder; it has at least one MetaGraph.

    Raises:
        FileError: the folder has no SavedModel, or a damaged one.
    """
    if not is_saved_model(folder):  # before TensorFlow is imported, which takes seconds
        raise no_model(folder)
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / MODEL_FILE
    try:
        if os.path.isfile(file):
            model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        else:
            file = folder / TEXT_MODEL_FILE
            model = text_format.Parse(file.read_text(encoding="utf-8"), saved_model_pb2.SavedModel())
    except OSError as error:
        raise FileError(
            f"{file.name} cannot be read ({error.strerror})", where=str(folder), fix="Name a folder that you may read"
        ) from None
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{file.name} is damaged ({error})", where=str(folder), fix="Save the model again") from None
    if not model.meta_graphs:
        raise FileError(f"{file.name} holds no graph", where=str(folder), fix="Save the model again")
    return model


def preserved_nodes(meta_graph: Any) -> set[str]:
    """The nodes that something outside the graph names: signatures, savers, collections of ops and tensors."""
    tensors: list[str] = []
    for signature in meta_graph.signature_def.values():
        tensors += _tensor_names([*signature.inputs.values(), *signature.outputs.values()])
    saver = meta_graph.saver_def
    tensors += [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
    for collection in meta_graph.collection_def.values():
        tensors += collection.node_list.value
    named = {name.removeprefix("^").partition(":")[0] for name in tensors if name}
    # Collections may name nodes that no longer exist.
    return named.intersection(node.name for node in meta_graph.graph_def.node)


def no_model(folder: Path) -> FileError:
    """The error for a folder without a SavedModel."""
    if os.path.isfile(folder / _SPLIT_MODEL_FILE):
        return FileError(
            f"the model is split ({_SPLIT_MODEL_FILE}), because it is larger than 2 GiB",
            where=str(folder),
            fix="Keep large constants in variables and save the model again",
        )
    return FileError(
        f"there is no {MODEL_FILE}",
        where=str(folder),
        fix="Name the folder that tf.saved_model.save or model.export has written",
    )


def _tensor_names(infos: Iterable[Any]) -> list[str]:
    names = []
    for info in infos:
        if info.WhichOneof("encoding") == "coo_sparse":
            sparse = info.coo_sparse
            names += [sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name]
        elif info.WhichOneof("encoding") == "composite_tensor":
            names += _tensor_names(info.composite_tensor.components)
        else:
            names.append(info.name)
    return names
