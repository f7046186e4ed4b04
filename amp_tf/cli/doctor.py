"""The checks of ``amp-tf doctor``: one for each thing that can be in the way, each with what to do about it.

A conversion that ran counts more than a table. A TensorFlow for GPUs that sees none is a note, not a problem: plain
``tensorflow`` is built with CUDA on CPU servers too.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import os.path
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import amp_tf
from amp_tf.cli.trial import Trial, run_trials
from amp_tf.config import DISABLE_VAR, ENABLE_VAR, GONE, AmpConfig, Switches, find_unknown_variables, is_disabled
from amp_tf.errors import ConfigError
from amp_tf.hooks.state import uses_tf32
from amp_tf.hooks.summary import ON_GPU
from amp_tf.oplists.hardware import DISTRIBUTIONS, Hardware, cpu_name
from amp_tf.oplists.targets import resolve_target

_STDERR = 2  #: its file descriptor; where it is closed, ``sys.stderr`` is None


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="say what this machine can do and what is in the way",
        description="Looks at this machine and this Python, converts and runs small graphs on each device in each "
        "precision, and says for each problem what to do. Status 0 without problems, 1 with, 2 without TensorFlow.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as one JSON object")
    form.add_argument("--quiet", action="store_true", help="print nothing: the status says it")
    parser.add_argument("--no-trials", action="store_true", help="convert and run no graphs")
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the report; the status is 0 without problems, 1 with, 2 where TensorFlow cannot be imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's startup messages
    if args.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)  # TensorFlow's C++ part logs there, too
    try:
        report = diagnose(os.environ, with_trials=not args.no_trials)
    except ImportError as error:
        print(f"amp-tf doctor: {no_tensorflow(error)}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report.to_dict(), indent=2))
    elif not args.quiet:
        print(render(report))
    return 0 if report.is_well else 1


def no_tensorflow(error: ImportError) -> str:
    """The message where TensorFlow cannot be imported."""
    return (
        f"TensorFlow cannot be imported from {sys.executable}: {error}. If it is missing, install it: "
        "pip install 'tensorflow-cpu>=2.16,<2.22', or 'tensorflow[and-cuda]>=2.16,<2.22' for a machine with an NVIDIA "
        "GPU."
    )


def render(report: DoctorReport) -> str:
    """The report as text."""
    facts = report.facts
    lines = ["Versions", *_pairs(facts.versions)]
    lines += ["", "Devices"]
    for device in facts.devices:
        fast = ", ".join(device["fast_in"]) or "nothing of 16 bit"
        lines.append(f"  {device['name']:16}{device['description']}; fast in {fast}")
    lines.append(f"  {'costs of ops':16}{facts.costs}")
    lines += ["", "Ways in", *_pairs(ways(facts))]
    if facts.trials:
        lines += ["", "Two matrix products, converted and run"]
        lines.append(f"  {'device':8}{'way':10}{'precision':11}{'converted':>9}{'ms':>9}{'speed-up':>10}{'error':>10}")
        for trial in facts.trials:
            numbers = f"{trial.converted:>9}{trial.milliseconds:>9.2f}{trial.speedup:>9.2f}x{trial.error:>10.1e}"
            lines.append(f"  {trial.device:8}{trial.way:10}{trial.precision:11}{numbers}  {trial.failure}".rstrip())
    for title, is_problem in (("Problems", True), ("Notes", False)):
        found = [finding for finding in report.findings if finding.is_problem is is_problem]
        if found:
            lines += ["", title]
            lines += [text for finding in found for text in (f"  - {finding.what}.", f"    {finding.fix}.")]
    if report.is_well:
        lines += ["", "No problems."]
    return "\n".join(lines)


def _pairs(values: dict[str, str]) -> list[str]:
    return [f"  {name:16}{value or 'not installed'}" for name, value in values.items()]


SCHEMA_VERSION = 1
SUPPORTED = ((2, 16), (2, 21))
"""The oldest and the newest TensorFlow, both included."""

# The finder that amp_tf.pth adds, or what amp-tf run loads.
_ASK_AUTOSTART = (
    "import sys; print(any(type(finder).__name__ == 'AmpTfStart' for finder in sys.meta_path)"
    " or 'amp_tf.hooks.imports' in sys.modules)"
)
_PROBE_SECONDS = 60
MATH_MODE_VARS = ("TF_SET_ONEDNN_FPMATH_MODE", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")


@dataclasses.dataclass(frozen=True)
class Issue:
    """A problem, or a note, that the user should know of.

    Attributes:
        name: a word for programs.
        is_problem: whether amp_tf does not work as it should; else it is a note.
        what: what was found.
        fix: what to do.
    """

    name: str
    is_problem: bool
    what: str
    fix: str


@dataclasses.dataclass(frozen=True)
class MachineFacts:
    """The machine and its software, as the checks below need them.

    Attributes:
        environ: the environment.
        versions: name to version of Python, amp_tf and the libraries; ``""`` where it is not installed.
        devices: what TensorFlow can compute on: name, description, 16-bit types in hardware; of a GPU whether float32
            products are computed in TF32, ``None`` where it has none.
        hardware: the same for the rewrite.
        keras: Keras' backend, dtype policy and, where it cannot be imported, the error.
        auto_clustering: whether XLA clusters operations automatically in this process.
        autostart: whether a new Python with the variable set turns amp_tf on.
        plugins: other graph optimizer plugins.
        trials: what ran.
        is_without_gpu: whether this TensorFlow is built for NVIDIA GPUs and sees none.
    """

    environ: Mapping[str, str]
    versions: dict[str, str]
    devices: list[dict[str, Any]]
    hardware: Hardware
    keras: dict[str, str]
    auto_clustering: bool
    autostart: bool
    plugins: list[str]
    trials: list[Trial]
    is_without_gpu: bool = False

    @property
    def costs(self) -> str:
        """The source of the figures by which ``auto`` decides on the CPU what is faster."""
        return self.hardware.costs.source


@dataclasses.dataclass(frozen=True)
class DoctorReport:
    """The facts, and the issues that follow from them."""

    facts: MachineFacts
    findings: tuple[Issue, ...]

    @property
    def is_well(self) -> bool:
        """Whether there are no problems; notes do not count."""
        return not any(finding.is_problem for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON; ``schema_version`` is that of its form."""
        facts = self.facts
        return {
            "schema_version": SCHEMA_VERSION,
            "is_well": self.is_well,
            "versions": facts.versions,
            "devices": facts.devices,
            "costs": facts.costs,
            "ways": ways(facts),
            "trials": [dataclasses.asdict(trial) for trial in facts.trials],
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }


