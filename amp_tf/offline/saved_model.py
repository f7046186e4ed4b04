"""Converts a SavedModel on disk.

The copy computes in mixed precision in any TensorFlow, with or without amp_tf.

Signatures keep their names and types, and assets are copied unchanged; so are variables, unless
weights are asked for in 16 bit (:mod:`amp_tf.offline.weights`). Links stay links; a model with
links that lead out of it is refused.
"""

from __future__ import annotations

import os.path
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from amp_tf.config import WEIGHTS, AmpConfig, check_config
from amp_tf.errors import ConfigError, FileError
from amp_tf.offline import reading
from amp_tf.offline.variables import BeyondRange, find_beyond_range
from amp_tf.offline.weights import store_weights
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.reporting import files
from amp_tf.reporting.files import AnyPath
from amp_tf.reporting.graphs import GraphReport
from amp_tf.reporting.reports import RewriteReport
from amp_tf.reporting.weights import Weights
from amp_tf.rewriting.pipeline import RewriteResult, rewrite, settle
from amp_tf.values import check_batch, check_choice

# Not copied; the fingerprint contains a hash of the old graph.
_REWRITTEN = frozenset({reading.MODEL_FILE, reading.TEXT_MODEL_FILE, "fingerprint.pb"})


def convert_saved_model(
    src: str | Path | Any,
    dst: AnyPath,
    config: AmpConfig | None = None,
    *,
    hardware: Hardware | None = None,
    replace: bool = False,
    weights: str = WEIGHTS[0],
    batch: int | tuple[int, int] | None = None,
) -> RewriteReport:
    """Writes a mixed-precision copy of a SavedModel.

    The copy can be trained further, except for functions with a gradient of their own
    (``tf.custom_gradient``, ``tf.nn.silu``): TensorFlow saved those gradients for float32. With
    16-bit weights it is for inference alone.

    Args:
        src: folder of a SavedModel, of TF1 or TF2; or a ``.keras`` or ``.h5`` file, a Keras model
            or a ``tf.Module``, which is exported as a SavedModel first.
        dst: folder to write; it must not exist, or be empty, and lie outside of ``src``. It is left
            as it was if the conversion fails or is interrupted.
        config: what to convert; the environment's settings by default. For a model that will be
            served on other devices than this machine's set ``precision`` and ``target``.
        hardware: the devices to convert for; by default any current GPU for the target ``gpu``, a
            CPU with kernels of bfloat16 for ``cpu``, else this machine's CPU.
        replace: whether the copy may replace a SavedModel in ``dst``, even ``src`` itself.
        weights: ``"f16"`` stores variables in 16 bit that nodes only compute with in 16 bit; the
            report's ``weights`` lists them. ``"float32"`` stores all as they are.
        batch: under ``auto``, the batch size of the requests, or the smallest and the largest. By
            default what is converted is faster for a single example and for a large batch alike.

    Returns:
        The report of all graphs and functions of the model.

    Raises:
        GraphError: the model's graph is broken.
        FileError: ``src`` is not a model, has a file that cannot be read or a link that leads out
            of it, or ``dst`` is not empty, lies in ``src`` or cannot be written.
        OpListError: a change of the lists names an op that TensorFlow does not know.
        ConfigError: ``config`` is not an AmpConfig, ``dst`` is not a path, or ``weights`` or
            ``batch`` means nothing.
    """
    check_choice(weights, WEIGHTS, where="convert_saved_model(weights)")
    check_batch(batch, where="convert_saved_model(batch)")
    if config is not None:
        check_config(config, where="convert_saved_model(config)")
    if not isinstance(dst, (str, os.PathLike)):
        raise ConfigError(
            f"{dst!r} is not a path",
            where="convert_saved_model(dst)",
            fix="Name the folder to write",
        )
    target = Path(dst)
    is_replaced = replace and reading.is_saved_model(target)
    if isinstance(src, (str, os.PathLike)):
        _check_place(os.fspath(src), target, is_replaced)
    _check_content(target, is_replaced)
    with reading.saved_model_of(src) as source:
        _check_links(os.path.realpath(source))
        model, report = rewrite_saved_model(
            source, config, hardware=hardware, weights=weights, batch=batch
        )
        data = model.SerializeToString(deterministic=True)
        # A folder that is there may be a volume, in whose place nothing can be put.
        is_there = os.path.isdir(target) and not is_replaced
        put = _write if is_there else _replace
        fix = "Name a new folder where you may write, on a disk with room for the model"
        with files.writing(target, fix):
            try:
                put(source, target, data, report.weights)
            except shutil.Error as error:  # lists all files that could not be copied
                file, _, why = error.args[0][0]
                raise FileError(
                    f"cannot be copied to {str(target)!r} ({why})",
                    where=str(file),
                    fix="See that it can be read and the disk has room; nothing was written",
                ) from None
    return report


