"""``amp-tf doctor``: what this machine can do, what is in the way, and what to do about it.

A conversion that ran counts more than a table. A TensorFlow for GPUs that sees none is a note, not
a problem: plain ``tensorflow`` is built with CUDA on CPU servers too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from amp_tf.errors import ConfigError
from amp_tf.hooks.state import uses_tf32
from amp_tf.hooks.summary import ON_GPU
from amp_tf.oplists.hardware import DISTRIBUTIONS, Hardware, cpu_name
from amp_tf.oplists.targets import resolve_target
from amp_tf.tools.trials import Trial, run_trials

Environment = Mapping[str, str]
Facts = dict[str, str]  #: short texts by their names
Device = dict[str, Any]
_STDERR = 2  #: its file descriptor; where it is closed, ``sys.stderr`` is None
SUPPORTED = ((2, 16), (2, 21))  #: the oldest and the newest TensorFlow, both included
#: the same as pip takes it
_VERSIONS = f">=2.{SUPPORTED[0][1]},<2.{SUPPORTED[1][1] + 1}"
_IS_STARTED = 81  #: the status of a Python that has what it is asked for
# The finder that amp_tf.pth adds, or what amp-tf run loads. The answer is a status, because a
# sitecustomize may print.
_ASK_AUTOSTART = (
    "import sys; has_finder = any(type(one).__name__ == 'AmpTfStart' for one in sys.meta_path)\n"
    f"sys.exit({_IS_STARTED} * (has_finder or 'amp_tf.hooks.imports' in sys.modules))"
)
_PROBE_SECONDS = 60
_FAST_FROM = {"float16": (7, 0), "bfloat16": (8, 0)}  # the compute capability of GPUs
MATH_MODE_VARS = (
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
)


def run(args: argparse.Namespace) -> int:
    """Prints the report.

    Returns 0 without problems, 1 with problems, and 2 if TensorFlow cannot be imported.
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
    if not args.quiet:
        print(render(facts, issues))
    return int(not is_well)


def no_tensorflow(error: ImportError) -> str:
    """Returns the message where TensorFlow cannot be imported."""
    return (
        f"TensorFlow cannot be imported from {sys.executable}: {error}. If it is missing, install "
        f"it: pip install 'tensorflow-cpu{_VERSIONS}', or 'tensorflow[and-cuda]{_VERSIONS}' for a "
        "machine with an NVIDIA GPU."
    )


def render(facts: MachineFacts, issues: Sequence[Issue]) -> str:
    """Renders the report as text."""
    lines = ["Versions", *_pairs(facts.versions), "", "Devices"]
    for device in facts.devices:
        fast = ", ".join(device["fast_in"]) or "float32 alone"
        lines.append(f"  {device['name']:16}{device['description']}; fast in {fast}")
    lines.append(f"  {'costs of ops':16}{facts.hardware.costs.source}")
    lines += ["", "What turns amp_tf on", *_pairs(facts.ways)]
    if facts.trials:
        lines += ["", "Two matrix products, converted and run"]
        row = "  {:8}{:10}{:11}{:>9}{:>10}  {}"
        lines.append(row.format("device", "way", "precision", "converted", "error", "").rstrip())
        for trial in facts.trials:
            figures = (trial.converted, f"{trial.error:.1e}", trial.failure)
            line = row.format(trial.device, trial.way, trial.precision, *figures)
            lines.append(line.rstrip())
    for title, is_problem in (("Problems", True), ("Notes", False)):
        found = [issue for issue in issues if issue.is_problem is is_problem]
        if found:
            lines += ["", title]
        for issue in found:
            lines += [f"  - {issue.what}.", f"    {issue.fix}."]
    if not any(issue.is_problem for issue in issues):
        lines += ["", "No problems."]
    return "\n".join(lines)


def _pairs(values: Facts) -> list[str]:
    return [f"  {name:16}{value or 'not installed'}" for name, value in values.items()]


