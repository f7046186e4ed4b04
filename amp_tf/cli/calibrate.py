"""Runs ``amp-tf calibrate``, which measures what ops cost on this machine.

``auto`` then decides by the machine's own figures.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
from pathlib import Path

from amp_tf.errors import AmpError
from amp_tf.oplists import hardware
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import files
from amp_tf.tools.progress import during, on_stderr


def run(args: argparse.Namespace) -> int:
    """Measures, writes and prints; Ctrl-C changes nothing."""
    if not Hardware.detect_cpu().cpu_has_bf16:
        raise AmpError(
            "this CPU does not multiply bfloat16 in hardware, so that auto leaves everything in "
            "float32 here",
            where=hardware.cpu_name(),
            fix="There is nothing to calibrate",
        )
    path = Path(args.output or hardware.cache_file())
    with files.writing(path):  # before anything is measured
        path.parent.mkdir(parents=True, exist_ok=True)
    files.check_writable(path)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from amp_tf.tools.calibrating import measure

    with contextlib.suppress(RuntimeError):  # it has looked for devices before
        tf.config.set_visible_devices([], "GPU")
    progress = on_stderr("amp-tf calibrate")
    source = f"measured on {hardware.identity()}, {datetime.date.today()}"
    with during(progress, "starting TensorFlow"):
        table = measure(hardware.shipped_costs(), source, args.seconds, progress)
    with files.writing(path):
        files.write(path, table.to_json())
    print(f"{path}: {source}")
    if not args.output:
        print("auto uses them from now on; without that file it uses the included table again.")
    return 0
