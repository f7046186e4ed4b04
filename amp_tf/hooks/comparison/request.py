"""What ``amp-tf compare`` asks of the program that it starts, and the answer: files in one folder."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.reporting import files

VARIABLE = "_AMP_TF_COMPARE"  #: names the folder; internal, so it is in no table of variables
PYTHON = "python"  #: the mark of a Python that found amp_tf
TENSORFLOW = "tensorflow"  #: the mark of one that imported TensorFlow
_CLAIM, _ORDER, _ANSWER = "claim", "order.json", "answer.json"


@dataclasses.dataclass(frozen=True)
class CompareRequest:
    """What is to be compared, and how.

    Attributes:
        folder: where the files lie.
        config: what to convert.
        steps: how many batches at most.
        nodes: a regular expression for further nodes to measure.
        float32_only: whether only tensors outside of float16's range are searched.
    """

    folder: Path
    config: AmpConfig
    steps: int
    nodes: str | None = None
    float32_only: bool = False

    def send(self) -> None:
        """Writes the request into its folder."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain |= {"folder": str(self.folder), "config": dataclasses.asdict(self.config)}
        (self.folder / _ORDER).write_text(json.dumps(plain))

    @classmethod
    def receive(cls, folder: Path) -> CompareRequest:
        """Reads the request from its folder."""
        plain = json.loads((folder / _ORDER).read_text())
        return cls(**{**plain, "folder": folder, "config": AmpConfig(**plain["config"])})

    def mark(self, name: str) -> None:
        """Records that a program came this far."""
        (self.folder / name).touch()

    def is_marked(self, name: str) -> bool:
        """Whether any program came this far."""
        return (self.folder / name).exists()

    def claim(self) -> bool:
        """Whether this process is the first one that trains; the others then leave the comparison to it."""
        try:
            os.close(os.open(self.folder / _CLAIM, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def answer(self, found: Mapping[str, Any]) -> None:
        """Writes the answer, whole or not at all.

        Args:
            found: the comparison's data as ``comparison`` and its text as ``text``; or ``error``, why there is none.
        """
        files.put(self.folder / _ANSWER, json.dumps(dict(found)))

    def read_answer(self) -> dict[str, Any] | None:
        """Reads the answer; ``None`` while there is none."""
        try:
            return dict(json.loads((self.folder / _ANSWER).read_text()))
        except FileNotFoundError:
            return None
