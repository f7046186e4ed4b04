"""Reads SavedModels, Keras files, models in memory, GraphDef files and checkpoints.

It also writes GraphDef files, and checkpoints with some variables in 16 bit.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from amp_tf.errors import FileError, GraphError, first_line
from amp_tf.files import check_regular, read_regular
from amp_tf.graph.names import node_of
from amp_tf.graph.protos import new_graph
from amp_tf.reporting import files
from amp_tf.reporting.files import AnyPath

TEXT_SUFFIXES = (".pbtxt", ".txt")
MODEL_FILE = "saved_model.pb"
TEXT_MODEL_FILE = "saved_model.pbtxt"  # read where there is no binary one, as TensorFlow does
# TensorFlow writes it, on request, for models above protobuf's 2 GiB.
_SPLIT_MODEL_FILE = "saved_model.cpb"
VARIABLES_FOLDER = "variables"
PREFIX = "variables"  #: Begins the names of a checkpoint's files.
_MOST_BYTES = 2 << 30  # protobuf's own limit for a GraphDef or SavedModel


def read_graph_file(path: AnyPath) -> Any:
    """Reads a GraphDef from a ``.pb`` or ``.pbtxt`` file; a FileError where there is none."""
    fix = (
        "Name a SavedModel's folder (not its saved_model.pb), a Keras file, or a file that holds "
        "a whole GraphDef: "
    )
    return _read_proto(Path(path), fix=f"{fix}.pb (binary) or .pbtxt (text)")


def _read_proto(path: Path, fix: str, *, of_model: bool = False) -> Any:
    """Reads a GraphDef or ``SavedModel`` proto, binary or as text; a FileError where it is none."""
    with files.naming(path, "cannot be read", fix):
        data = read_regular(path, _MOST_BYTES)  # before TensorFlow is imported, which takes seconds
    if not data:
        raise FileError("the file is empty", where=str(path), fix=fix)
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    proto = new_graph()
    if of_model:
        proto = SavedModel()
    try:
        if path.name.endswith(TEXT_SUFFIXES):
            return text_format.Parse(data.decode(), proto)
        proto.ParseFromString(data)
        return proto
    except (text_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"holds no graph ({error})", where=str(path), fix=fix) from None


def write_graph_file(graph: Any, path: AnyPath) -> None:
    """Writes a GraphDef, as text where the name ends in ``.pbtxt`` or ``.txt``.

    Raises:
        FileError: it cannot be written; the old content, which may be the input, is still there.
    """
    content = graph.SerializeToString
    if str(path).endswith(TEXT_SUFFIXES):
        content = graph.__str__
    with files.writing(path):
        files.write(path, content())


def is_keras_file(source: Any) -> bool:
    """Tells whether a value is the path of a file written by Keras' ``model.save``."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    return str(source).endswith((".keras", ".h5")) and os.path.isfile(source)


@contextlib.contextmanager
def saved_model_of(source: Any) -> Iterator[Path]:
    """Yields the folder of a SavedModel, or a temporary one that exists during the block.

    Args:
        source: the folder of a SavedModel; or a ``.keras`` or ``.h5`` file, a Keras model or a
            ``tf.Module``, which is exported.

    Raises:
        GraphError: the model cannot be loaded or exported.
    """
    is_path = isinstance(source, (str, os.PathLike))
    if is_path and not is_keras_file(source):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/model"
        if is_path:
            files.check_unpacked(source)
        try:
            model = source
            if is_path:
                model = _load_keras(source)
            if hasattr(model, "export"):
                # Keras describes the model on stdout, with the temporary folder.
                with contextlib.redirect_stdout(io.StringIO()):
                    model.export(place)
            else:
                importlib.import_module("tensorflow").saved_model.save(model, place)
        except Exception as error:  # of any class: from Keras, its layers or TensorFlow
            where = type(source).__name__
            if is_path:
                where = str(source)
            raise GraphError(
                f"the model cannot be exported ({first_line(error).rstrip('.')})",
                where=where,
                fix="Call the model on data once before, or export it by hand: "
                "model.export(folder)",
            ) from error
        yield Path(place)


def _load_keras(path: Any) -> Any:
    """Loads a model with the library that saved it, Keras 3 or tf_keras."""
    library = "keras"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            metadata = json.loads(archive.read("metadata.json"))
        if metadata.get("keras_version", "").startswith("2."):
            library = "tf_keras"
    return importlib.import_module(library).models.load_model(path, compile=False)


def is_saved_model(folder: AnyPath) -> bool:
    """Tells whether a folder holds a SavedModel."""
    return any(os.path.isfile(Path(folder) / name) for name in (MODEL_FILE, TEXT_MODEL_FILE))


def read_saved_model(folder: Path) -> Any:
    """Reads the ``SavedModel`` proto of a folder, with at least one MetaGraph.

    Raises:
        FileError: there is none, or a damaged one.
    """
    if not is_saved_model(folder):  # before TensorFlow is imported, which takes seconds
        what = f"there is no {MODEL_FILE}"
        fix = "Name the folder that tf.saved_model.save or model.export has written"
        if os.path.isfile(folder / _SPLIT_MODEL_FILE):
            what = f"the model is split ({_SPLIT_MODEL_FILE}), because it is larger than 2 GiB"
            fix = "Keep large constants in variables and save the model again"
        raise FileError(what, where=str(folder), fix=fix)
    _check_files(folder)
    file = folder / MODEL_FILE
    if not os.path.isfile(file):
        file = folder / TEXT_MODEL_FILE
    model = _read_proto(file, fix="Save the model again", of_model=True)
    if not model.meta_graphs:
        raise FileError("holds no graph", where=str(file), fix="Save the model again")
    return model


