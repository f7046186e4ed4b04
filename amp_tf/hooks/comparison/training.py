"""Waits for the first training of a process, has it compared, and ends the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from amp_tf.errors import AmpError
from amp_tf.hooks.comparison.request import CompareRequest
from amp_tf.hooks.process import notices, state


class Training:
    """The state that the patches of a comparison share.

    Attributes:
        request: the command's request.
        is_awaited: whether nothing was compared yet.
    """

    def __init__(self, request: CompareRequest) -> None:
        self.request = request
        self.is_awaited = True
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
        """Compares a step, writes the answer and ends the program; does nothing the second time.

        Args:
            subject, batches: as for :func:`amp_tf.compare`.
            notes: further notes for the result.

        Raises:
            SystemExit: it was done.
        """
        with self._lock:
            if not self.is_awaited:
                return
            self.is_awaited = False
        if not self.request.claim():
            return
        found = _found(subject, batches, self.request, notes)
        self.request.answer({"comparison": found.to_dict(), "text": found.for_command()})
        raise SystemExit(0 if found.is_healthy else 1)


def _found(subject: Any, batches: Sequence[Any], request: CompareRequest, notes: Sequence[str]) -> Any:
    from amp_tf.comparing.pipeline import compare
    from amp_tf.comparing.progress import on_terminal
    from amp_tf.comparing.ranges import find_ranges

    hardware, progress = state.hardware(), on_terminal()
    asked: dict[str, Any] = {"steps": request.steps, "hardware": hardware, "progress": progress, "notes": notes}
    if request.float32_only:
        return find_ranges(subject, batches, request.config, **asked)
    return compare(subject, batches, request.config, nodes=request.nodes, **asked)
