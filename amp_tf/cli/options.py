"""Reads the options and files of subcommands: settings, devices, batch sizes, models and arrays."""

from __future__ import annotations

import argparse
import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError, FileError, GraphError, first_line
from amp_tf.files import open_regular
from amp_tf.hooks.notices import warn_of_unknown_variables
from amp_tf.offline import reading
from amp_tf.reporting import files
from amp_tf.values import read_batch, read_patterns


def batch_of(args: argparse.Namespace) -> Any:
    """Reads the batch sizes of ``--batch``; returns ``None`` where it is not given."""
    if args.batch is None:
        return None
    return read_batch(args.batch, "--batch")


def read_config(args: argparse.Namespace) -> AmpConfig:
    """Returns the environment's settings, changed by the options.

    Patterns are added to those of the environment; other settings are replaced. Warns of variables
    whose names are misspelt.
    """
    warn_of_unknown_variables()
    replaced = {}
    for field in ("precision", "target"):
        value = getattr(args, field, None)
        if value is not None:
            replaced[field] = value
    config = AmpConfig.from_env(without=list(replaced))
    patterns = list(config.keep_float32)
    for text in args.keep_float32:
        patterns += read_patterns(text, "keep_float32")
    return dataclasses.replace(config, keep_float32=tuple(patterns), **replaced)


def load_signature(source: str, name: str) -> tuple[Any, Any]:
    """Loads a model from disk.

    Returns the model, which keeps its variables live, and one of its signatures.

    Raises:
        FileError: there is no model, or a damaged one.
        GraphError: it has no such signature.
    """
    with reading.saved_model_of(source) as folder:
        reading.read_saved_model(folder)  # which says what is wrong with it
        import tensorflow as tf

        try:
            model = tf.saved_model.load(str(folder))
        except Exception as error:  # of many classes: a file is missing, or an op of a library
            raise FileError(
                f"TensorFlow cannot load the model ({first_line(error)})",
                where=source,
                fix="See that tf.saved_model.load can; ops of a library of your own are not loaded",
            ) from None
    if name not in model.signatures:
        fix = "Save the model with signatures, as model.export does"
        if model.signatures:
            fix = f"Choose with --signature: {', '.join(model.signatures)}"
        raise GraphError(f"the model has no signature {name!r}", where=source, fix=fix)
    return model, model.signatures[name]


def read_inputs(path: str, signature: Any) -> dict[str, Any]:
    """Reads the arrays of a ``.npz`` file, one for each argument of a signature.

    Returns tensors of the signature's types: NumPy's own float64 becomes float32.

    Raises:
        AmpError: the file has other arrays, or is damaged, or an array has another kind of values
            or another shape.
    """
    import tensorflow as tf

    inputs = signature.structured_input_signature[1]
    arrays = _read_arrays(path, sorted(inputs))
    tensors = {}
    for name, array in arrays.items():
        dtype = inputs[name].dtype
        shape = inputs[name].shape
        if not shape.is_compatible_with(array.shape):
            raise AmpError(
                f"the array {name} has the shape {list(array.shape)}, and the model takes "
                f"{list(shape)}",
                where=path,
                fix="None stands for any number",
            )
        try:
            tensors[name] = tf.constant(array, dtype)
        except (TypeError, ValueError):  # such as text in the place of numbers
            raise AmpError(
                f"the array {name} has values of type {array.dtype}, and the model takes "
                f"{dtype.name}",
                where=path,
                fix="Write the values that the model takes",
            ) from None
    return tensors


def _read_arrays(path: str, wanted: list[str]) -> dict[str, np.ndarray]:
    """Reads the arrays of a ``.npz`` file, which are to have these names."""
    fix = f"Write it with numpy.savez('inputs.npz', {', '.join(f'{name}=…' for name in wanted)})"
    if Path(path).is_file():
        files.check_unpacked(path)
    try:
        with open_regular(path) as opened:
            if not zipfile.is_zipfile(opened):
                raise ValueError("it is not a .npz file")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
    except Exception as error:  # empty, cut off, damaged, or of a size that it has not
        why = getattr(error, "strerror", None) or error
        raise AmpError(f"cannot be read ({why})", where=path, fix=fix) from None
    if sorted(arrays) != wanted:
        given = ", ".join(sorted(arrays)) or "none"
        raise AmpError(f"expected the arrays {', '.join(wanted)}, got {given}", where=path, fix=fix)
    return arrays