def diagnose(environ: Mapping[str, str], *, with_trials: bool = True) -> DoctorReport:
    """Examines this machine and this Python. Imports TensorFlow and runs small graphs.

    Args:
        environ: the environment, usually ``os.environ``.
        with_trials: whether to convert and run graphs.

    Raises:
        ImportError: TensorFlow is not installed or cannot be imported.
    """
    facts = gather(environ, with_trials=with_trials)
    return DoctorReport(facts, tuple(finding for check in CHECKS if (finding := check(facts)) is not None))


def gather(environ: Mapping[str, str], *, with_trials: bool) -> MachineFacts:
    """Collects the facts, without any judgement.

    Raises:
        ImportError: TensorFlow cannot be imported.
    """
    try:
        import tensorflow as tf
        from tensorflow.python.client import pywrap_tf_session
    except Exception as error:  # a broken installation, or a bad ~/.keras/keras.json, may raise anything
        raise ImportError(f"{type(error).__name__}: {error}") from error

    from amp_tf.hooks import plugin
    from amp_tf.hooks.state import hardware

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)  # a training may be running beside us
    devices = _devices(tf)
    return MachineFacts(
        environ=environ,
        versions=_versions(tf),
        devices=devices,
        hardware=hardware(),
        keras=_keras_facts(),
        auto_clustering=bool(pywrap_tf_session.TF_GetXlaAutoJitEnabled()) or tf.config.optimizer.get_jit() != "",
        autostart=_autostarts(environ),
        plugins=[path for path in plugin.other_graph_plugins() if not os.path.basename(path).startswith("amp_tf_")],
        trials=run_trials([device["name"] for device in devices]) if with_trials and not _is_off(environ) else [],
        is_without_gpu=tf.test.is_built_with_cuda() and not tf.config.list_physical_devices("GPU"),
    )