def _check_place(src: AnyPath, target: Path, is_replaced: bool) -> None:
    """Refuses a target that lies in the source, or whose replacement would delete the source."""
    source = Path(os.path.realpath(src))
    place = Path(os.path.realpath(target))
    what = ""
    if source in place.parents:
        what = f"the folder lies in the model that is converted, {str(src)!r}"
    elif is_replaced and place in source.parents:
        what = f"the model that is converted lies in the folder, {str(src)!r}"
    if what:
        raise FileError(
            what,
            where=str(target),
            fix="Name a new folder outside of it; nothing was written",
        )


def _check_content(target: Path, is_replaced: bool) -> None:
    """Refuses a target that holds something that is not to be replaced."""
    if os.path.isdir(target) and any(target.iterdir()) and not is_replaced:
        how = ""
        if reading.is_saved_model(target):
            how = ", or have the model there replaced (--force, replace=True)"
        raise FileError(
            "the folder is not empty",
            where=str(target),
            fix=f"Name a new folder{how}; nothing was written",
        )


def _check_links(root: str) -> None:
    """Refuses links that lead out of a model, or would lead out of a copy of it.

    Links are copied as links, and nothing outside of the model is copied.
    """
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            if not os.path.islink(path) or (folder == root and name in _REWRITTEN):
                continue
            link = os.readlink(path)
            by_name = os.path.normpath(os.path.join(os.path.relpath(folder, root), link))
            leads_out = os.path.isabs(by_name) or by_name.split(os.sep)[0] == os.pardir
            if leads_out or os.path.commonpath((root, os.path.realpath(path))) != root:
                raise FileError(
                    f"is a link to {link!r}, outside of the model",
                    where=path,
                    fix=(
                        "Make a copy of the model that holds the files themselves (cp -rL); "
                        "nothing was written"
                    ),
                )


def rewrite_saved_model(
    src: str | Path | Any,
    config: AmpConfig | None = None,
    *,
    hardware: Hardware | None = None,
    weights: str = WEIGHTS[0],
    batch: int | tuple[int, int] | None = None,
) -> tuple[Any, RewriteReport]:
    """Returns the ``SavedModel`` proto with rewritten graphs, and the report; writes nothing.

    Args and Raises: as for :func:`convert_saved_model`.
    """
    with reading.saved_model_of(src) as source:
        model = reading.read_saved_model(source)
        checkpoint = reading.Checkpoint(source)
        reports: list[GraphReport] = []
        stores_weights = weights != WEIGHTS[0]
        graphs = _graphs_of(model, checkpoint, config, hardware)
        for meta_graph, graph in zip(model.meta_graphs, graphs, strict=True):
            result = graph.rewritten(
                config, hardware=hardware, stores_weights=stores_weights, batch=batch
            )
            reports += result.report.graphs
            if result.changed:
                meta_graph.graph_def.CopyFrom(result.graph)
        stored = None
        if stores_weights:
            preserved = [graph.preserve for graph in graphs]
            beyond = [graph.beyond_range for graph in graphs]
            stored = store_weights(model, checkpoint, preserved, beyond)
    return model, RewriteReport(tuple(reports), weights=stored)


