"""``amp-tf doctor``: what this machine can do, what is in the way, and what to do about it.

A conversion that ran counts more than a table. A TensorFlow for GPUs that sees none is a note, not
a problem: plain ``tensorflow`` is built with CUDA on CPU servers too.

And ``amp-tf calibrate``: measures what ops cost on this machine, so that ``auto`` decides by its
own figures.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import amp_tf
from amp_tf.config import (
    DISABLE_VAR,
    ENABLE_VAR,
    AmpConfig,
    Switches,
    find_unknown_variables,
    is_disabled,
)
from amp_tf.errors import AmpError, ConfigError
from amp_tf.hooks.state import uses_tf32
from amp_tf.hooks.summary import ON_GPU
from amp_tf.oplists import hardware
from amp_tf.oplists.hardware import DISTRIBUTIONS, Hardware, cpu_name
from amp_tf.oplists.targets import resolve_target
from amp_tf.reporting import files
from amp_tf.tools.progress import on_stderr
from amp_tf.tools.trials import ROUNDS, Trial, run_trials

_STDERR = 2  #: its file descriptor; where it is closed, ``sys.stderr`` is None


def run(args: argparse.Namespace) -> int:
    """Prints the report; the status is 0 without problems, 1 with, 2 where TensorFlow cannot be
    imported.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    if args.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)  # TensorFlow's C++ part logs there, too
    try:
        facts = gather(os.environ, with_trials=not args.no_trials)
    except ImportError as error:
        print(f"amp-tf doctor: {no_tensorflow(error)}", file=sys.stderr)
        return 2
    issues = list(find_issues(facts))
    is_well = not any(issue.is_problem for issue in issues)  # notes do not count
    if args.json:
        found = {
            "schema_version": SCHEMA_VERSION,
            "is_well": is_well,
            "versions": facts.versions,
            "devices": facts.devices,
            "costs": facts.hardware.costs.source,
            "ways": facts.ways,
            "trials": [dataclasses.asdict(trial) for trial in facts.trials],
            "findings": [dataclasses.asdict(issue) for issue in issues],
        }
        print(json.dumps(found, indent=2))
    elif not args.quiet:
        print(render(facts, issues))
    return 0 if is_well else 1


def no_tensorflow(error: ImportError) -> str:
    """The message where TensorFlow cannot be imported."""
    return (
        f"TensorFlow cannot be imported from {sys.executable}: {error}. If it is missing, install "
        "it: "
        "pip install 'tensorflow-cpu>=2.16,<2.22', or 'tensorflow[and-cuda]>=2.16,<2.22' for a "
        "machine with an NVIDIA "
        "GPU."
    )


def render(facts: MachineFacts, issues: Sequence[Issue]) -> str:
    """The report as text."""
    lines = ["Versions", *_pairs(facts.versions), "", "Devices"]
    for device in facts.devices:
        fast = ", ".join(device["fast_in"]) or "float32 alone"
        lines.append(f"  {device['name']:16}{device['description']}; fast in {fast}")
    lines.append(f"  {'costs of ops':16}{facts.hardware.costs.source}")
    lines += ["", "How amp_tf reaches programs", *_pairs(facts.ways)]
    if facts.trials:
        how = f"ms: the median of {ROUNDS} runs; speed-up: float32's ms over these ms"
        lines += ["", f"Two matrix products, converted and run ({how})"]
        lines.append(
            f"  {'device':8}{'way':10}{'precision':11}{'converted':>9}{'ms':>9}{'speed-up':>10}{'error':>10}"
        )
        for trial in facts.trials:
            numbers = f"{trial.converted:>9}{_three_digits(trial.milliseconds):>9}{trial.speedup:>9.2f}x{trial.error:>10.1e}"
            lines.append(
                f"  {trial.device:8}{trial.way:10}{trial.precision:11}{numbers}  {trial.failure}".rstrip()
            )
    for title, is_problem in (("Problems", True), ("Notes", False)):
        if found := [issue for issue in issues if issue.is_problem is is_problem]:
            lines += ["", title]
            lines += [
                text for issue in found for text in (f"  - {issue.what}.", f"    {issue.fix}.")
            ]
    lines += [] if any(issue.is_problem for issue in issues) else ["", "No problems."]
    return "\n".join(lines)


