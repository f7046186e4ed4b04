"""Models that are not SavedModels: those in memory, and Keras' own files."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amp_tf.errors import GraphError
from amp_tf.reporting import files

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
