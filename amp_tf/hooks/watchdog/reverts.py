"""What the watchdog did in this process: reverts, their lock file, and batches of bad data.

A revert is a decision of the lock file in force, which every rewrite reads: a function that is traced anew is converted
by it, and what is in the file never becomes 16 bit again, in this run or in the next one that is given the file.
"""

from __future__ import annotations

import dataclasses
import logging
import threading

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.hooks.process import devices, notices
from amp_tf.hooks.watchdog.faults import Fault
from amp_tf.lock import Lock
from amp_tf.oplists.targets import resolve_target
from amp_tf.reporting import files
from amp_tf.reporting.text import plural

MOST = 8  #: reverts of one process; a model that needs more is no model for 16 bit
WHERE = "watchdog"
_NAMED, _TOLD = 3, 10  # layers in a line, and lines on bad data

_lock = threading.Lock()


@dataclasses.dataclass
class Counts:
    """What happened so far.

    Attributes:
        watched: steps that were watched.
        reverts: how often layers were reverted, and a step was done again.
        bad_batches: that were not finite in float32 either.
        lost: steps that were skipped although float32 would have made them.
        path: the lock file that was written; empty for none.
    """

    watched: int = 0
    reverts: int = 0
    bad_batches: int = 0
    lost: int = 0
    path: str = ""

    def reset(self) -> None:
        """Begins anew, for whoever trains several models that have nothing to do with each other."""
        vars(self).update(vars(Counts()))


counts = Counts()


def may_revert() -> bool:
    """Whether the limit on reverts is not reached."""
    return counts.reverts < MOST


def revert(fault: Fault, config: AmpConfig) -> None:
    """Adds a fault's decisions to the lock file in force.

    Raises:
        FileError: it cannot be written.
    """
    path = config.lock_path
    assert path is not None
    with _lock:
        before = config.read_lock()
        known = {one.name for one in before.decisions}
        added = tuple(one for one in fault.decisions if one.name not in known)
        facts = resolve_target(config, devices.hardware()).facts()
        lock = Lock((*before.decisions, *added), {**facts, **before.made}, before.found)
        with files.writing(path):
            files.write(path, lock.to_text())
        counts.reverts += 1
        counts.path = path


def tell_revert(number: int, fault: Fault, loss: float, truth: float) -> None:
    """Prints what was reverted at a batch, numbered from 1 on, and the loss of the step that was done again."""
    names = ", ".join(one.name for one in fault.decisions[:_NAMED])
    more = f" and {len(fault.decisions) - _NAMED} more layers" if len(fault.decisions) > _NAMED else ""
    _tell(
        number,
        f"{names}{more} in float32 from now on ({fault.why}); the step was done again, loss {loss:.6g}, in "
        f"float32 {truth:.6g}; it is in {counts.path}",
    )


def tell_bad_data(number: int, why: str) -> None:
    """Counts a batch that is not finite in float32 either, and prints it if there were not many."""
    counts.bad_batches += 1
    if counts.bad_batches <= _TOLD:
        rest = "; others like it are counted alone" if counts.bad_batches == _TOLD else ""
        _tell(number, f"not finite in float32 either, so nothing was reverted and it was left out: {why}{rest}")


def tell_lost(number: int) -> None:
    """Counts a step that was skipped although float32 would have made it; prints the first."""
    counts.lost += 1
    notices.warn_once(
        "watchdog.limit",
        f"batch {number} was left out, which float32 would have made: {plural(counts.reverts, 'revert')} did not help",
        where=WHERE,
        fix="Not a model for this 16-bit type: try AMP_TF_PRECISION=bfloat16, or amp-tf compare for what it needs",
    )


def warn_of_failure(error: Exception) -> None:
    """Warns once that the watchdog itself failed; the program goes on as without it."""
    why = str(error) if isinstance(error, AmpError) else f"{type(error).__name__}: {error}"
    notices.warn_once(
        "watchdog.failed",
        f"it failed at a step that was skipped ({why.rstrip('.')})",
        where=WHERE,
        fix="Training goes on without that step; please report this",
    )


def describe() -> str:
    """The part of the line at exit."""
    done = []
    if counts.reverts:
        done.append(f"{plural(counts.reverts, 'revert')}, in {counts.path}")
    if counts.bad_batches:
        done.append(f"{counts.bad_batches:,} batch{'es' * (counts.bad_batches > 1)} of bad data")
    if counts.lost:
        done.append(f"{plural(counts.lost, 'step')} lost")
    if not counts.watched:
        done.append("nothing was watched, because only fit and train_on_batch of Keras and tf_keras are")
    return f"{WHERE}: {', '.join(done)}" if done else ""


def _tell(number: int, what: str) -> None:
    notices.emit(logging.WARNING, f"{WHERE}: batch {number}: {what}")
