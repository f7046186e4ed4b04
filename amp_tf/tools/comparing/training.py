"""Waits for the first training of a process, has it compared, and ends the process.

What ``amp-tf compare`` asks of the program that it starts, and the answer, are files in one folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.hooks import notices, state
from amp_tf.hooks.patches import Patches
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import files
from amp_tf.tools import on_terminal
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.pipeline import compare
from amp_tf.tools.comparing.ranges import Ranges, find_ranges
from amp_tf.tools.comparing.steps import SessionRuns
from amp_tf.tools.train_functions import Call

_CLAIM, _ORDER, _ANSWER = "claim", "order.json", "answer.json"


@dataclasses.dataclass(frozen=True)
class CompareRequest:
    """What is to be compared, and how."""

    folder: Path  #: where the files lie
    config: AmpConfig  #: what to convert
    steps: int  #: how many batches at most
    nodes: str | None = None  #: a regular expression for further nodes to measure
    float32_only: bool = False  #: whether only tensors outside of float16's range are searched

    def compare(
        self, subject: Any, batches: Iterable[Any], hardware: Hardware, notes: Sequence[str] = ()
    ) -> Comparison | Ranges:
        """What is found for a step and its batches, as :func:`amp_tf.compare` takes them."""
        around: dict[str, Any] = {"hardware": hardware, "progress": on_terminal(), "notes": notes}
        if self.float32_only:
            return find_ranges(subject, batches, self.config, steps=self.steps, **around)
        return compare(subject, batches, self.config, steps=self.steps, nodes=self.nodes, **around)

    def send(self) -> None:
        """Writes the request into its folder, from where :meth:`receive` reads it."""
        (self.folder / _ORDER).write_text(json.dumps(dataclasses.asdict(self) | {"folder": str(self.folder)}))

    @classmethod
    def receive(cls, folder: Path) -> CompareRequest:
        """Reads the request from its folder."""
        plain = json.loads((folder / _ORDER).read_text())
        return cls(**{**plain, "folder": folder, "config": AmpConfig(**plain["config"])})

    def claim(self) -> bool:
        """Whether this process is the first one that trains; the others then leave the comparison to it."""
        try:
            (self.folder / _CLAIM).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def answer(self, found: Mapping[str, Any]) -> None:
        """Writes the answer, whole or not at all: ``comparison`` and its ``text``; or ``error``, why there is none."""
        files.put(self.folder / _ANSWER, json.dumps(dict(found)))

    def read_answer(self) -> dict[str, Any] | None:
        """Reads the answer; ``None`` while there is none."""
        try:
            return dict(json.loads((self.folder / _ANSWER).read_text()))
        except FileNotFoundError:
            return None


class Training:
    """The state that the patches of a comparison share, and these; nothing was compared while it ``is_awaited``."""

    def __init__(self, request: CompareRequest) -> None:
        self.request, self.is_awaited, self.patches = request, True, Patches()
        self._lock = threading.Lock()
        self.function: Any = None  #: the tf.function that trains, if there is one
        self.calls: list[Call] = []  #: its calls
        self.has_gradients = False  #: whether any were asked for in a graph since the outermost call began
        self.others: dict[int, Any] = {}  #: replacements for iterators of which elements were taken, by their ids
        #: by session, then by fetches and feeds; None for runs that do not train
        self.kinds: weakref.WeakKeyDictionary[Any, dict[Any, SessionRuns | None]] = weakref.WeakKeyDictionary()
        #: names of operations, by graph
        self.gradients: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Stops waiting, with one warning, if anything in the block fails; the program goes on."""
        try:
            yield
        except Exception as error:
            self.is_awaited = False
            why = str(error) if isinstance(error, AmpError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):  # a full disk, or the command has ended
                if "comparison" not in (self.request.read_answer() or {}):  # of another process
                    self.request.answer({"error": why})
            where, fix = "amp-tf compare", "The program goes on as it was; interrupt it if that is not wanted"
            notices.warn_once("comparison.failed", f"nothing is compared ({why.rstrip('.')})", where=where, fix=fix)

    def compare(self, subject: Any, batches: Sequence[Any], notes: Sequence[str] = ()) -> None:
        """Compares a step, writes the answer and ends the program by a SystemExit; does nothing the second time."""
        with self._lock:
            is_first, self.is_awaited = self.is_awaited, False
        if not is_first or not self.request.claim():
            return
        found = self.request.compare(subject, batches, state.hardware(), notes)
        self.request.answer({"comparison": found.to_dict(), "text": found.for_command()})
        raise SystemExit(0 if found.is_healthy else 1)