@dataclasses.dataclass(frozen=True)
class Issue:
    """A problem, or a note, that the user should know of."""

    is_problem: bool  #: whether it keeps amp_tf from working; else it is a note
    what: str  #: what was found
    fix: str  #: what to do


@dataclasses.dataclass(frozen=True)
class MachineFacts:
    """The machine and its software, without any judgement."""

    environ: Environment  #: the environment
    #: name to version of Python, amp_tf and the libraries; ``""`` for one that is not installed
    versions: Facts
    #: the devices of TensorFlow: name, description, 16-bit types in hardware; for a GPU whether it
    #: computes float32 products in TF32, ``None`` if it has none
    devices: list[Device]
    hardware: Hardware  #: the same for the rewrite
    #: Keras' backend, its dtype policy, and the error if it cannot be imported
    keras: Facts
    autostart: bool  #: whether a new Python with the variable set turns amp_tf on
    plugins: list[str]  #: other graph optimizer plugins
    trials: list[Trial]  #: what ran
    is_without_gpu: bool = False  #: whether this TensorFlow is built for NVIDIA GPUs and sees none
    #: whether amp_tf was installed without amp_tf.pth, which Python runs when it starts
    is_without_pth: bool = False
    #: the names under which TensorFlow is installed; one, if all is well
    distributions: Sequence[str] = ()

    @property
    def ways(self) -> Facts:
        """The ways to turn amp_tf on, and their states; the trials tell what works."""
        try:
            switches = Switches.from_env(self.environ)
        except ConfigError:
            switches = Switches()
        switch = f"off (set {ENABLE_VAR}=1)"
        if switches.graph_rewrite:
            switch = "on"
        elif _is_off(self.environ):
            switch = f"off ({DISABLE_VAR} is set)"
        pth = "not read"
        if self.autostart:
            pth = "read"
        elif self.is_without_pth:
            pth = "left out"
        scaling = "off"
        if switches.loss_scaling:
            scaling = "on for float16"
        return {"switch": switch, "amp_tf.pth": pth, "loss scaling": scaling}


def is_without_pth() -> bool:
    """Looks whether amp_tf was installed with ``AMP_TF_WITHOUT_PTH=1``.

    pip's record of it has no ``amp_tf.pth`` then.
    """
    try:
        installed = importlib.metadata.files("amp-tf") or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return bool(installed) and not any(file.name == "amp_tf.pth" for file in installed)


