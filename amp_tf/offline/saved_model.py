"""Converts a SavedModel on disk: the copy computes in mixed precision in any TensorFlow, with or without amp_tf.

Signatures keep their names and types, and assets are copied unchanged; so are variables, unless weights are asked for
in 16 bit (:mod:`amp_tf.offline.weights`). Links stay links; a model with links that lead out of it is refused.
"""

from __future__ import annotations

import os.path
import shutil
import stat
from pathlib import Path
from typing import Any

from amp_tf.config import WEIGHTS, AmpConfig, check_config
from amp_tf.errors import ConfigError, FileError
from amp_tf.offline import reading
from amp_tf.offline.weights import store_weights
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import files
from amp_tf.reporting.reports import RewriteReport, Weights
from amp_tf.rewriting.pipeline import rewrite
from amp_tf.values import check_choice

# Not copied; the fingerprint contains a hash of the old graph.
_REWRITTEN = frozenset({reading.MODEL_FILE, reading.TEXT_MODEL_FILE, "fingerprint.pb"})


def convert_saved_model(
    src: str | Path | Any,
    dst: str | Path,
    config: AmpConfig | None = None,
    *,
    hardware: Hardware | None = None,
    replace: bool = False,
    weights: str = WEIGHTS[0],
) -> RewriteReport:
    """Writes a mixed-precision copy of a SavedModel.

    The copy can be trained further, except for functions with a gradient of their own (``tf.custom_gradient``,
    ``tf.nn.silu``): TensorFlow saved those gradients for float32. With 16-bit weights it is for inference alone.

    Args:
        src: folder of a SavedModel, of TF1 or TF2; or a ``.keras`` or ``.h5`` file, a Keras model or a ``tf.Module``,
            which is exported as a SavedModel first.
        dst: folder to write; it must not exist, or be empty, and lie outside of ``src``. Where the conversion fails or
            is interrupted, it is left as it was.
        config: what to convert; the environment's settings by default. For a model that will be served on other
            devices than this machine's set ``precision`` and ``target``.
        hardware: the devices to convert for; this machine's CPU by default.
        replace: whether ``dst`` may be a SavedModel, even ``src`` itself, in whose place the copy comes.
        weights: ``"f16"`` stores variables in 16 bit where all that computes with them reads them so; the report's
            ``weights`` says which. ``"float32"`` stores all as they are.

    Returns:
        The report of all graphs and functions of the model.

    Raises:
        GraphError: the model's graph is broken.
        FileError: ``src`` is not a model, has a file that cannot be read or a link that leads out of it, or ``dst`` is
            not empty, lies in ``src`` or cannot be written.
        OpListError: a change of the lists names an op that TensorFlow does not know.
        ConfigError: ``config`` is not an AmpConfig, ``dst`` is not a path, or there are no such ``weights``.
    """
    check_choice(weights, WEIGHTS, where="convert_saved_model(weights)")
    if config is not None:
        check_config(config, where="convert_saved_model(config)")
    if not isinstance(dst, (str, os.PathLike)):
        raise ConfigError(f"{dst!r} is not a path", where="convert_saved_model(dst)", fix="Name the folder to write")
    target = Path(dst)
    is_replaced = replace and reading.is_saved_model(target)
    with reading.saved_model_of(src) as source:
        if Path(os.path.realpath(source)) in Path(os.path.realpath(target)).parents:
            what = f"the folder lies in the model that is converted, {str(source)!r}"
            raise FileError(what, where=str(target), fix="Name a new folder outside of it; nothing was written")
        if os.path.isdir(target) and any(target.iterdir()) and not is_replaced:
            how = ", or have the model there replaced (--force, replace=True)" if reading.is_saved_model(target) else ""
            fix = f"Name a new folder{how}; nothing was written"
            raise FileError("the folder is not empty", where=str(target), fix=fix)
        root = os.path.realpath(source)
        for folder, folders, names in os.walk(root):  # links are kept, and nothing from outside of the model is copied
            for name in (*folders, *names):
                path = os.path.join(folder, name)
                if not os.path.islink(path) or (folder == root and name in _REWRITTEN):
                    continue
                by_name = os.path.normpath(os.path.join(os.path.relpath(folder, root), os.readlink(path)))
                leads_out = os.path.isabs(by_name) or by_name.split(os.sep)[0] == os.pardir  # of a copy of it, too
                if leads_out or os.path.commonpath((root, os.path.realpath(path))) != root:
                    fix = "Make a copy of the model that holds the files themselves (cp -rL); nothing was written"
                    raise FileError(f"is a link to {os.readlink(path)!r}, outside of the model", where=path, fix=fix)
        model, report = rewrite_saved_model(source, config, hardware=hardware, weights=weights)
        data = model.SerializeToString(deterministic=True)
        is_there = os.path.isdir(target) and not is_replaced  # perhaps a volume, in whose place nothing can be put
        try:
            (_write if is_there else _replace)(source, target, data, report.weights)
        except shutil.Error as error:  # lists all files that could not be copied
            file, _, why = error.args[0][0]
            fix = "See that it can be read and the disk has room; nothing was written"
            raise FileError(f"cannot be copied to {str(target)!r} ({why})", where=str(file), fix=fix) from None
        except OSError as error:
            fix = "Name a new folder where you may write, on a disk with room for the model"
            raise FileError(f"cannot be written ({error.strerror or error})", where=str(target), fix=fix) from None
    return report