def _check_files(folder: Path) -> None:
    """Refuses pipes, devices and links to them: reading one hangs.

    Raises:
        FileError: the model's folder holds one.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with (
                files.naming(path, "cannot be read", "Remove it from the model's folder"),
                contextlib.suppress(FileNotFoundError),  # of a link to nothing
            ):
                check_regular(os.stat(path))


def preserved_nodes(meta_graph: Any) -> set[str]:
    """Returns the nodes that are named outside the graph.

    Signatures, savers, and collections of ops and tensors name nodes.
    """
    tensors: list[str] = []
    for signature in meta_graph.signature_def.values():
        tensors += _tensor_names([*signature.inputs.values(), *signature.outputs.values()])
    saver = meta_graph.saver_def
    tensors += [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
    for collection in meta_graph.collection_def.values():
        tensors += collection.node_list.value
    named = set(map(node_of, tensors))
    # Collections may name nodes that no longer exist.
    return named.intersection(node.name for node in meta_graph.graph_def.node)


def _tensor_names(infos: Iterable[Any]) -> Iterator[str]:
    for info in infos:
        sparse = info.coo_sparse  # empty in other encodings, as is the name in this one
        yield from (
            info.name,
            sparse.values_tensor_name,
            sparse.indices_tensor_name,
            sparse.dense_shape_tensor_name,
        )
        yield from _tensor_names(info.composite_tensor.components)


class Checkpoint:
    """The checkpoint in a SavedModel's folder. A damaged one is a FileError.

    Attributes:
        shapes: the shapes of its float32 tensors, by key; empty for a model without variables.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self._prefix = os.fspath(folder / VARIABLES_FOLDER / PREFIX)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._reader: Any = None
        if not os.path.isfile(f"{self._prefix}.index"):
            return
        with self._reading():
            self._reader = tf.train.load_checkpoint(self._prefix)
        self._types = self._reader.get_variable_to_dtype_map()
        for key, shape in self._reader.get_variable_to_shape_map().items():
            if self._types[key] == tf.float32:
                self.shapes[key] = tuple(shape)

    def keys_of(self, objects: Any) -> Iterator[tuple[int, str]]:
        """Yields the variables of a SavedObjectGraph that are saved here: object number and key.

        A checkpoint has an object graph of its own. Two objects are the same if the same names lead
        to them from the root, as when TensorFlow restores them.
        """
        from tensorflow.python.checkpoint.checkpoint import object_metadata

        if self._reader is None or not objects.nodes:
            return
        if "_CHECKPOINTABLE_OBJECT_GRAPH" not in self._types:
            return
        with self._reading():
            saved = object_metadata(self._prefix).nodes
        waiting = [(0, 0)]
        seen = {(0, 0)}
        while waiting:
            number, saved_number = waiting.pop()
            if objects.nodes[number].HasField("variable"):
                for value in saved[saved_number].attributes:
                    if value.name == "VARIABLE_VALUE":
                        yield number, value.checkpoint_key
            children = {child.local_name: child.node_id for child in saved[saved_number].children}
            for child in objects.nodes[number].children:
                if child.local_name not in children:
                    continue
                pair = (child.node_id, children[child.local_name])
                if pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)

    def fits(self, key: str, data_type: int) -> bool:
        """Tells whether all finite values of a float32 tensor are finite in a 16-bit type, too.

        Raises:
            FileError: they cannot be read.
        """
        import numpy as np
        import tensorflow as tf

        with self._reading():
            values = self._reader.get_tensor(key)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = values.astype(tf.as_dtype(data_type).as_numpy_dtype)
        return bool((np.isfinite(rounded) | ~np.isfinite(values)).all())

    def write(self, folder: Path, types: Mapping[str, int]) -> None:
        """Writes a copy in which some tensors have another type, rounded as a cast rounds.

        Args:
            folder: the folder of the SavedModel that the copy belongs to.
            types: the ``DataType`` numbers of these tensors, by key.

        Raises:
            FileError: the checkpoint cannot be read, or the copy cannot be written.
        """
        import tensorflow as tf

        prefix = os.fspath(folder / VARIABLES_FOLDER / PREFIX)
        keys = sorted(self._types)
        whole = [""] * len(keys)
        no_gpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        # A session also runs in a program that has turned eager execution off.
        with tf.Graph().as_default(), tf.compat.v1.Session(config=no_gpu) as session:
            dtypes = [self._types[key] for key in keys]
            values = tf.raw_ops.RestoreV2(
                prefix=self._prefix, tensor_names=keys, shape_and_slices=whole, dtypes=dtypes
            )
            for place, key in enumerate(keys):
                values[place] = tf.cast(values[place], types.get(key, dtypes[place]))
            save = tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=keys, shape_and_slices=whole, tensors=values
            )
            try:
                session.run(save)
            except tf.errors.OpError as error:
                raise FileError(
                    f"cannot be copied to {prefix!r} ({error.message})",
                    where=self._prefix,
                    fix="See that it can be read, and that there is room for the copy where you "
                    "may write",
                ) from None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Makes a FileError of any error: TensorFlow raises several kinds, not all its own."""
        try:
            yield
        except Exception as error:
            raise FileError(
                f"the checkpoint cannot be read ({error})",
                where=self._prefix,
                fix="Save the model again",
            ) from None