def _three_digits(value: float) -> str:
    """A time with at least three digits, so that the quotient of two is the speed-up that stands
    beside them.
    """
    decimals = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:.{decimals}f}"


def _pairs(values: dict[str, str]) -> list[str]:
    return [f"  {name:16}{value or 'not installed'}" for name, value in values.items()]


SCHEMA_VERSION = 1  #: of the JSON object's form
SUPPORTED = ((2, 16), (2, 21))  #: the oldest and the newest TensorFlow, both included

# The finder that amp_tf.pth adds, or what amp-tf run loads.
_ASK_AUTOSTART = (
    "import sys; print(any(type(finder).__name__ == 'AmpTfStart' for finder in sys.meta_path)"
    " or 'amp_tf.hooks.imports' in sys.modules)"
)
_PROBE_SECONDS = 60
MATH_MODE_VARS = (
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
)


@dataclasses.dataclass(frozen=True)
class Issue:
    """A problem, or a note, that the user should know of."""

    name: str  #: a word for programs
    is_problem: bool  #: whether amp_tf does not work as it should; else it is a note
    what: str  #: what was found
    fix: str  #: what to do


@dataclasses.dataclass(frozen=True)
class MachineFacts:
    """The machine and its software, without any judgement."""

    environ: Mapping[str, str]  #: the environment
    versions: dict[
        str, str
    ]  #: name to version of Python, amp_tf and the libraries; ``""`` where it is not installed
    #: what TensorFlow can compute on: name, description, 16-bit types in hardware; of a GPU whether
    #: float32 products are computed in TF32, ``None`` where it has none
    devices: list[dict[str, Any]]
    hardware: Hardware  #: the same for the rewrite
    keras: dict[
        str, str
    ]  #: Keras' backend, dtype policy and, where it cannot be imported, the error
    auto_clustering: bool  #: whether XLA clusters operations automatically in this process
    autostart: bool  #: whether a new Python with the variable set turns amp_tf on
    plugins: list[str]  #: other graph optimizer plugins
    trials: list[Trial]  #: what ran
    is_without_gpu: bool = False  #: whether this TensorFlow is built for NVIDIA GPUs and sees none
    is_without_pth: bool = (
        False  #: whether amp_tf was installed without what Python runs when it starts
    )

    @property
    def ways(self) -> dict[str, str]:
        """Which ways into TensorFlow work, and whether the environment uses them."""
        try:
            switches = Switches.from_env(self.environ)
        except ConfigError:
            switches = Switches()
        proven = {trial.way for trial in self.trials if trial.converted and not trial.failure}
        states = dict.fromkeys((trial.way for trial in self.trials), "fails") | dict.fromkeys(
            proven, "works"
        )
        return {
            "switch": "on" if switches.graph_rewrite else f"off (set {ENABLE_VAR}=1)",
            "amp_tf.pth": self._autostart,
            "grappler plugin": states.get("grappler", "not tried"),
            "xla hook": states.get("xla", "not tried"),
            "loss scaling": "on for float16" if switches.loss_scaling else "off",
        }

    @property
    def _autostart(self) -> str:
        if self.autostart:
            return "read"
        return "left out" if self.is_without_pth else "not read"


def is_without_pth() -> bool:
    """Whether pip's record of amp_tf has no ``amp_tf.pth``: it was installed with
    ``AMP_TF_WITHOUT_PTH=1``.
    """
    try:
        installed = importlib.metadata.files("amp-tf") or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return bool(installed) and not any(file.name == "amp_tf.pth" for file in installed)


