"""The time that amp_tf adds to the start of every Python interpreter, off and on.

Starts ``python -c pass`` many times in four ways, in turns, so that a slow moment of the machine
hits all of them alike: without ``amp_tf.pth``, with it and the variable unset, with it and the
variable set to 1, and with ``AMP_TF_DISABLE=1`` besides. TensorFlow is not imported. Prints medians
of the processor time and their differences in milliseconds. It makes a venv of its own without
TensorFlow: its site-packages hold a link to this checkout's package and, for the last three, the
.pth file and the module that it imports.

    python benchmarks/interpreter_start.py [--starts 150]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
WAYS = {
    "without amp_tf": (False, {}),
    "off": (True, {}),
    "on": (True, {SWITCH: "1"}),
    "disabled": (True, {SWITCH: "1", "AMP_TF_DISABLE": "1"}),
}


def make_python(folder: Path, *, with_pth: bool) -> Path:
    """A Python whose site-packages hold amp_tf, with or without the line that starts it."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site_packages = Path(subprocess.check_output(command, text=True).strip())
    (site_packages / "amp_tf").symlink_to(ROOT / "amp_tf")
    if with_pth:
        for name in ("amp_tf.pth", "_amp_tf_start.py"):
            (site_packages / name).write_bytes((ROOT / name).read_bytes())
    return python


def start_ms(python: Path, environ: dict[str, str]) -> float:
    """The processor time of one start, in which what else runs on the machine has little part."""
    _, status, used = os.wait4(subprocess.Popen([str(python), "-c", "pass"], env=environ).pid, 0)
    assert status == 0
    return (used.ru_utime + used.ru_stime) * 1e3


def measure(starts: int) -> dict[str, float]:
    """The median time of a start in milliseconds, for each way."""
    clean = {}
    for name, value in os.environ.items():
        if "AUTO_MIXED" not in name and "PYTHON" not in name:
            clean[name] = value
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        pythons = {}
        for with_pth in (False, True):
            pythons[with_pth] = make_python(Path(folder, str(with_pth)), with_pth=with_pth)
        for turn in range(starts + 3):
            for way, (with_pth, switches) in WAYS.items():
                taken = start_ms(pythons[with_pth], {**clean, **switches})
                if turn >= 3:  # the first turns fill caches and write .pyc files
                    times[way].append(taken)
    return {way: statistics.median(values) for way, values in times.items()}


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--starts", type=int, default=150, help="starts of each way (default 150)"
    )
    options = arguments.parse_args()
    medians = measure(options.starts)
    base = medians["without amp_tf"]
    print("| start | ms | added, ms |\n|---|---:|---:|")
    for way, median in medians.items():
        print(f"| {way} | {median:.2f} | {median - base:+.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
