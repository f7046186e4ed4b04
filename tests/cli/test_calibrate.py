"""``amp-tf calibrate`` measures; from then on ``auto``, doctor and report go by it."""

import os
import sys

import pytest

from amp_tf.oplists import hardware
from amp_tf.oplists.cost_tables import SHIPPED, read_table
from amp_tf.oplists.hardware import Hardware
from tests import processes

needs_bf16 = pytest.mark.skipif(
    not Hardware.detect_cpu().cpu_has_bf16, reason="there is nothing to measure here"
)
# The smallest product of each row, every other op on the two smallest tensors, and each case as few
# times as it may run.
FEW = """
import sys
from amp_tf.cli import main
from amp_tf.tools import calibrating
from amp_tf.tools.calibrating import elements, products
largest_first = sorted(products.all_products(), key=lambda product: -product.operations)
smallest = {product.op: product for product in largest_first}
products.all_products = lambda: iter(smallest.values())
products.Product.runs = 2
elements.SHAPES = elements.SHAPES[:2]
calibrating._ELEMENTS = 0  # of all runs in one call, which are two then
sys.exit(main.main(["calibrate", "--seconds", "0.001"]))
"""
SOURCE = "from amp_tf.oplists.hardware import Hardware; print(Hardware.detect_cpu().costs.source)"


def run(folder, *arguments):
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    return processes.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=500
    )


def amp_tf(folder, *arguments):
    return run(folder, "-m", "amp_tf.cli.main", *arguments)


@needs_bf16
def test_what_is_measured_counts_until_its_file_is_gone(tmp_path):
    ended = run(tmp_path, "-c", FEW)
    assert ended.returncode == 0, ended.stderr
    (path,) = (tmp_path / "amp_tf").iterdir()
    table = read_table(path)
    assert table.products.keys() >= SHIPPED.products.keys()
    assert table.elements.keys() >= SHIPPED.elements.keys()
    assert f"{path}: measured on {hardware.cpu_name()}" in ended.stdout
    assert run(tmp_path, "-c", SOURCE).stdout.strip() == table.source
    assert f"costs of ops    {table.source}" in amp_tf(tmp_path, "doctor", "--no-trials").stdout

    assert "without that file it uses the included table again" in ended.stdout
    path.unlink()
    assert run(tmp_path, "-c", SOURCE).stdout.strip() == hardware.shipped_costs().source


@needs_bf16
def test_an_interrupted_calibration_leaves_everything_as_it_was(tmp_path):
    kept = tmp_path / "amp_tf" / "kept.json"
    kept.parent.mkdir()
    kept.write_text("as it was")
    code = (
        # A shell's job may ignore it.
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from amp_tf.tools import calibrating as measure\n"
        "timed = measure.take_times\n"
        "def interrupted(*arguments):\n    signal.raise_signal(signal.SIGINT)\n    return "
        "timed(*arguments)\n"
        "measure.take_times = interrupted\n"
        "from amp_tf.cli.main import main; sys.exit(main(['calibrate']))"
    )
    ended = run(tmp_path, "-c", code)
    assert ended.returncode == 130, ended.stderr
    assert "amp-tf calibrate: interrupted" in ended.stderr
    assert [(path, path.read_text()) for path in kept.parent.iterdir()] == [(kept, "as it was")]


@needs_bf16
def test_what_cannot_be_done_is_said_before_anything_is_measured(tmp_path):
    ended = amp_tf(tmp_path, "calibrate", "--output", "/proc/costs.json")
    assert ended.returncode == 1
    said = "amp-tf calibrate: /proc/costs.json: cannot be written"
    assert ended.stderr.startswith(said), ended.stderr
    assert not list(tmp_path.iterdir())
