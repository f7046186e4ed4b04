"""Which layers are at fault in a batch, and what the watchdog did in this process: reverts, and batches of bad data.

A revert is a decision of the lock in force, which every rewrite reads: a function that is traced again is converted by
it, and what is in the lock never becomes 16 bit again, in this run or in the next one that is given its file. The lock
is kept in memory (``lock.held``), so a file that cannot be written, or was damaged meanwhile, costs no step.

The comparison runs on copies of the variables. It names nodes; a lock has layers, which are found again after a trace.
Of a layer, all nodes and gradients stay in float32. Where the comparison fails or finds nothing, it is all layers: no
step is lost for that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Sequence
from typing import Any

from amp_tf import lock as lock_file
from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError, FileError
from amp_tf.graph.names import is_within, path_of, scope_of
from amp_tf.hooks import notices, state
from amp_tf.lock import Decision, Layer, Lock
from amp_tf.oplists.targets import resolve_target
from amp_tf.reporting import files
from amp_tf.reporting.text import plural
from amp_tf.tools import some
from amp_tf.tools.comparing.comparison import why as why_of
from amp_tf.tools.comparing.pipeline import compare
from amp_tf.tools.train_functions import as_step

MOST = 8  #: reverts of one process; a model that needs more is no model for 16 bit
WHERE = "watchdog"
_NAMED, _TOLD = 3, 10  # layers in a line, and lines on bad data
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is to stay in float32 from now on, for the lock, and which tensor went wrong and how, for people."""

    decisions: tuple[Decision, ...] = ()
    why: str = ""


def find_fault(
    model: Any, batch: Any, owner: Any, config: AmpConfig, layers: Sequence[Layer], *, is_finite: bool
) -> Fault:
    """The layers at fault in a batch; all of the step's where none is found that is not in the lock.

    The patterns of a comparison make all outputs good, and nonfinite values are only a part of these: there it is the
    layer of the finding that helps most. Where another one is at fault as well, the step goes wrong again, and is
    compared again. ``is_finite`` says that all that is wrong is the loss. What the lock keeps in float32 is not at
    fault, nor are nodes outside of ``layers`` and of Keras' layers.
    """
    why, decisions = "", dict[str, Decision]()
    try:
        subject, batches, _ = as_step(model, [batch], owner)
        comparison = compare(subject, batches, config, steps=1, hardware=state.hardware())
        found = [(layer, one) for one in comparison.findings if (layer := _layer_of(one.node, layers)) is not None]
        for layer, one in found if is_finite else found[:1]:
            reason = f"{one.kind} at {one.node} ({one.op}): {why_of(one, comparison.precision)}"
            why = why or reason
            decisions.setdefault(layer.path, Decision(layer, why=reason))
    except Exception as error:  # whatever the user's code, Keras or TensorFlow raise
        why = f"the comparison failed ({type(error).__name__}: {error})"
    known = {one.name for one in config.read_lock().decisions}
    if any(one.name not in known for one in decisions.values()):
        return Fault(tuple(decisions.values()), why)
    # Without single nodes outside of layers, such as the optimizer's.
    rest = (layer for layer in layers if (layer.keras or "/" in layer.path) and layer.path not in known)
    reason = f"which layer is at fault was not found{f': {why}' if why else ''}"
    return Fault(tuple(Decision(layer, why=reason) for layer in rest), reason)


def _layer_of(node: str, layers: Sequence[Layer]) -> Layer | None:
    """The innermost layer that a node belongs to, which computes nothing itself where it is not one of the step's."""
    scope, path = scope_of(node), path_of(node)
    here = [layer for layer in layers if layer.path == scope] or [one for one in layers if path and one.keras == path]
    around = sorted((layer for layer in layers if is_within(node, layer.path)), key=lambda layer: -len(layer.path))
    return next(iter([*here, *around]), Layer(scope, keras=path) if path else None)


@dataclasses.dataclass
class Counts:
    """What happened so far."""

    watched: int = 0  #: steps that were watched
    reverts: int = 0  #: how often layers were reverted, and a step was done again
    bad_batches: int = 0  #: that were not finite in float32 either
    lost: int = 0  #: steps that were skipped although float32 would have made them
    path: str = ""  #: the lock file
    unwritten: str = ""  #: why it was not written; empty if it was
    #: the models that are not watched, with the reason
    not_watched: dict[str, str] = dataclasses.field(default_factory=dict)


counts = Counts()