class ModelGraph(NamedTuple):
    """A GraphDef of a model or of a file, with further arguments of its rewrite.

    Attributes:
        preserve: nodes that stay as they are, because a signature names them.
        beyond_range: by function, the nodes that give variables with values which the 16-bit type
            cannot hold.
    """

    graph: Any
    preserve: frozenset[str] = frozenset()
    beyond_range: BeyondRange = MappingProxyType({})

    def rewritten(
        self, config: AmpConfig | None, preserve: Iterable[str] = (), **options: Any
    ) -> RewriteResult:
        """Rewrites the graph; ``options`` are further ones of :func:`amp_tf.rewrite`."""
        return rewrite(
            self.graph,
            config,
            preserve=(*self.preserve, *preserve),
            beyond_range=self.beyond_range,
            **options,
        )


def read_graphs(path: AnyPath, config: AmpConfig, hardware: Hardware) -> list[ModelGraph]:
    """Reads the graph of a file, or those of a SavedModel or a Keras file, one a MetaGraph.

    Raises:
        FileError: there is no such file or model, or it holds no graph.
    """
    if os.path.isdir(path) or reading.is_keras_file(path):
        with reading.saved_model_of(path) as folder:
            model = reading.read_saved_model(folder)
            return _graphs_of(model, reading.Checkpoint(folder), config, hardware)
    return [ModelGraph(reading.read_graph_file(path))]


def _graphs_of(
    model: Any, checkpoint: reading.Checkpoint, config: AmpConfig | None, hardware: Hardware | None
) -> list[ModelGraph]:
    """Returns the graphs of a ``SavedModel`` proto.

    The values of variables are read for float16 alone: bfloat16 has the range of float32.
    """
    if config is None:
        config = AmpConfig.from_env()
    target = settle(config, hardware).target
    preserved = [frozenset(reading.preserved_nodes(meta_graph)) for meta_graph in model.meta_graphs]
    beyond: Sequence[BeyondRange] = [{} for _ in preserved]
    if target is not None and target.precision is Precision.FLOAT16:
        beyond = find_beyond_range(model, checkpoint, preserved, target.precision)
    found = zip(model.meta_graphs, preserved, beyond, strict=True)
    return [
        ModelGraph(meta_graph.graph_def, names, too_large) for meta_graph, names, too_large in found
    ]


def _replace(source: Path, target: Path, model: bytes, weights: Weights | None) -> None:
    """Puts the copy in its place, where a model may be, once it is complete."""
    target = Path(os.path.realpath(target))
    staged = files.temporary_name(target)
    old = files.temporary_name(target)
    try:
        _write(source, staged, model, weights)
        if os.path.isdir(target):
            target.rename(old)
        staged.rename(target)
    finally:  # also where Ctrl-C or a signal ends it
        if old.exists() and not os.path.lexists(target):
            old.rename(target)
        for left in (staged, old):
            shutil.rmtree(left, ignore_errors=True)


def _write(source: Path, target: Path, model: bytes, weights: Weights | None) -> None:
    """Writes the copy to a target that is not there, or is an empty folder.

    The file that makes it a model comes last. If writing fails, the target is as it was.
    """
    was_there = os.path.lexists(target)
    types: dict[str, int] = {}
    if weights:
        types = {each.key: each.precision.data_type for each in weights.stored}

    def skipped(folder: str, names: list[str]) -> set[str]:
        """Returns the files that are written anew; a model inside, as an asset, is copied whole."""
        if types and folder == os.path.join(source, reading.VARIABLES_FOLDER):
            of_checkpoint = f"{reading.PREFIX}.data-", f"{reading.PREFIX}.index"
            return {name for name in names if name.startswith(of_checkpoint)}
        if folder == os.fspath(source):
            return {*_REWRITTEN.intersection(names)}
        return set()

    try:
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True, ignore=skipped)
        _make_writable(target)
        if types:
            _make_writable(target / reading.VARIABLES_FOLDER)
            reading.Checkpoint(source).write(target, types)
        files.put(target / reading.MODEL_FILE, model)
    except BaseException:  # Ctrl-C, too
        written = [target]
        if not target.is_dir():
            written = []
        elif was_there:
            written = [*target.iterdir()]
        for item in written:
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item, ignore_errors=True)
            else:
                item.unlink(missing_ok=True)
        raise


def _make_writable(folder: Path) -> None:
    """Lets the owner write to a folder: a copy of a read-only folder is read-only."""
    folder.chmod(folder.stat().st_mode | stat.S_IWUSR)
