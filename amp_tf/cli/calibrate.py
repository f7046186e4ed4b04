"""``amp-tf calibrate``: measures what ops cost on this machine, so that ``auto`` decides by its own figures."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from amp_tf.errors import AmpError
from amp_tf.oplists import hardware
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import files
from amp_tf.tools import on_terminal

if TYPE_CHECKING:
    pass

_LEAST_SECONDS = 20.0
_BUSY = 0.5  # of the cores, by the load of the last minute


def run(args: argparse.Namespace) -> int:
    """Measures, writes and prints; Ctrl-C changes nothing."""
    kept = hardware.cache_file()
    if args.forget:
        was_there = kept.exists()
        with files.writing(kept):
            kept.unlink(missing_ok=True)
        print(f"{kept}: {'removed' if was_there else 'there was none'}; {hardware.shipped_costs().source}")
        return 0
    if not args.seconds >= _LEAST_SECONDS:
        fix = f"Write {_LEAST_SECONDS:.0f} or more"
        raise AmpError(f"{args.seconds:g} seconds are too few", where="--seconds", fix=fix)
    if not Hardware.detect_cpu().cpu_has_bf16:
        what = "this CPU does not multiply bfloat16 in hardware, so that auto leaves everything in float32 here"
        raise AmpError(what, where=hardware.cpu_name(), fix="There is nothing to calibrate")
    path = Path(args.output) if args.output else kept
    with files.writing(path):  # before anything is measured
        path.parent.mkdir(parents=True, exist_ok=True)
    _measure(path, args)
    if not args.output:
        print("auto uses them from now on; amp-tf calibrate --forget removes them.")
    return 0


def _measure(path: Path, args: argparse.Namespace) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from amp_tf.tools.calibrating import by_op, measure

    with contextlib.suppress(RuntimeError):  # it has looked for devices before
        tf.config.set_visible_devices([], "GPU")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > _BUSY * cores:
        busy = f"the machine is busy (load {load:.1f} on {cores} cores)"
        print(f"note: {busy}: figures may be off; calibrate again later")
    progress = on_terminal()
    source = f"measured on {hardware.identity()}, {datetime.date.today()}"
    shipped = hardware.shipped_costs()
    try:
        measured = measure(
            shipped, source, args.seconds, lambda number, count, name: progress(f"{100 * number // count:3} %  {name}")
        )
    finally:
        progress("")
    with files.writing(path):
        files.write(path, measured.table.to_json())
    if args.details:
        for op, cases in by_op(measured.times).items():
            print(f"{op:52}{'float32 µs':>12}{'bfloat16':>10}{'gain':>7}   operations in a ns")
            for product, (in_float32, in_f16) in cases.items():
                rates = f"{product.operations / in_float32:8.0f}{product.operations / in_f16:8.0f}"
                gain = in_float32 / in_f16
                print(f"  {product.what:50}{in_float32 / 1e3:12.1f}{in_f16 / 1e3:10.1f}{gain:7.2f}{rates}")
            print()
    print(f"{'':48}{'':24}the table is off by, %")
    print(f"{'product':48}{'bfloat16 over float32':24}{'float32':>9}{'bfloat16':>10}{'gain':>6}")
    for op, cases in by_op(measured.times).items():
        gains = [in_float32 / in_f16 for in_float32, in_f16 in cases.values()]
        spread = f"{statistics.geometric_mean(gains):6.2f}   {min(gains):.2f} - {max(gains):.2f}"
        in_float32, in_f16, gain = (100 * part for part in measured.misfit(op))
        print(f"{op:48}{spread:24}{in_float32:9.0f}{in_f16:10.0f}{gain:6.0f}")
    print(f"{path}: {source}")