def _reads_pth(environ: Environment) -> bool:
    """Looks whether a new Python with the variable set turns amp_tf on."""
    asked = {name: text for name, text in environ.items() if name != DISABLE_VAR}
    asked[ENABLE_VAR] = "1"
    command = [sys.executable, "-c", _ASK_AUTOSTART]
    if sys.flags.no_site:
        command.insert(1, "-S")
    try:
        found = subprocess.run(command, env=asked, capture_output=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:  # a sitecustomize, for instance, does not end
        return False
    return found.returncode == _IS_STARTED


def gather(environ: Environment, *, with_trials: bool) -> MachineFacts:
    """Collects the facts; raises an ImportError without TensorFlow.

    ``with_trials`` converts and runs small graphs.
    """
    try:
        import tensorflow as tf
    except Exception as error:  # of a broken installation, or a bad ~/.keras/keras.json
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
    devices = _find_devices()
    trials = []
    if with_trials and not _is_off(environ):
        trials = run_trials([device["name"] for device in devices])
    return MachineFacts(
        environ=environ,
        versions=versions,
        devices=devices,
        hardware=hardware(),
        keras=_read_keras(),
        autostart=_reads_pth(environ),
        plugins=conflicts.other_graph_plugins(),
        trials=trials,
        is_without_gpu=tf.test.is_built_with_cuda() and not gpus,
        is_without_pth=is_without_pth(),
        distributions=_find_distributions(),
    )


def _find_distributions() -> list[str]:
    """Returns the names under which TensorFlow is installed, in the order of the table."""
    present = set()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a broken installation has none
            present.add(re.sub(r"[-_.]+", "-", name).lower())
    return list(filter(present.__contains__, DISTRIBUTIONS))


def _find_devices() -> list[Device]:
    """Returns the devices that TensorFlow can compute on, as in :attr:`MachineFacts.devices`."""
    import tensorflow as tf

    cpu: Device = {"name": "CPU:0", "description": cpu_name(), "fast_in": []}
    if Hardware.detect_cpu().cpu_gains:
        cpu["fast_in"].append("bfloat16")
    devices = [cpu]
    for number, gpu in enumerate(tf.config.get_visible_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        capability = tuple(details.get("compute_capability", ()))
        shown = ".".join(map(str, capability)) or "unknown"
        devices.append(
            {
                "name": f"GPU:{number}",
                "description": f"{details.get('device_name', 'GPU')}, compute capability {shown}",
                "fast_in": [name for name, least in _FAST_FROM.items() if capability >= least],
                "tf32": uses_tf32(capability),
            }
        )
    return devices


def _read_keras() -> Facts:
    """Returns Keras' backend and dtype policy, and the error where it cannot be imported."""
    try:
        import keras

        backend = keras.config.backend()
        policy = keras.config.dtype_policy().name
    except Exception as error:  # a backend that is not installed, or a broken installation
        return {"backend": "", "policy": "", "error": f"{type(error).__name__}: {error}"}
    return {"backend": backend, "policy": policy, "error": ""}


_problem = functools.partial(Issue, True)
_note = functools.partial(Issue, False)


def find_issues(facts: MachineFacts) -> Iterator[Issue]:
    """Yields each thing that can be in the way, with what to do about it."""
    yield from _issues_of_settings(facts.environ)
    yield from _issues_of_installation(facts)
    yield from _issues_of_keras(facts)
    yield from _issues_of_devices(facts)
    failed = [trial for trial in facts.trials if trial.failure]
    if failed:
        told = (f"{one.device}, {one.way}, {one.precision}: {one.failure}" for one in failed)
        yield _problem(
            "; ".join(told),
            "If no finding above explains it, please report this with the output of amp-tf doctor",
        )


def _issues_of_installation(facts: MachineFacts) -> Iterator[Issue]:
    version = facts.versions["tensorflow"]
    found = facts.distributions
    if not SUPPORTED[0] <= tuple(int(part) for part in version.split(".")[:2]) <= SUPPORTED[1]:
        oldest, newest = (".".join(map(str, bound)) for bound in SUPPORTED)
        installed = "tensorflow"
        if found:
            installed = found[0]
        released = installed.replace("tf-nightly", "tensorflow")
        fix = f"pip install '{released}{_VERSIONS}'"
        if released != installed:
            fix = f"pip uninstall {installed}, then {fix}"
        yield _problem(
            f"TensorFlow {version} is outside of what amp_tf is tested with, {oldest} to {newest}",
            fix,
        )
    if len(found) > 1:
        yield _problem(
            f"{' and '.join(found)} are installed over each other",
            f"pip uninstall {' '.join(found)}, then install one of them",
        )
    if facts.is_without_pth:
        yield _note(
            f"amp_tf is installed without amp_tf.pth, so {ENABLE_VAR}=1 alone does nothing",
            "Write amp-tf run -- python script.py, or amp_tf.enable() in the script",
        )
    elif not facts.autostart:
        yield _problem(
            f"{sys.executable} does not read amp_tf.pth, so {ENABLE_VAR}=1 alone does nothing",
            "Install amp-tf with pip into this environment, without -t, or write amp-tf run -- "
            "python script.py",
        )
    if facts.plugins:
        yield _problem(
            "another graph optimizer plugin is loaded, and TensorFlow takes only one: "
            f"{', '.join(facts.plugins)}",
            "Uninstall that plugin, or unset TF_PLUGGABLE_DEVICE_LIBRARY_PATH; XLA functions are "
            "converted anyway",
        )


def _issues_of_keras(facts: MachineFacts) -> Iterator[Issue]:
    backend = facts.keras["backend"]
    policy = facts.keras["policy"]
    error = facts.keras["error"]
    if error and facts.versions["keras"]:
        yield _problem(f"Keras cannot be imported: {error}", "Check KERAS_BACKEND")
    elif backend not in ("", "tensorflow"):
        yield _problem(
            f"Keras computes with {backend}, which amp_tf does not reach",
            "Set KERAS_BACKEND=tensorflow, or change backend in ~/.keras/keras.json",
        )
    if policy not in ("", "float32"):
        yield _note(
            f"Keras' dtype policy is {policy} by default: layers cast by themselves, amp_tf "
            "converts what is left",
            'Take one of the two. For amp_tf: "floatx": "float32" in ~/.keras/keras.json, no '
            "keras.config.set_dtype_policy",
        )


def _issues_of_devices(facts: MachineFacts) -> Iterator[Issue]:
    why = resolve_target(AmpConfig(), facts.hardware).why_none
    if why:
        yield _note(
            f"precision auto converts nothing here: {why}",
            "AMP_TF_PRECISION=bfloat16 converts anyway, for instance to look at accuracy, but it "
            f"is slower; to see the accuracy of training on a GPU: {ON_GPU}",
        )
    if facts.is_without_gpu:
        yield _note(
            "this TensorFlow is built for NVIDIA GPUs and sees none: it computes on the CPU",
            "If there is one, see that nvidia-smi lists it (else install the driver; a container "
            "needs --gpus all), that its libraries are installed (pip install "
            "'tensorflow[and-cuda]') and that CUDA_VISIBLE_DEVICES is unset",
        )
    rounding = [device["name"] for device in facts.devices if device.get("tf32")]
    if rounding:
        yield _note(
            f"{', '.join(rounding)}: products that stay in float32 are computed in TF32, which "
            "rounds as float16 does",
            "Where they must be exact, write "
            "tf.config.experimental.enable_tensor_float_32_execution(False); amp-tf compare does "
            "so meanwhile",
        )
    modes = []
    for name in MATH_MODE_VARS:
        if facts.environ.get(name, "STRICT").upper() != "STRICT":
            modes.append(name)
    if modes:
        yield _note(
            f"{' and '.join(modes)}: where the CPU has AMX (or Arm's bf16), oneDNN rounds the "
            "operands of all float32 products of the process to 16 bit, also of those that amp_tf "
            "keeps in float32",
            "Unset it while amp_tf is on, or the report says float32 of what is rounded",
        )


def _issues_of_settings(environ: Environment) -> Iterator[Issue]:
    # It needs absl: where TensorFlow is missing, that may be missing too.
    from amp_tf.oplists import op_names

    unknown = find_unknown_variables(environ)
    if unknown:
        close = ", ".join(dict.fromkeys(close for _, close in unknown if close))
        names = ", ".join(name for name, _ in unknown)
        fix = "docs/variables.md lists the variables"
        if close:
            fix = f"Write {close}"
        yield _note(f"not variables of amp_tf, so they change nothing: {names}", fix)
    try:
        config = AmpConfig.from_env(environ)
        Switches.from_env(environ)
    except ConfigError as error:
        what = f"{error.where}: {error.what}: everything stays in float32"
        yield _problem(what, error.fix)
        return
    entries = op_names.find_unknown(config)
    if entries:
        guesses = "".join(dict.fromkeys(entry.guess for entry in entries))
        yield _note(
            "; ".join(f"{entry.where}: {entry.what}" for entry in entries),
            f"{guesses}An op of a library of your own counts once the program has loaded it",
        )
    if _is_off(environ):
        what = f"{DISABLE_VAR} is set: amp_tf is off whatever else is set, and is not tried here"
        yield _note(what, f"Unset {DISABLE_VAR}")


def _is_off(environ: Environment) -> bool:
    """Tells whether ``AMP_TF_DISABLE`` is set, be it to a value that means nothing."""
    try:
        return is_disabled(environ)
    except ConfigError:  # which is reported as a setting
        return True
