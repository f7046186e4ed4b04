"""The lock file: which layers and nodes stay in float32, as ``amp-tf tune`` found it, to be kept beside the model.

It is JSON with one decision a line, sorted, so that a change of one decision is a change of one line. A decision names
a layer, and says how the layer is made: after it was renamed it is found by that (:mod:`amp_tf.painting.locked`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from amp_tf.errors import ConfigError

SCHEMA = "amp_tf.lock"
SCHEMA_VERSION = 1
LAYER, NODE = "layer", "node"
_MOST_BYTES = 64 << 20
_MAKE = "Write it with amp-tf tune --lock FILE -- python train.py, name none, or delete it"


@dataclasses.dataclass(frozen=True)
class Layer:
    """How a layer is made, as far as a graph shows it."""

    path: str  #: the name scopes around its nodes, such as ``"functional/dense"``
    structure: str = ""  #: what its forward nodes compute, an op and how often each, such as ``"MatMul*2 Tanh sum"``
    #: the shapes of its products' weights, such as ``"32x64"``; empty where they are not known
    weights: tuple[str, ...] = ()
    place: int = 1  #: which of the layers with the same structure and weights it is in its graph, from 1
    alike: int = 1  #: how many of these there are
    keras: str = ""  #: its path in Keras; empty where none was recorded

    def to_row(self) -> dict[str, Any]:
        """The layer as plain data."""
        keras = {"keras": self.keras} if self.keras else {}
        place = f"{self.place}/{self.alike}"
        return {LAYER: self.path, **keras, "structure": self.structure, "weights": list(self.weights), "place": place}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Layer:
        """The layer that plain data describes; a KeyError, TypeError or ValueError where it describes none."""
        place, alike = map(int, _text(row.get("place", "1/1")).split("/"))
        if not 1 <= place <= alike:
            raise ValueError(f"{place} is not a place among {alike}")
        weights = tuple(map(_text, row.get("weights", ())))
        structure, keras = _text(row.get("structure", "")), _text(row.get("keras", ""))
        return cls(_text(row[LAYER]), structure, weights, place, alike, keras)

    def is_called_as(self, other: Layer) -> bool:
        """Whether two layers have the same path in Keras, or, where that is not known of both, the same scopes.

        Of a lock that somebody wrote by hand, the path may be either.
        """
        if self.keras and other.keras:
            return self.keras == other.keras
        return other.path in (self.path, self.keras)

    def is_made_as(self, other: Layer) -> bool:
        """Whether two layers compute the same, with weights of the same shapes where these are known of both."""
        return self.structure == other.structure and (
            self.weights == other.weights or not (self.weights and other.weights)
        )


@dataclasses.dataclass(frozen=True)
class Decision:
    """What stays in float32: a layer with its gradients, or one node of it."""

    layer: Layer  #: the layer
    node: str = ""  #: the node's name; empty for the whole layer
    why: str = ""  #: the reason, for people

    @property
    def name(self) -> str:
        """The node's name, or else the layer's path."""
        return self.node or self.layer.path

    def to_row(self) -> dict[str, Any]:
        """The decision as plain data."""
        row = {**({NODE: self.node} if self.node else {}), **self.layer.to_row()}
        shown = "".join(letter if letter.isprintable() else " " for letter in self.why)  # an error has lines
        return {**row, "why": " ".join(shown.split())} if self.why else row

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Decision:
        """The decision that plain data describes; a KeyError, TypeError or ValueError where it describes none."""
        return cls(Layer.of_row(row), _text(row.get(NODE, "")), _text(row.get("why", "")))


@dataclasses.dataclass(frozen=True)
class Lock:
    """What a lock file says."""

    decisions: tuple[Decision, ...] = ()  #: what stays in float32
    #: of what it was made: ``"precision"``, ``"device"``, ``"tensorflow"`` and ``"op_lists"``
    made: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: what was measured, for people: metric, float32's values, that of mixed precision and that with this lock
    found: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_text(self) -> str:
        """The content of the file."""
        head = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "made": dict(self.made), "found": dict(self.found)}
        rows = [json.dumps(one.to_row()) for one in sorted(self.decisions, key=lambda one: (one.layer.path, one.node))]
        body = ",\n  ".join(rows)
        lines = json.dumps(head, indent=1).removesuffix("\n}")
        return f'{lines},\n "float32": [{f"{chr(10)}  {body}{chr(10)} " if rows else ""}]\n}}\n'

    @property
    def digest(self) -> str:
        """A short hash of the decisions."""
        return hashlib.sha256(dataclasses.replace(self, made={}, found={}).to_text().encode()).hexdigest()[:8]

    def differences(self, made: Mapping[str, str]) -> str:
        """How the program differs from the one that it was made for, for people; missing keys are ignored."""
        other = [(name, self.made[name], made[name]) for name in made if self.made.get(name, made[name]) != made[name]]
        return ", ".join(f"made for {name.replace('_', ' ')} {was}, not {now}" for name, was, now in other)


NO_LOCK = Lock()


def read(path: str, *, may_be_missing: bool = False) -> Lock:
    """Reads a lock file, which is read once as long as it does not change.

    There are no decisions in a file that does not exist, where it may be missing. Raises a ConfigError where it cannot
    be read, is a link to nothing, or is not a lock file.
    """
    try:
        facts = os.stat(path)
    except OSError as error:
        if os.path.islink(path) and isinstance(error, FileNotFoundError):
            what = f"it is a link to {os.readlink(path)}, which does not exist"
            fix = "Delete the link, or write that file"
            raise ConfigError(what, where=path, fix=fix) from None
        if may_be_missing and isinstance(error, FileNotFoundError):
            return NO_LOCK
        raise ConfigError(f"it cannot be read ({error.strerror or error})", where=path, fix=_MAKE) from None
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST_BYTES:  # a pipe would be waited for
        raise ConfigError(f"it is not a file of up to {_MOST_BYTES >> 20} MiB", where=path, fix=_MAKE)
    return _read(path, facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(maxsize=64)
def _read(path: str, *_: int) -> Lock:
    try:
        with open(path, encoding="utf-8") as file:
            return _parse(json.load(file, object_pairs_hook=_unique))
    except OSError as error:
        raise ConfigError(f"it cannot be read ({error.strerror or error})", where=path, fix=_MAKE) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"it is not a lock file of amp_tf ({error})", where=path, fix=_MAKE) from None


def _parse(plain: Any) -> Lock:
    if plain.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {_shown(plain.get('schema'))}, not {SCHEMA!r}")
    if plain.get("schema_version") != SCHEMA_VERSION:
        version = _shown(plain.get("schema_version"))
        raise ValueError(f"its version is {version}, and this amp_tf reads {SCHEMA_VERSION}")
    rows: Sequence[Mapping[str, Any]] = plain["float32"]
    made = {_text(key): _text(value) for key, value in plain.get("made", {}).items()}
    return Lock(tuple(map(Decision.of_row, rows)), made, dict(plain.get("found", {})))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. A key that is there twice is an error: its first value would be lost silently."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {_shown(key)} is there twice")
        found[key] = value
    return found


def _text(value: Any) -> str:
    """A text that a terminal and a log show as it is."""
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"expected text, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return ascii(value)[:80]
