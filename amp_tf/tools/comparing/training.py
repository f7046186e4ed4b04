"""Waits for the first training of a process, has it compared, and ends the process.

What ``amp-tf compare`` asks of the program that it starts, and the answer, are files in one folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.hooks import notices, state
from amp_tf.hooks.patches import Patches
from amp_tf.reporting import files
from amp_tf.tools import on_terminal
from amp_tf.tools.comparing.ranges import compare_or_find_ranges

_CLAIM, _ORDER, _ANSWER = "claim", "order.json", "answer.json"


@dataclasses.dataclass(frozen=True)
class CompareRequest:
    """What is to be compared, and how."""

    folder: Path  #: where the files lie
    config: AmpConfig  #: what to convert
    steps: int  #: how many batches at most
    nodes: str | None = None  #: a regular expression for further nodes to measure
    float32_only: bool = False  #: whether only tensors outside of float16's range are searched

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
    """The state that the patches of a comparison share, and these; it ``is_awaited`` as long as nothing was compared."""

    def __init__(self, request: CompareRequest) -> None:
        self.request, self.is_awaited, self.patches = request, True, Patches()
        self._lock = threading.Lock()

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
        request = self.request
        asked: dict[str, Any] = {
            "steps": request.steps,
            "nodes": request.nodes,
            "float32_only": request.float32_only,
            "notes": notes,
        }
        around: dict[str, Any] = {"hardware": state.hardware(), "progress": on_terminal()}
        found = compare_or_find_ranges(subject, batches, request.config, **asked, **around)
        self.request.answer({"comparison": found.to_dict(), "text": found.for_command()})
        raise SystemExit(0 if found.is_healthy else 1)
