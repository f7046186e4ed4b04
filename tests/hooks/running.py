"""Starts Python as a user would: amp_tf by its .pth file alone, the switch in the environment.

If amp_tf is not installed (``PYTHONPATH=. pytest``), a folder with the checkout's amp_tf.pth is
made a site folder by Python's own ``site.addsitedir``, which reads .pth files there exactly as in
site-packages.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_tf.oplists.hardware import Hardware
from tests import processes

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
SLOW_PRODUCTS = "on this CPU float32 computes"
SUMMARY = re.compile(
    r"amp_tf: (?:([\d,]+) graphs?, ([\d,]+) of ([\d,]+) nodes? converted(?: to (.*?))?(?: "
    r"\([^)]*\))?, ([\d,]+) casts?"
    r"|nothing was converted(?=:))(.*)"
)


def converted_in(summary: re.Match[str]) -> int:
    """The nodes that a summary line says were converted."""
    return int((summary[2] or "0").replace(",", ""))


@dataclass(frozen=True)
class Ended:
    """A program that ended, and what it wrote to stdout and stderr."""

    status: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The JSON that the program printed last."""
        return dict(json.loads(self.out.strip().splitlines()[-1]))

    @property
    def summary(self) -> re.Match[str]:
        """The summary line; its groups are graphs, converted, total, precision, casts, the rest.

        The first five are ``None`` where amp_tf saw no graph.
        """
        found = SUMMARY.findall(self.err)
        assert len(found) == 1, self.err
        match = SUMMARY.search(self.err)
        assert match is not None
        return match

    @property
    def converted(self) -> int:
        return converted_in(self.summary)

    @property
    def warnings(self) -> list[str]:
        """The lines that amp_tf wrote, beside the summary and what it says where float32 computes
        this CPU's products.
        """
        lines = []
        for line in self.err.splitlines():
            # A checkout may lie in a folder of that name.
            if "amp_tf" in line.replace("amp_tf/", "") and not SUMMARY.search(line):
                lines.append(line)
        return [line for line in lines if SLOW_PRODUCTS not in line]


def switched_on() -> dict[str, str]:
    """The variable alone on a CPU that is faster in bfloat16, and the precision besides on
    another.
    """
    if Hardware.detect_cpu().cpu_gains:
        return {SWITCH: "1"}
    return {SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}


def is_installed() -> bool:
    return Path(sysconfig.get_path("purelib"), "amp_tf.pth").exists()


def environment(site_folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """An environment with amp_tf's .pth in effect and, of amp_tf's variables, only the given
    ones.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if "MIXED_PRECISION" not in name and "AMP_TF" not in name
    }
    environ |= processes.EVERYWHERE
    if not is_installed():
        (site_folder / "sitecustomize.py").write_text(
            f"import site; site.addsitedir({str(site_folder)!r})\n"
        )
        (site_folder / "amp_tf.pth").write_bytes((ROOT / "amp_tf.pth").read_bytes())
        environ["PYTHONPATH"] = os.pathsep.join([str(site_folder), str(ROOT)])
    return environ | variables


def run(
    arguments: Sequence[str],
    site_folder: Path,
    variables: dict[str, str],
    *,
    seconds: int = 240,
    fresh: str = "",
    status: int | None = 0,
) -> Ended:
    """Runs Python with arguments, in a folder that is not the checkout; it must end with a status,
    ``None`` is any.

    ``fresh`` is as in ``tests/processes.py``.
    """
    ended = processes.run(
        [sys.executable, *arguments],
        fresh=fresh,
        env=environment(site_folder, variables),
        cwd=site_folder,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert status is None or ended.returncode == status, ended.stderr
    return Ended(ended.returncode, ended.stdout, ended.stderr)