def gather(environ: Mapping[str, str], *, with_trials: bool) -> MachineFacts:
    """Collects the facts; raises an ImportError without TensorFlow.

    ``with_trials`` converts and runs small graphs.
    """
    try:
        import tensorflow as tf
        from tensorflow.python.client import pywrap_tf_session
    except (
        Exception
    ) as error:  # a broken installation, or a bad ~/.keras/keras.json, may raise anything
        raise ImportError(f"{type(error).__name__}: {error}") from error

    from amp_tf.hooks import conflicts
    from amp_tf.hooks.state import hardware

    versions = {
        "python": platform.python_version(),
        "amp_tf": amp_tf.__version__,
        "tensorflow": tf.__version__,
    }
    for distribution in ("keras", "tf_keras", "numpy", "protobuf"):
        versions[distribution] = ""
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[distribution] = importlib.metadata.version(distribution)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)  # a training may be running beside us
    cpu_types = ["bfloat16"] if Hardware.detect_cpu().cpu_gains else []
    devices: list[dict[str, Any]] = [
        {"name": "CPU:0", "description": cpu_name(), "fast_in": cpu_types}
    ]
    for number, gpu in enumerate(tf.config.get_visible_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        capability = tuple(details.get("compute_capability", ()))
        types = (["float16"] if capability >= (7, 0) else []) + (
            ["bfloat16"] if capability >= (8, 0) else []
        )
        name = (
            f"{details.get('device_name', 'GPU')}, compute capability "
            f"{'.'.join(map(str, capability)) or 'unknown'}"
        )
        tf32 = uses_tf32(capability)
        devices.append(
            {"name": f"GPU:{number}", "description": name, "fast_in": types, "tf32": tf32}
        )
    try:
        import keras

        of_keras = {
            "backend": keras.config.backend(),
            "policy": keras.config.dtype_policy().name,
            "error": "",
        }
    except Exception as error:  # a backend that is not installed, or a broken installation
        of_keras = {"backend": "", "policy": "", "error": f"{type(error).__name__}: {error}"}
    try:
        is_off = is_disabled(environ)
    except ConfigError:  # which is reported as a setting
        is_off = True
    asked = {name: text for name, text in environ.items() if name != DISABLE_VAR} | {
        ENABLE_VAR: "1"
    }
    command = [sys.executable, *(["-S"] if sys.flags.no_site else []), "-c", _ASK_AUTOSTART]
    autostart = ""
    with contextlib.suppress(
        subprocess.TimeoutExpired
    ):  # a sitecustomize, for instance, does not end
        autostart = subprocess.run(
            command, env=asked, capture_output=True, text=True, timeout=_PROBE_SECONDS
        ).stdout
    return MachineFacts(
        environ=environ,
        versions=versions,
        devices=devices,
        hardware=hardware(),
        keras=of_keras,
        auto_clustering=bool(pywrap_tf_session.TF_GetXlaAutoJitEnabled())
        or tf.config.optimizer.get_jit() != "",
        autostart=autostart.strip() == "True",
        plugins=conflicts.other_graph_plugins(),
        trials=run_trials([device["name"] for device in devices])
        if with_trials and not is_off
        else [],
        is_without_gpu=tf.test.is_built_with_cuda() and not gpus,
        is_without_pth=is_without_pth(),
    )


def find_issues(facts: MachineFacts) -> Iterator[Issue]:
    """What the facts mean: each thing that can be in the way, with what to do about it."""
    yield from _issues_of_settings(facts.environ)
    version, protobuf = facts.versions["tensorflow"], facts.versions.get("protobuf", "")
    oldest, newest = (".".join(map(str, bound)) for bound in SUPPORTED)
    if not SUPPORTED[0] <= tuple(int(part) for part in version.split(".")[:2]) <= SUPPORTED[1]:
        what = (
            f"TensorFlow {version} is outside of what amp_tf is tested with, {oldest} to {newest}"
        )
        yield Issue("tensorflow", True, what, f"pip install 'tensorflow>={oldest},<={newest}.*'")
    if version.startswith("2.20.") and int(protobuf.partition(".")[0] or 0) >= 7:
        what = (
            "In TensorFlow 2.20 a MonitoredTrainingSession cannot save a graph with protobuf "
            f"{protobuf}"
        )
        yield Issue("protobuf", False, what, "pip install 'protobuf<7'")
    names = (distribution.metadata["Name"] for distribution in importlib.metadata.distributions())
    present = {
        re.sub(r"[-_.]+", "-", name).lower() for name in names if name
    }  # a broken installation has no name
    found = [name for name in DISTRIBUTIONS if name in present]
    if len(found) > 1:
        what = f"{' and '.join(found)} are installed over each other"
        yield Issue(
            "two-tensorflows",
            True,
            what,
            f"pip uninstall {' '.join(found)}, then install one of them",
        )
    if facts.is_without_pth:
        what = f"amp_tf is installed without amp_tf.pth, so {ENABLE_VAR}=1 alone does nothing"
        yield Issue(
            "autostart",
            False,
            what,
            "Write amp-tf run -- python script.py, or amp_tf.enable() in the script",
        )
    elif not facts.autostart:
        what = f"{sys.executable} does not read amp_tf.pth, so {ENABLE_VAR}=1 alone does nothing"
        fix = (
            "Install amp-tf with pip into this environment, without -t, or write amp-tf run -- "
            "python script.py"
        )
        yield Issue("autostart", True, what, fix)
    if facts.plugins:
        what = (
            "another graph optimizer plugin is loaded, and TensorFlow takes only one: "
            f"{', '.join(facts.plugins)}"
        )
        fix = (
            "Uninstall that plugin, or unset TF_PLUGGABLE_DEVICE_LIBRARY_PATH; XLA functions are "
            "converted anyway"
        )
        yield Issue("plugin", True, what, fix)
    backend, policy, error = (facts.keras[name] for name in ("backend", "policy", "error"))
    if error and facts.versions["keras"]:
        yield Issue("keras", True, f"Keras cannot be imported: {error}", "Check KERAS_BACKEND")
    elif backend not in ("", "tensorflow"):
        fix = "Set KERAS_BACKEND=tensorflow, or change backend in ~/.keras/keras.json"
        yield Issue(
            "keras-backend",
            True,
            f"Keras computes with {backend}, which amp_tf does not reach",
            fix,
        )
    if policy not in ("", "float32"):
        what = (
            f"Keras' dtype policy is {policy} by default: layers cast by themselves, amp_tf "
            "converts what is left"
        )
        fix = 'Take one of the two. For amp_tf: "floatx": "float32" in ~/.keras/keras.json, no '
        yield Issue("policy", False, what, f"{fix}keras.config.set_dtype_policy")
    if facts.auto_clustering:
        what = (
            "XLA clusters operations by itself (TF_XLA_FLAGS or tf.config.optimizer.set_jit), "
            "after amp_tf's "
        )
        fix = (
            "If a step is slower than without, unset TF_XLA_FLAGS=--tf_xla_auto_jit, or set "
            "AMP_TF_DISABLE=1"
        )
        yield Issue("auto-clustering", False, f"{what}conversion", fix)
    if why := resolve_target(AmpConfig(), facts.hardware).why_none:
        fix = (
            "AMP_TF_PRECISION=bfloat16 converts anyway, for instance to look at accuracy, but it "
            "is slower; "
        )
        fix += f"to see the accuracy of training on a GPU: {ON_GPU}"
        yield Issue("hardware", False, f"precision auto converts nothing here: {why}", fix)
    if facts.is_without_gpu:
        what = "this TensorFlow is built for NVIDIA GPUs and sees none: it computes on the CPU"
        fix = (
            "If there is one, see that nvidia-smi lists it (else install the driver; a container "
            "needs --gpus all), "
        )
        fix += (
            "that its libraries are installed (pip install 'tensorflow[and-cuda]') and that "
            "CUDA_VISIBLE_DEVICES is "
        )
        yield Issue("gpu", False, what, f"{fix}unset")
    if rounding := [device["name"] for device in facts.devices if device.get("tf32")]:
        what = "products that stay in float32 are computed in TF32, which rounds as float16 does"
        fix = (
            "Where they must be exact, write "
            "tf.config.experimental.enable_tensor_float_32_execution(False); "
        )
        yield Issue(
            "tf32",
            False,
            f"{', '.join(rounding)}: {what}",
            f"{fix}amp-tf compare does so meanwhile",
        )
    if modes := [
        name for name in MATH_MODE_VARS if facts.environ.get(name, "STRICT").upper() != "STRICT"
    ]:
        what = (
            f"{' and '.join(modes)}: where the CPU has AMX (or Arm's bf16), oneDNN rounds the "
            "operands of "
        )
        what += (
            "all float32 products of the process to 16 bit, also of those that amp_tf keeps in "
            "float32"
        )
        fix = "Unset it while amp_tf is on, or the report says float32 of what is rounded"
        yield Issue("math-mode", False, what, fix)
    if failed := [trial for trial in facts.trials if trial.failure]:
        what = "; ".join(
            f"{trial.device}, {trial.way}, {trial.precision}: {trial.failure}" for trial in failed
        )
        fix = (
            "If no finding above explains it, please report this with the output of amp-tf doctor "
            "--json"
        )
        yield Issue("trial", True, what, fix)


def _issues_of_settings(environ: Mapping[str, str]) -> Iterator[Issue]:
    from amp_tf.oplists import (
        op_names,
    )  # which needs absl: where TensorFlow is missing, that may be missing too

    if unknown := find_unknown_variables(environ):
        what = (
            "not variables of amp_tf, so they change nothing: "
            f"{', '.join(name for name, _ in unknown)}"
        )
        close = ", ".join(dict.fromkeys(close for _, close in unknown if close))
        fix = f"Write {close}" if close else "docs/variables.md lists the variables"
        yield Issue("variable", False, what, fix)
    try:
        config, switches = AmpConfig.from_env(environ), Switches.from_env(environ)
    except ConfigError as error:
        yield Issue(
            "setting", True, f"{error.where}: {error.what}: everything stays in float32", error.fix
        )
        return
    if entries := op_names.find_unknown(config):
        what = "; ".join(f"{entry.where}: {entry.what}" for entry in entries)
        fix = "".join(dict.fromkeys(entry.guess for entry in entries))
        fix += "An op of a library of your own counts once the program has loaded it"
        yield Issue("op-name", False, what, fix)
    others = {name: text for name, text in environ.items() if name != DISABLE_VAR}
    if Switches.from_env(others).any and not switches.any:
        what = f"{DISABLE_VAR} is set and wins over {ENABLE_VAR}"
        yield Issue("disabled", False, what, f"Unset {DISABLE_VAR}")


_LEAST_SECONDS = 20.0
_BUSY = 0.5  # of the cores, by the load of the last minute


def run_calibrate(args: argparse.Namespace) -> int:
    """Measures, writes and prints; Ctrl-C changes nothing."""
    kept = hardware.cache_file()
    if args.forget:
        was_there = kept.exists()
        with files.writing(kept):
            kept.unlink(missing_ok=True)
        print(
            f"{kept}: {'removed' if was_there else 'there was none'}; "
            f"{hardware.shipped_costs().source}"
        )
        return 0
    if not args.seconds >= _LEAST_SECONDS:
        fix = f"Write {_LEAST_SECONDS:.0f} or more"
        raise AmpError(f"{args.seconds:g} seconds are too few", where="--seconds", fix=fix)
    if not Hardware.detect_cpu().cpu_has_bf16:
        what = (
            "this CPU does not multiply bfloat16 in hardware, so that auto leaves everything in "
            "float32 here"
        )
        raise AmpError(what, where=hardware.cpu_name(), fix="There is nothing to calibrate")
    path = Path(args.output) if args.output else kept
    with files.writing(path):  # before anything is measured
        path.parent.mkdir(parents=True, exist_ok=True)
    files.check_writable(path)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from amp_tf.tools.calibrating import measure

    with contextlib.suppress(RuntimeError):  # it has looked for devices before
        tf.config.set_visible_devices([], "GPU")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > _BUSY * cores:
        busy = f"the machine is busy (load {load:.1f} on {cores} cores)"
        print(f"note: {busy}: figures may be off; calibrate again later")
    progress = on_stderr("amp-tf calibrate")
    source = f"measured on {hardware.identity()}, {datetime.date.today()}"
    shipped = hardware.shipped_costs()
    try:
        measured = measure(
            shipped,
            source,
            args.seconds,
            lambda number, count, name: progress(f"{100 * number // count:3} %  {name}"),
        )
    finally:
        progress("")
    with files.writing(path):
        files.write(path, measured.table.to_json())
    print(measured.text(with_details=args.details))
    print(f"{path}: {source}")
    if not args.output:
        print("auto uses them from now on; amp-tf calibrate --forget removes them.")
    return 0
