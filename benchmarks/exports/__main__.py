"""Trains one program in float32, under Keras' policy and under amp_tf, and exports each to every format.

    python -m benchmarks.exports [--python PYTHON] [--write]

Makes the environment .venv/exports (2 GB) with tf2onnx, ONNX Runtime, Core ML's converter, tensorflow_hub and this
checkout, unless ``--python`` names one. Each cell is what became of a file that another process, in float32, compared
with a float32 model of the same weights: how far it is off, as a share of the largest value, and the 16-bit types in
it; or the converter's error. ``--write`` puts the table into docs/exports.md. Status 1 where amp_tf fails in a format
in which float32 does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("program.py")
PAGE = ROOT / "docs" / "exports.md"
PACKAGES = ("tensorflow==2.21.*", "tf_keras==2.21.*", "tf2onnx", "onnxruntime", "coremltools", "tensorflow_hub")
VERSIONS = ("tensorflow", "keras", "tf_keras", "tensorflow_hub", "tf2onnx", "onnxruntime", "coremltools")
ON = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
MODES: dict[str, tuple[str, dict[str, str]]] = {  # the policy and the variables
    "float32": ("float32", {}),
    "policy, bfloat16": ("mixed_bfloat16", {}),
    "policy, float16": ("mixed_float16", {}),
    "amp_tf, bfloat16": ("float32", ON | {"AMP_TF_PRECISION": "bfloat16"}),
    "amp_tf, float16": ("float32", ON | {"AMP_TF_PRECISION": "float16"}),
}
TITLES = {
    "keras": '`model.save("….keras")`',
    "h5": '`model.save("….h5")`',
    "weights": "`save_weights`, into a float32 model",
    "export": "`model.export`, a SavedModel",
    "module": "`tf.saved_model.save`, loaded and fine-tuned",
    "hub": "the same by `hub.KerasLayer` in tf_keras",
    "tflite": "TFLite",
    "tflite16": "TFLite, float16 weights",
    "onnx": "ONNX by tf2onnx, run by ONNX Runtime",
    "coreml": "Core ML by coremltools (converted, not run)",
}


def run(python: Path, variables: dict[str, str], *arguments: str) -> dict[str, Any]:
    """The last line of the program.

    Raises:
        RuntimeError: it failed; the message is the end of what it wrote to stderr.
    """
    kept = {name: value for name, value in os.environ.items() if "MIXED_PRECISION" not in name and "AMP_TF" not in name}
    environ = kept | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""} | variables
    command = [str(python), str(PROGRAM), *arguments]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{command}: exit status {ended.returncode}\n{ended.stderr[-3000:]}")
    sys.stderr.writelines(f"{line}\n" for line in ended.stderr.splitlines() if "amp_tf: " in line)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def outcome(name: str, written: dict[str, Any], found: dict[str, Any]) -> tuple[str, bool]:
    """What became of one format, as a cell, and whether it failed."""
    error = written["errors"][name] or found.get(name, {}).get("error", "")
    if error:
        return re.sub(r"[|<>]", " ", error)[:70], True
    entry = found[name]
    off = "" if entry["off"] is None else "exact" if entry["off"] == 0 else f"{entry['off']:.0e}"
    return ", ".join(filter(None, [off, *entry["types"]])) or "float32", False


def environment() -> Path:
    """The Python of .venv/exports, made where it is missing."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import venvs

    venv = venvs.make(ROOT / ".venv" / "exports")
    stamp = venvs.fingerprint(*PACKAGES)
    if venv.read_stamp() != stamp:
        venv.pip("install", *PACKAGES, title="install the converters")
        venv.pip("install", "--no-deps", "--force-reinstall", ".", title="install amp_tf")
        venv.write_stamp(stamp)
    return venv.python


def versions(python: Path) -> str:
    code = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    return subprocess.run([python, "-c", code, *VERSIONS], capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="of an environment that has the converters and amp_tf")
    parser.add_argument("--write", action="store_true", help="put the table into docs/exports.md")
    options = parser.parse_args(arguments)
    python = options.python or environment()
    cells: dict[str, dict[str, tuple[str, bool]]] = {name: {} for name in TITLES}
    taken: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for mode, (policy, variables) in MODES.items():
            folder = Path(temporary, mode.replace(", ", "_").replace(" ", "_"))
            folder.mkdir()
            written = run(python, variables, str(folder), "--policy", policy)
            found = run(python, {}, str(folder), "--read")
            for name in TITLES:
                cells[name][mode] = outcome(name, written, found)
            print(mode, f"last loss {written['losses'][-1]:.4f}", file=sys.stderr)
        for precision in ("bfloat16", "float16"):
            converted = Path(temporary, f"converted_{precision}")
            command = [python, "-m", "amp_tf.cli.main", "rewrite", Path(temporary, "float32", "exported"), converted]
            subprocess.run([*command, "--precision", precision], check=True, stdout=subprocess.DEVNULL)
            taken[precision] = run(python, {}, str(converted), "--take")
    table = [f"| format | {' | '.join(MODES)} |", f"|---|{'---|' * len(MODES)}"]
    table += [f"| {TITLES[name]} | {' | '.join(cells[name][mode][0] for mode in MODES)} |" for name in TITLES]
    table += ["", versions(python) + "."]
    for precision, errors in taken.items():
        said = "; ".join(f"{name}: {error or 'taken'}" for name, error in errors.items())
        print(f"a SavedModel converted to {precision}: {said}")
    print(*table, sep="\n")
    if options.write:
        begin, end = "<!-- table: made by benchmarks.exports -->\n", "\n<!-- end of table -->"
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
        after = rest.partition(end)[2]
        PAGE.write_text(before + begin + "\n".join(table) + end + after, encoding="utf-8")
    fails = [
        f"{name} ({mode})"
        for name, row in cells.items()
        for mode, (_, fails) in row.items()
        if fails and mode.startswith("amp_tf") and not row["float32"][1]
    ]
    print(*(f"amp_tf fails in {fail}" for fail in fails), sep="\n")
    return int(bool(fails))


if __name__ == "__main__":
    sys.exit(main())