def begin(config: AmpConfig) -> None:
    """Reads the lock file in force, once: from now on it is only written. Says so where nobody named it."""
    path = config.lock_path
    if path is None or path in lock_file.held:
        return
    lock_file.held[path] = found = config.read_lock()
    if config.lock is None and found.decisions:
        names = some([one.name for one in found.decisions], _NAMED, kind=" layers")
        what = f"{names} in float32 from the beginning"
        what = f"{path} is read, the lock file of an earlier run: {what}"
        notices.warn_once("watchdog.lock", what, where=WHERE, fix="Delete it to start over")


def end() -> None:
    """Forgets what is kept in memory alone."""
    lock_file.held.clear()


def revert(fault: Fault, config: AmpConfig) -> None:
    """Adds a fault's decisions to the lock in force and writes its file; failure to write is reported once."""
    path = config.lock_path
    assert path is not None
    with _lock:
        before = others = config.read_lock()
        with contextlib.suppress(ConfigError):  # damaged: it is written anew
            others = lock_file.read(path, may_be_missing=True)  # another run may have added its own
        known = {one.name: one for one in (*fault.decisions, *others.decisions, *before.decisions)}
        facts = resolve_target(config, state.hardware()).facts()
        lock = Lock(tuple(known.values()), {**facts, **before.made}, before.found)
        lock_file.held[path] = lock
        counts.reverts += 1
        counts.path, counts.unwritten = path, ""
        try:
            with files.writing(path):
                files.write(path, lock.to_text())
        except FileError as error:
            counts.unwritten = error.what
    if counts.unwritten:
        what = f"{path} {counts.unwritten}, so what is reverted is kept in memory alone"
        fix = "The next run begins without it; name another file by AMP_TF_LOCK"
        notices.warn_once("watchdog.unwritten", what, where=WHERE, fix=fix)


def tell_not_watched(name: str, why: str) -> None:
    """Says why a model is not watched, once for each reason."""
    counts.not_watched.setdefault(name, why)
    fix = "It trains as without the watchdog; docs/watchdog.md has what is watched"
    notices.warn_once(f"watchdog.not_watched.{why}", f"model {name!r} is not watched: {why}", where=WHERE, fix=fix)


def tell_revert(number: int, fault: Fault, loss: float | None, truth: float) -> None:
    """Prints what was reverted at a batch: the step's loss is none where it went wrong again; truth is float32's."""
    again = "went wrong again" if loss is None else f"was done again, loss {loss:.6g}, in float32 {truth:.6g}"
    where = "it is kept in memory alone" if counts.unwritten else f"it is in {counts.path}"
    names = some([one.name for one in fault.decisions], _NAMED, kind=" layers")
    _tell(number, f"{names} in float32 from now on ({fault.why}); the step {again}; {where}")


def tell_bad_data(number: int, why: str) -> None:
    """Counts a batch that is not finite in float32 either, and prints it if there were not many."""
    counts.bad_batches += 1
    if counts.bad_batches <= _TOLD:
        rest = "; others like it are counted alone" if counts.bad_batches == _TOLD else ""
        _tell(number, f"not finite in float32 either, so nothing was reverted and it was left out: {why}{rest}")


def tell_lost(number: int) -> None:
    """Counts a step that was skipped although float32 would have made it; prints the first."""
    counts.lost += 1
    what = f"batch {number} was left out, which float32 would have made"
    what += f": {plural(counts.reverts, 'revert')} did not help"
    fix = "Not a model for this 16-bit type: try AMP_TF_PRECISION=bfloat16, or amp-tf compare for what it needs"
    notices.warn_once("watchdog.limit", what, where=WHERE, fix=fix)


def describe() -> str:
    """The part of the line at exit."""
    done = []
    if counts.reverts:
        unwritten = f"kept in memory alone, because {counts.path} {counts.unwritten}"
        done.append(f"{plural(counts.reverts, 'revert')}, {unwritten if counts.unwritten else f'in {counts.path}'}")
    if counts.bad_batches:
        done.append(f"{counts.bad_batches:,} batch{'es' * (counts.bad_batches > 1)} of bad data")
    if counts.lost:
        done.append(f"{plural(counts.lost, 'step')} lost")
    done += [f"model {name!r} was not watched: {why}" for name, why in list(counts.not_watched.items())[:_NAMED]]
    if not counts.watched and not counts.not_watched:
        done.append("nothing was watched, because only fit and train_on_batch of Keras and tf_keras are")
    return f"{WHERE}: {', '.join(done)}" if done else ""


def _tell(number: int, what: str) -> None:
    notices.emit(logging.WARNING, f"{WHERE}: batch {number}: {what}")
