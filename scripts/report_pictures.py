#!/usr/bin/env python3
"""Take the pictures of docs/report.md: scripts/report_pictures.py REPORTS.

REPORTS holds the folders ``resnet50_fit``, ``bert_fit`` and ``gnmt_fit``, each what a minute of
training that model of ``benchmarks/models`` writes with ``AMP_TF_REPORT``. Small unchanged programs
are run besides: one whose loss scale falls to its floor; one that is compiled by XLA; one that
exports its model; one that trains in float32 and in bfloat16, whose times need a quiet machine.
Needs Chromium with its driver.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.reporting.browser import Page, browser  # noqa: E402  (this checkout must be on the path first)

PICTURES = ROOT / "docs" / "pictures"

FALLING = """
import keras
import numpy as np

x = np.random.default_rng(1).normal(size=(4096, 32)).astype("float32")
model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)])
square = keras.ops.square
model.compile(keras.optimizers.SGD(1e-15), lambda y, p: 1e12 * keras.ops.mean(square(y - p)))
model.fit(x, np.zeros((4096, 4), "float32"), epochs=4, batch_size=32, verbose=0)
"""
EXPORTED = """
import keras
import numpy as np

x = np.random.default_rng(1).random((128, 28, 28, 1), "float32")
layers = [
    keras.layers.Conv2D(32, 3, activation="relu", name="first"),
    keras.layers.Conv2D(64, 3, activation="relu", name="second"),
    keras.layers.MaxPooling2D(name="pooled"),
    keras.layers.Flatten(name="flat"),
    keras.layers.Dense(128, activation="gelu", name="wide"),
    keras.layers.Dense(10, activation="softmax", name="classes"),
]
model = keras.Sequential([keras.Input((28, 28, 1)), *layers], name="digits")
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(x, np.arange(128) % 10, epochs=2, verbose=0)
model.export("exported", verbose=False)
"""
COMPILED = """
import keras
import numpy as np

x = np.random.default_rng(1).normal(size=(4096, 512)).astype("float32")
hidden = keras.layers.Dense(1024, activation="relu")
model = keras.Sequential([hidden, keras.layers.LayerNormalization(), keras.layers.Dense(10)])
model.compile("adam", "mse", jit_compile=True)
model.fit(x, np.zeros((4096, 10), "float32"), batch_size=128, epochs=3, verbose=0)
"""
TIMED = """
import keras
import numpy as np

x = np.random.default_rng(1).random((512, 64, 64, 16), "float32")
layers = []
for width in (64, 64, 128):
    layers.append(keras.layers.Conv2D(width, 3, activation="relu", padding="same"))
model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, np.arange(512) % 10, batch_size=16, epochs=2, verbose=0)
model.predict(x, batch_size=16, verbose=0)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", type=pathlib.Path, help="the folder with the three reports")
    reports = parser.parse_args().reports.resolve()
    with tempfile.TemporaryDirectory() as scratch, browser() as page:
        folder = pathlib.Path(scratch)
        settings = {"AMP_TF_PRECISION": "bfloat16", "AMP_TF_REPORT": "logs"}
        _run(FALLING, folder / "falling", AMP_TF_PRECISION="float16", AMP_TF_REPORT="logs")
        resnet50 = _page(reports / "resnet50_fit", folder / "resnet50.html")
        bert = _page(reports / "bert_fit", folder / "bert.html")
        lstm = _page(reports / "gnmt_fit", folder / "gnmt.html")
        falling = _page(folder / "falling" / "logs", folder / "falling.html")
        _take(page, "resnet50-desktop", resnet50, 1200)
        _take(page, "resnet50-tablet-dark", resnet50, 768, is_dark=True)
        _take(page, "resnet50-phone", resnet50, 390)
        _take(page, "lstm-phone", lstm, 390)
        _take(page, "bert-ops", bert, 1000, part="ops")
        _take(page, "loss-scale", falling, 900, part="loss-scale")
        _search(page, bert)
        _run(COMPILED, folder / "compiled", **settings)
        compiled = _page(folder / "compiled" / "logs", folder / "compiled.html")
        _take(page, "xla-phone", compiled, 390)
        _run(TIMED, folder / "timed", **settings, AMP_TF_KEEP_FLOAT32=".")
        _run(TIMED, folder / "timed", **settings)
        timed = _page(folder / "timed" / "logs", folder / "timed.html")
        _take(page, "side-by-side", timed, 900)
        _run(EXPORTED, folder / "exporting", **settings)
        exported = _page(folder / "exporting" / "exported", folder / "exported.html")
        _take(page, "saved-model", exported, 1000)
    return 0


def _run(program: str, folder: pathlib.Path, **variables: str) -> None:
    """Runs an unchanged program under amp_tf."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(program)
    switched_on = {
        "TF_ENABLE_AUTO_MIXED_PRECISION": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "amp_tf", "train.py"]
    subprocess.run(command, cwd=folder, env={**os.environ, **switched_on, **variables}, check=True)


def _page(reports: pathlib.Path, file: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "amp_tf", "report", str(reports), "--html", str(file)]
    subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.DEVNULL
    )
    return file


def _take(
    page: Page, name: str, file: pathlib.Path, width: int, *, part: str = "", is_dark: bool = False
) -> None:
    page.look(width, dark=is_dark)
    _open(page, file)
    if part:
        page.run(f"document.querySelector('[id$={part}]').scrollIntoView()")
    page.picture(PICTURES / f"report-{name}.png")


def _open(page: Page, file: pathlib.Path) -> None:
    """Opens a page, and waits until its scripts have shown what it holds."""
    page.open(file)
    page.wait("document.querySelector('article')?.textContent")


def _search(page: Page, file: pathlib.Path) -> None:
    """The way of one node's decision."""
    page.look(1000)
    _open(page, file)
    page.run(
        "const input = document.querySelector('input[type=search]'); input.value = "
        "'multi_head_attention_1/Softmax';"
        "input.dispatchEvent(new Event('input'))"
    )
    page.wait(
        "[...document.querySelectorAll('section button')].some(one => "
        "one.textContent.includes('1/Softmax'))"
    )
    page.run(
        "[...document.querySelectorAll('section button')].find(one => "
        "one.textContent.includes('1/Softmax')).click()"
    )
    page.wait("document.querySelector('.path')")
    page.run("document.querySelector('#nodes, [id$=nodes]').scrollIntoView()")
    page.picture(PICTURES / "report-search.png")


if __name__ == "__main__":
    sys.exit(main())