def ways(facts: MachineFacts) -> dict[str, str]:
    """Which ways into TensorFlow work, and whether the environment uses them."""
    try:
        switches = Switches.from_env(facts.environ)
    except ConfigError:
        switches = Switches()
    proven = {trial.way for trial in facts.trials if trial.converted and not trial.failure}
    tried = {trial.way for trial in facts.trials}

    def state(way: str) -> str:
        return "works" if way in proven else "fails" if way in tried else "not tried"

    return {
        "switch": "on" if switches.graph_rewrite else f"off (set {ENABLE_VAR}=1)",
        "amp_tf.pth": "read" if facts.autostart else "not read",
        "grappler plugin": state("grappler"),
        "xla hook": state("xla"),
        "loss scaling": "on for float16" if switches.loss_scaling else "off",
    }


def _devices(tf: Any) -> list[dict[str, Any]]:
    cpu_types = ["bfloat16"] if Hardware.detect_cpu().cpu_gains else []
    found: list[dict[str, Any]] = [{"name": "CPU:0", "description": cpu_name(), "fast_in": cpu_types}]
    for number, gpu in enumerate(tf.config.get_visible_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        capability = tuple(details.get("compute_capability", ()))
        types = (["float16"] if capability >= (7, 0) else []) + (["bfloat16"] if capability >= (8, 0) else [])
        name = f"{details.get('device_name', 'GPU')}, compute capability {'.'.join(map(str, capability)) or 'unknown'}"
        device = {"name": f"GPU:{number}", "description": name, "fast_in": types, "tf32": uses_tf32(capability)}
        found.append(device)
    return found


def _versions(tf: Any) -> dict[str, str]:
    def of(distribution: str) -> str:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return ""

    return {
        "python": platform.python_version(),
        "amp_tf": amp_tf.__version__,
        "tensorflow": tf.__version__,
        "keras": of("keras"),
        "tf_keras": of("tf_keras"),
        "numpy": of("numpy"),
        "protobuf": of("protobuf"),
    }


def _keras_facts() -> dict[str, str]:
    try:
        import keras

        return {"backend": keras.config.backend(), "policy": keras.config.dtype_policy().name, "error": ""}
    except Exception as error:  # a backend that is not installed, or a broken installation
        return {"backend": "", "policy": "", "error": f"{type(error).__name__}: {error}"}


def _autostarts(environ: Mapping[str, str]) -> bool:
    environ = {**environ, ENABLE_VAR: "1"}
    environ.pop(DISABLE_VAR, None)
    no_site = ["-S"] if sys.flags.no_site else []
    command = [sys.executable, *no_site, "-c", _ASK_AUTOSTART]
    try:
        answer = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:  # something at the start of Python, such as a sitecustomize, does not end
        return False
    return answer.stdout.strip() == "True"


def _check_settings(facts: MachineFacts) -> Issue | None:
    try:
        AmpConfig.from_env(facts.environ)
        Switches.from_env(facts.environ)
    except ConfigError as error:
        return Issue("setting", True, f"{error.where}: {error.what}: everything stays in float32", error.fix)
    return None


def _check_variables(facts: MachineFacts) -> Issue | None:
    unknown = find_unknown_variables(facts.environ)
    if not unknown:
        return None
    what = f"not variables of amp_tf, so they change nothing: {', '.join(name for name, _ in unknown)}"
    close = ", ".join(dict.fromkeys(close for _, close in unknown if close))
    fixes = [f"Write {close}"] if close else []
    fixes += dict.fromkeys(GONE[name] for name, _ in unknown if name in GONE)
    return Issue("variable", False, what, ". ".join(fixes) or "docs/variables.md lists the variables")


def _check_op_names(facts: MachineFacts) -> Issue | None:
    from amp_tf.oplists import op_names  # which needs absl: where TensorFlow is missing, that may be missing too

    try:
        unknown = op_names.find_unknown(AmpConfig.from_env(facts.environ))
    except ConfigError:
        return None  # reported by the check above
    if not unknown:
        return None
    what = "; ".join(f"{entry.where}: {entry.what}" for entry in unknown)
    fix = "".join(dict.fromkeys(entry.guess for entry in unknown))
    return Issue("op-name", False, what, f"{fix}An op of a library of your own counts once the program has loaded it")


def _check_disabled(facts: MachineFacts) -> Issue | None:
    try:
        asked = Switches.from_env({k: v for k, v in facts.environ.items() if k != DISABLE_VAR}).any
        is_off = asked and not Switches.from_env(facts.environ).any
    except ConfigError:
        return None
    if not is_off:
        return None
    return Issue("disabled", False, f"{DISABLE_VAR} is set and wins over {ENABLE_VAR}", f"Unset {DISABLE_VAR}")


def _is_off(environ: Mapping[str, str]) -> bool:
    """Whether ``AMP_TF_DISABLE`` forbids trials; a bad value is reported as a setting."""
    try:
        return is_disabled(environ)
    except ConfigError:
        return True


def _check_tensorflow(facts: MachineFacts) -> Issue | None:
    version = facts.versions["tensorflow"]
    numbers = tuple(int(part) for part in version.split(".")[:2])
    oldest, newest = (".".join(map(str, bound)) for bound in SUPPORTED)
    if SUPPORTED[0] <= numbers <= SUPPORTED[1]:
        return None
    what = f"TensorFlow {version} is outside of what amp_tf is tested with, {oldest} to {newest}"
    return Issue("tensorflow", True, what, f"pip install 'tensorflow>={oldest},<={newest}.*'")


def _check_protobuf(facts: MachineFacts) -> Issue | None:
    protobuf = facts.versions["protobuf"]
    if not facts.versions["tensorflow"].startswith("2.20.") or int(protobuf.partition(".")[0] or 0) < 7:
        return None
    what = f"TensorFlow 2.20 does not work with protobuf {protobuf}: its MonitoredTrainingSession cannot save a graph"
    return Issue("protobuf", False, what, "pip install 'protobuf<7'")


def _check_two_tensorflows(facts: MachineFacts) -> Issue | None:
    names = (distribution.metadata["Name"] for distribution in importlib.metadata.distributions())
    present = {re.sub(r"[-_.]+", "-", name).lower() for name in names if name}  # a broken installation has no name
    found = [name for name in DISTRIBUTIONS if name in present]
    if len(found) < 2:
        return None
    what = f"{' and '.join(found)} are installed over each other"
    return Issue("two-tensorflows", True, what, f"pip uninstall {' '.join(found)}, then install one of them")


def _check_autostart(facts: MachineFacts) -> Issue | None:
    if facts.autostart:
        return None
    what = f"{sys.executable} does not read amp_tf.pth, so {ENABLE_VAR}=1 alone does nothing"
    fix = "Install amp-tf with pip into this environment (not with -t, nor by PYTHONPATH), or start programs with "
    return Issue("autostart", True, what, f"{fix}amp-tf run -- python script.py, or python -m amp_tf script.py")


def _check_plugins(facts: MachineFacts) -> Issue | None:
    if not facts.plugins:
        return None
    what = f"another graph optimizer plugin is loaded, and TensorFlow takes only one: {', '.join(facts.plugins)}"
    fix = "Uninstall that plugin, or unset TF_PLUGGABLE_DEVICE_LIBRARY_PATH; XLA functions are converted all the same"
    return Issue("plugin", True, what, fix)


def _check_keras(facts: MachineFacts) -> Issue | None:
    keras = facts.keras
    if keras["error"] and facts.versions["keras"]:
        return Issue("keras", True, f"Keras cannot be imported: {keras['error']}", "Check KERAS_BACKEND")
    if keras["backend"] in ("", "tensorflow"):
        return None
    what = f"Keras computes with {keras['backend']}, which amp_tf does not reach"
    return Issue("keras-backend", True, what, "Set KERAS_BACKEND=tensorflow, or change backend in ~/.keras/keras.json")


def _check_policy(facts: MachineFacts) -> Issue | None:
    policy = facts.keras["policy"]
    if policy in ("", "float32"):
        return None
    what = f"Keras' dtype policy is {policy} by default: its layers cast by themselves, amp_tf converts what is left"
    fix = (
        'Take one of the two. For amp_tf: "floatx": "float32" in ~/.keras/keras.json, no keras.config.set_dtype_policy'
    )
    return Issue("policy", False, what, fix)


def _check_auto_clustering(facts: MachineFacts) -> Issue | None:
    if not facts.auto_clustering:
        return None
    what = "XLA clusters operations by itself (TF_XLA_FLAGS or tf.config.optimizer.set_jit), after amp_tf's conversion"
    fix = "If a step is slower than without, unset TF_XLA_FLAGS=--tf_xla_auto_jit, or set AMP_TF_DISABLE=1"
    return Issue("auto-clustering", False, what, fix)


def _check_hardware(facts: MachineFacts) -> Issue | None:
    why = resolve_target(AmpConfig(), facts.hardware).why_none
    if not why:
        return None
    fix = (
        "AMP_TF_PRECISION=bfloat16 converts all the same, for instance to look at accuracy, but it is slower; how a "
        f"training would fare on a GPU: {ON_GPU}"
    )
    return Issue("hardware", False, f"precision auto converts nothing here: {why}", fix)


def _check_gpu(facts: MachineFacts) -> Issue | None:
    if not facts.is_without_gpu:
        return None
    what = "this TensorFlow is built for NVIDIA GPUs and sees none: it computes on the CPU"
    fix = (
        "If there is one, see that nvidia-smi lists it (else install the driver; a container needs --gpus all), that "
        "its libraries are installed (pip install 'tensorflow[and-cuda]') and that CUDA_VISIBLE_DEVICES is unset"
    )
    return Issue("gpu", False, what, fix)


def _check_tf32(facts: MachineFacts) -> Issue | None:
    names = [device["name"] for device in facts.devices if device.get("tf32")]
    if not names:
        return None
    what = f"{', '.join(names)}: products that stay in float32 are computed in TF32, which rounds as float16 does"
    fix = (
        "Where they must be exact, write tf.config.experimental.enable_tensor_float_32_execution(False); "
        "amp-tf compare does so meanwhile"
    )
    return Issue("tf32", False, what, fix)


def _check_math_mode(facts: MachineFacts) -> Issue | None:
    names = [name for name in MATH_MODE_VARS if facts.environ.get(name, "STRICT").upper() != "STRICT"]
    if not names:
        return None
    what = (
        f"{' and '.join(names)}: where the CPU has AMX (or Arm's bf16), oneDNN rounds the operands of all float32 "
        "products to 16 bit, also of those that amp_tf keeps in float32: TensorFlow sets this for a whole process"
    )
    return Issue("math-mode", False, what, "Unset it while amp_tf is on, or the report says float32 of what is rounded")


def _check_trials(facts: MachineFacts) -> Issue | None:
    failed = [trial for trial in facts.trials if trial.failure]
    if not failed:
        return None
    what = "; ".join(f"{trial.device}, {trial.way}, {trial.precision}: {trial.failure}" for trial in failed)
    fix = "If no finding above explains it, please report this with the output of amp-tf doctor --json"
    return Issue("trial", True, what, fix)


CHECKS: tuple[Callable[[MachineFacts], Issue | None], ...] = (
    _check_settings,
    _check_variables,
    _check_op_names,
    _check_disabled,
    _check_tensorflow,
    _check_protobuf,
    _check_two_tensorflows,
    _check_autostart,
    _check_plugins,
    _check_keras,
    _check_policy,
    _check_auto_clustering,
    _check_hardware,
    _check_gpu,
    _check_tf32,
    _check_math_mode,
    _check_trials,
)
