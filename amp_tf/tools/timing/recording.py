"""Records the steps of the program that runs in this process, and ends it once there are enough.

A step of ``fit``, ``evaluate`` or ``predict`` is a batch. In a program without them it is a call of
the ``tf.function`` or a run of the session that takes most of the time, of those that compute
matmuls or convolutions: others prepare data, and 16 bit does not make them faster. It lasts from
the end of the call before to its own end, so that it includes work that a GPU has not finished, and
the loop's own work between the calls.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import time
from pathlib import Path
from typing import Any

from amp_tf.hooks import state, step_times, summary, switch
from amp_tf.reporting import files, reports

STEP = "_AMP_TF_STEP"  #: names the step to time; empty for the one that takes longest
LEAST = 5  #: steps that a run needs after the first ones
_FIRST = 3  # they trace, and fill caches
_SECONDS = 5.0  # the least time over which a run records steps
_LONGEST = 60.0  # over which it records those of a kind without products, in wait for another kind
_TRAINS = ("fit", "train_on_batch")  # an evaluation beside them is not the program's step
_MIB = 1024.0  # a MiB in units of /proc/self/status


def start(_: str, folder: str) -> None:
    """Records from now on, in the libraries that are imported.

    The answer is a file in the folder, named after the process.
    """
    if state.current().on_step is None:
        recorder = Recorder(Path(folder), os.environ.get(STEP, ""))
        state.note(on_step=recorder.add)
        atexit.register(recorder.write)
    switch.install(step_times.__name__)


class _Steps:
    """The steps of one kind; times are in seconds."""

    def __init__(self, way: str, subject: Any) -> None:
        self._way = way
        self._subject = subject
        self.ends: list[float] = []  #: of the calls, by ``time.perf_counter``
        self.total = 0.0  #: of the steps that count
        self.ms: list[float] = []  #: of each step that counts

    def add(self, end: float, seconds: float, count: int) -> None:
        """Adds a call that made some steps."""
        self.ends.append(end)
        if len(self.ends) > _FIRST:
            self.total += seconds
            self.ms.append(1e3 * seconds / count)

    def has_lasted(self, seconds: float) -> bool:
        """Tells whether there are enough steps, over so long a time."""
        return len(self.ms) >= LEAST and self.ends[-1] - self.ends[_FIRST - 1] >= seconds

    @functools.cached_property
    def has_product(self) -> bool:
        """True where a step computes a matmul or convolution, or that is not known."""
        from amp_tf.tools.comparing.functions import has_product

        with contextlib.suppress(Exception):  # of what is fetched in another way
            if self._way == step_times.FUNCTION:
                return has_product(self._subject)
            if self._way == step_times.SESSION:
                return _fetches_product(*self._subject)
        return True


@dataclasses.dataclass(frozen=True)
class Recording:
    """The steps of the kind that is timed, as the program's process answers."""

    step: str  #: the kind
    is_enough: bool  #: whether there were enough of them
    step_ms: list[float]  #: of each step that counts, in milliseconds
    calls: int  #: how many calls were made, those that do not count included
    first_end: float  #: when the first one ended, by ``time.perf_counter``
    peak_mib: float | None  #: as of :func:`peak_mib`
    device: str  #: as of :func:`device`
    converted: int  #: the number of nodes that amp_tf converted
    summary: str  #: the summary line
    kinds: list[str]  #: all kinds of steps that it made, first those that took longest


class Recorder:
    """Collects the steps of a program by kind, and writes those of the kind that is timed."""

    def __init__(self, folder: Path, wanted: str) -> None:
        self._folder = folder
        self._wanted = wanted
        self._kinds: dict[str, _Steps] = {}
        self._is_written = False

    def add(self, way: str, name: str, seconds: float, count: int, subject: Any = None) -> None:
        """Adds a step; raises SystemExit once there are enough of the kind that is timed."""
        if self._is_written:
            return
        now = time.perf_counter()
        if name not in self._kinds:
            self._kinds[name] = _Steps(way, subject)
        steps = self._kinds[name]
        if way != step_times.KERAS and steps.ends:
            seconds = now - steps.ends[-1]
        steps.add(now, seconds, count)
        if not steps.has_lasted(_SECONDS) or name != self._timed():
            return
        if self._wanted or steps.has_product or steps.has_lasted(_LONGEST):
            self.write(is_enough=True)
            raise SystemExit(0)

    def write(self, is_enough: bool = False) -> None:
        """Writes the answer, once: what the steps took, and what amp_tf has done meanwhile."""
        if self._is_written or not self._kinds:
            return
        self._is_written = True
        name = self._timed() or self._wanted
        steps = self._kinds.get(name, _Steps("", None))
        recording = Recording(
            step=name,
            is_enough=is_enough,
            step_ms=steps.ms,
            calls=len(steps.ends),
            first_end=min(steps.ends, default=0.0),
            peak_mib=peak_mib(),
            device=device(),
            converted=reports.totals().converted,
            summary=summary.line(),
            kinds=sorted(self._kinds, key=lambda kind: -self._kinds[kind].total),
        )
        path = self._folder / f"{os.getpid()}.json"
        files.put_plain(path, dataclasses.asdict(recording))

    def _timed(self) -> str | None:
        """Returns the name of the kind that is timed; ``None`` where it has made no step yet."""
        candidates = list(self._kinds)
        if self._wanted:
            candidates = [name for name in candidates if name == self._wanted]
        elif not self._kinds.keys().isdisjoint(_TRAINS):
            candidates = [name for name in candidates if name in _TRAINS]
        else:
            with_products = [name for name in candidates if self._kinds[name].has_product]
            candidates = with_products or candidates
        return max(candidates, key=lambda name: self._kinds[name].total, default=None)


def _fetches_product(session: Any, fetches: Any) -> bool:
    """Tells whether a session computes a matmul or convolution for what it fetches.

    Functions, such as the bodies of loops, count whether they are called or not.
    """
    import tensorflow as tf

    from amp_tf.graph.names import node_of
    from amp_tf.tools.comparing.functions import computes_product
    from amp_tf.tools.comparing.sessions import subgraph

    fetched = map(session.graph.as_graph_element, tf.nest.flatten(fetches))
    graph = session.graph.as_graph_def()
    return computes_product(subgraph(graph, [node_of(each.name) for each in fetched]))


def device() -> str:
    """Returns where the steps run, ``"GPU"`` or ``"CPU"``."""
    if state.hardware().has_gpu:
        return "GPU"
    return "CPU"


def peak_mib() -> float | None:
    """Returns the most memory that was in use so far, in MiB.

    It is that of the fullest GPU, or else of this process; ``None`` where the system does not tell.
    """
    import tensorflow as tf

    memory: Any = tf.config.experimental
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        return max(float(memory.get_memory_info(gpu.name)["peak"]) for gpu in gpus) / 2**20
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):  # of this program; getrusage counts the one before exec, too
            return float(line.split()[1]) / _MIB
    return None
