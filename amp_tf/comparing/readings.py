"""What a monitor reads of each layer, the files that hold it, and where two runs part.

A file is a line of JSON for the run and one for each reading, so that a run that is cut off leaves what it read.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_tf.comparing.instruments import Statistics
from amp_tf.comparing.verdicts import LIMIT, roundoff
from amp_tf.errors import FileError
from amp_tf.precision import Precision

KIND = "amp_tf.monitor"
SCHEMA_VERSION = 1
PREFIX = "amp_tf_monitor_"  #: begins the names of the files
OVERFLOW, RANGE, UNDERFLOW, DISTANCE = "overflow", "range", "underflow", "distance"
_UNDERFLOWN = 0.1  # of the numbers, at which a layer is at its limit
_FAR = 32.0  # roundings from float32, which the gradients of deep models come near to
_SHOWN = 10
_FIGURES = ("largest", "smallest", "overflow", "underflow")


@dataclasses.dataclass(frozen=True)
class LayerReading:
    """The numbers of one layer's 16-bit nodes in one step, against the same step in float32.

    Attributes:
        layer: its path in Keras, else its scopes.
        is_gradient: whether these are its nodes of the gradient.
        largest, smallest: the largest size of a number in float32, and the smallest that is not zero.
        overflow: share of the numbers that are inf or nan, and finite in float32.
        underflow: share that are zero, and in float32 not, but too small for 16 bit.
        distance: relative L2 distance from float32.
        norm: the L2 norm in float32: by it two runs are compared.
    """

    layer: str
    is_gradient: bool
    largest: float
    smallest: float
    overflow: float
    underflow: float
    distance: float
    norm: float

    @classmethod
    def of(cls, layer: str, is_gradient: bool, found: Statistics, norm: float) -> LayerReading:
        """The reading of all nodes of a layer together."""
        distance = min(found.error, 1e30)  # JSON has no infinity
        smallest = 0.0 if math.isinf(found.smallest) else found.smallest
        return cls(layer, is_gradient, found.largest, smallest, found.nonfinite, found.underflow, distance, norm)

    @property
    def name(self) -> str:
        """The layer, for people."""
        return f"{self.layer or '(no layer)'}{' (gradient)' if self.is_gradient else ''}"

    def nearness(self, precision: Precision) -> tuple[float, str]:
        """How near it is to a limit of the 16-bit type, 1 at the limit, and to which: the nearest one.

        The limits: any number that overflows; the largest number that the type has; a tenth of the numbers underflown;
        32 roundings away from float32.
        """
        return max(
            (1.0 + self.overflow if self.overflow else 0.0, OVERFLOW),
            (self.largest / precision.max_finite, RANGE),
            (self.underflow / _UNDERFLOWN, UNDERFLOW),
            (self.distance / (_FAR * roundoff(precision)), DISTANCE),
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """The layers in one step.

    Attributes:
        step: how many steps the run had made.
        seconds: what the reading took, its graph included where it had to be built.
        layers: forward in the order of the model, then the gradient's.
    """

    step: int
    seconds: float
    layers: tuple[LayerReading, ...]

    def nearest(self, precision: Precision, count: int = _SHOWN) -> list[LayerReading]:
        """The layers that are nearest to a limit, the nearest first."""
        return sorted(self.layers, key=lambda layer: -layer.nearness(precision)[0])[:count]


@dataclasses.dataclass(frozen=True)
class MonitoredRun:
    """The readings of one run.

    Attributes:
        name: of the file, or of what made it.
        precision: the 16-bit type.
        readings: in order.
    """

    name: str
    precision: Precision
    readings: tuple[Reading, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The layers that were nearest to a limit at the last reading, as plain data for a report."""
        found = []
        for layer in self.readings[-1].nearest(self.precision) if self.readings else ():
            near, limit = layer.nearness(self.precision)
            shown = {name: getattr(layer, name) for name in (*_FIGURES, "distance")}
            place = {"model": self.name, "step": self.readings[-1].step, "layer": layer.name}
            found.append({**place, **shown, "nearness": near, "limit": limit})
        return found

    def __str__(self) -> str:
        """The layers that were nearest to their limits at the last reading."""
        if not self.readings:
            return f"{self.name}: nothing was read yet"
        last = self.readings[-1]
        title = f"{self.name}: {len(self.readings)} readings in {self.precision.value}, the last at step {last.step}"
        return "\n".join([title, *(f"  {describe(layer, self.precision)}" for layer in last.nearest(self.precision))])


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first place where two runs part.

    Attributes:
        step: of the reading.
        layer: the first layer that differs, in the order of the model.
        norms: of its numbers in either run.
    """

    step: int
    layer: LayerReading
    norms: tuple[float, float]

    def __str__(self) -> str:
        one, other = self.norms
        far = abs(one - other) / max(one, other)
        where = f"at step {self.step} in {self.layer.name}"
        return f"the runs part {where}: norm {one:.6g} and {other:.6g}, {far:.2%} apart"


def describe(layer: LayerReading, precision: Precision) -> str:
    """One layer in a line."""
    near, limit = layer.nearness(precision)
    parts = [
        f"{layer.smallest:.2g} to {layer.largest:.3g}",
        f"{layer.distance:.2%} from float32",
        *([f"{layer.overflow:.2g} of it overflows"] if layer.overflow else []),
        *([f"{layer.underflow:.2g} of it underflows"] if layer.underflow else []),
    ]
    return f"{layer.name}: {', '.join(parts)}; at {near:.2g} of its limit ({limit})"


def find_divergence(one: MonitoredRun, other: MonitoredRun, tolerance: float | None = None) -> Divergence | None:
    """The first step, and in it the first layer, in which two runs differ; ``None`` where they do not.

    Args:
        one, other: the runs; their common steps and layers are compared.
        tolerance: how far apart two norms may be, relative to the larger one; four roundings of the 16-bit type by
            default.
    """
    allowed = LIMIT * roundoff(one.precision) if tolerance is None else tolerance
    found = {reading.step: reading for reading in other.readings}
    for reading in one.readings:
        if reading.step not in found:
            continue
        norms = {(layer.layer, layer.is_gradient): layer.norm for layer in found[reading.step].layers}
        for layer in reading.layers:
            there = norms.get((layer.layer, layer.is_gradient))
            if there is not None and abs(layer.norm - there) > allowed * max(layer.norm, there):
                return Divergence(reading.step, layer, (layer.norm, there))
    return None


def common_steps(one: MonitoredRun, other: MonitoredRun) -> list[int]:
    """The steps that both runs have readings of."""
    steps = {reading.step for reading in other.readings}
    return [reading.step for reading in one.readings if reading.step in steps]


def head_line(precision: Precision, facts: Mapping[str, Any]) -> str:
    """The first line of a file."""
    return json.dumps({"schema": KIND, "schema_version": SCHEMA_VERSION, "precision": precision.value, **facts})


def line(reading: Reading) -> str:
    """The line of a reading."""
    return json.dumps(dataclasses.asdict(reading))


def read(path: str) -> MonitoredRun:
    """The run of a file, or of the newest file in a folder.

    Raises:
        FileError: there is none, or it is not a monitor's.
    """
    fix = "Name a file or a folder that AMP_TF_MONITOR wrote"
    place = Path(path)
    if place.is_dir():
        files = sorted(place.glob(f"{PREFIX}*.jsonl"), key=lambda file: file.stat().st_mtime)
        if not files:
            raise FileError("holds no readings of a monitor", where=path, fix=fix)
        place = files[-1]
    try:
        head, *rows = place.read_text(encoding="utf-8").splitlines()
        facts = json.loads(head)
        if facts["schema"] != KIND:
            raise ValueError(f"schema {facts['schema']!r}")
        return MonitoredRun(str(place), Precision(facts["precision"]), tuple(_readings(rows)))
    except FileNotFoundError:
        raise FileError("there is no such file or folder", where=path, fix=fix) from None
    except (LookupError, TypeError, ValueError) as error:
        raise FileError(f"is not a monitor's ({type(error).__name__}: {error})", where=str(place), fix=fix) from error


def _readings(rows: Sequence[str]) -> Iterator[Reading]:
    for number, row in enumerate(rows, 1):
        try:
            plain = json.loads(row)
        except ValueError:
            if number == len(rows):  # the run was cut off as it wrote
                return
            raise
        yield Reading(plain["step"], plain["seconds"], tuple(LayerReading(**layer) for layer in plain["layers"]))