def rewrite_saved_model(
    src: str | Path | Any,
    config: AmpConfig | None = None,
    *,
    hardware: Hardware | None = None,
    weights: str = WEIGHTS[0],
) -> tuple[Any, RewriteReport]:
    """The ``SavedModel`` proto of a model with rewritten graphs, and the report. Writes nothing.

    Args and Raises: as for :func:`convert_saved_model`.
    """
    with reading.saved_model_of(src) as source:
        model = reading.read_saved_model(source)
        reports: list[RewriteReport] = []
        stores_weights = weights != WEIGHTS[0]
        preserved = [frozenset(reading.preserved_nodes(meta_graph)) for meta_graph in model.meta_graphs]
        for meta_graph, names in zip(model.meta_graphs, preserved, strict=True):
            result = rewrite(
                meta_graph.graph_def, config, preserve=names, hardware=hardware, stores_weights=stores_weights
            )
            reports.append(result.report)
            if result.changed:
                meta_graph.graph_def.CopyFrom(result.graph)
        stored = store_weights(model, reading.Checkpoint(source), preserved) if stores_weights else None
    return model, RewriteReport(tuple(graph for report in reports for graph in report.graphs), weights=stored)


def _replace(source: Path, target: Path, model: bytes, weights: Weights | None) -> None:
    """Puts the copy in its place, where a model may be, once it is complete."""
    target = Path(os.path.realpath(target))
    staged, old = files.temporary_name(target), files.temporary_name(target)
    _write(source, staged, model, weights)
    try:
        if os.path.isdir(target):
            target.rename(old)
        staged.rename(target)
    except BaseException:  # Ctrl-C, too
        if old.exists() and not os.path.lexists(target):
            old.rename(target)
        shutil.rmtree(staged, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _write(source: Path, target: Path, model: bytes, weights: Weights | None) -> None:
    """Writes the copy, what makes a model of it last, or leaves the target unchanged."""
    was_there = os.path.lexists(target)

    def skipped(folder: str, names: list[str]) -> set[str]:  # a model inside the model, as an asset, is copied whole
        if weights and weights.stored and folder == os.path.join(source, reading.VARIABLES_FOLDER):
            of_checkpoint = f"{reading.PREFIX}.data-", f"{reading.PREFIX}.index"
            return {name for name in names if name.startswith(of_checkpoint)}
        return set(_REWRITTEN & {*names}) if folder == os.fspath(source) else set()

    try:
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True, ignore=skipped)
        for folder in (target, *([target / reading.VARIABLES_FOLDER] if weights and weights.stored else [])):
            folder.chmod(folder.stat().st_mode | stat.S_IWUSR)  # a copy of a read-only folder is read-only
        if weights and weights.stored:
            reading.Checkpoint(source).write(target, {each.key: each.precision.data_type for each in weights.stored})
        files.put(target / reading.MODEL_FILE, model)
    except BaseException:  # Ctrl-C, too
        for item in ([*target.iterdir()] if was_there else [target]) if target.is_dir() else ():
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item, ignore_errors=True)
            else:
                item.unlink(missing_ok=True)
        raise
