"""Collects the facts of this machine and its software, which ``amp-tf doctor`` judges."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence

import amp_tf
from amp_tf.config import DISABLE_VAR, ENABLE_VAR, Switches, is_disabled
from amp_tf.errors import ConfigError
from amp_tf.hooks.state import uses_tf32
from amp_tf.oplists.hardware import DISTRIBUTIONS, Hardware, cpu_name
from amp_tf.tools.trials import Trial, run_trials

_LIBRARIES = ("keras", "tf_keras", "numpy", "protobuf")
_PROBE_SECONDS = 60
_IS_STARTED = 81  #: the status of a Python that turns amp_tf on
# The finder that amp_tf.pth adds, or what amp-tf run loads. The answer is a status, because a
# sitecustomize may print.
_PROBE = (
    "import sys; has_finder = any(type(one).__name__ == 'AmpTfStart' for one in sys.meta_path)\n"
    f"sys.exit({_IS_STARTED} * (has_finder or 'amp_tf.hooks.imports' in sys.modules))"
)
_FAST_FROM = {"float16": (7, 0), "bfloat16": (8, 0)}  # the compute capability of GPUs


@dataclasses.dataclass(frozen=True)
class Device:
    """A device on which TensorFlow computes."""

    name: str  #: such as ``"GPU:0"``
    description: str  #: for people
    fast_in: Sequence[str] = ()  #: the 16-bit types that it has in hardware
    has_tf32: bool = False  #: whether it is a GPU that computes float32 products in TF32


@dataclasses.dataclass(frozen=True)
class KerasFacts:
    """The state of Keras after its import."""

    backend: str = ""  #: its name; empty if the import failed
    policy: str = ""  #: the name of the default dtype policy; empty if the import failed
    error: str = ""  #: of the import; empty if there was none


@dataclasses.dataclass(frozen=True)
class MachineFacts:
    """The machine and its software, without any judgement."""

    environ: Mapping[str, str]  #: the environment
    #: name to version of Python, amp_tf and the libraries; ``""`` for one that is not installed
    versions: Mapping[str, str]
    devices: Sequence[Device]  #: those of TensorFlow
    hardware: Hardware  #: the same for the rewrite
    keras: KerasFacts
    autostart: bool  #: whether a new Python with the variable set turns amp_tf on
    plugins: Sequence[str]  #: the files of other graph optimizer plugins
    trials: Sequence[Trial]  #: what ran
    is_without_gpu: bool = False  #: whether this TensorFlow is built for NVIDIA GPUs and sees none
    #: whether amp_tf was installed without amp_tf.pth, which Python runs when it starts
    is_without_pth: bool = False
    distributions: Sequence[str] = ()  #: the packages that install TensorFlow; one, if all is well

    @property
    def ways(self) -> Mapping[str, str]:
        """The ways to turn amp_tf on, and their states; the trials tell what works."""
        try:
            switches = Switches.from_env(self.environ)
        except ConfigError:
            switches = Switches()
        switch = f"off (set {ENABLE_VAR}=1)"
        if switches.graph_rewrite:
            switch = "on"
        elif is_off(self.environ):
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


def gather(environ: Mapping[str, str], *, with_trials: bool) -> MachineFacts:
    """Collects the facts; raises an ImportError without TensorFlow.

    ``with_trials`` converts and runs small graphs.
    """
    try:
        import tensorflow as tf
    except Exception as error:  # of a broken installation, or a bad ~/.keras/keras.json
        raise ImportError(f"{type(error).__name__}: {error}") from error

    from amp_tf.hooks import conflicts
    from amp_tf.hooks.state import hardware

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)  # a training may be running beside us
    devices = _find_devices()
    trials = []
    if with_trials and not is_off(environ):
        trials = run_trials([device.name for device in devices])
    return MachineFacts(
        environ=environ,
        versions=_read_versions(),
        devices=devices,
        hardware=hardware(),
        keras=_read_keras(),
        autostart=reads_pth(environ),
        plugins=conflicts.other_graph_plugins(),
        trials=trials,
        is_without_gpu=tf.test.is_built_with_cuda() and not gpus,
        is_without_pth=is_without_pth(),
        distributions=list(filter(_version_of, DISTRIBUTIONS)),
    )


def _read_versions() -> Mapping[str, str]:
    """Returns the versions of Python, amp_tf and the libraries; ``""`` for a missing one."""
    import tensorflow as tf

    versions = {
        "python": platform.python_version(),
        "amp_tf": amp_tf.__version__,
        "tensorflow": tf.__version__,
    }
    for library in _LIBRARIES:
        versions[library] = _version_of(library)
    return versions


def _version_of(package: str) -> str:
    """Returns the version of an installed package, or of its nightly one; empty if neither is."""
    for distribution in (package, f"{package}-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return ""


def _find_devices() -> list[Device]:
    """Returns the devices that TensorFlow can compute on; the CPU comes first."""
    import tensorflow as tf

    cpu_types = []
    if Hardware.detect_cpu().cpu_gains:
        cpu_types.append("bfloat16")
    devices = [Device("CPU:0", cpu_name(), cpu_types)]
    for number, gpu in enumerate(tf.config.get_visible_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        capability = tuple(details.get("compute_capability", ()))
        shown = ".".join(map(str, capability)) or "unknown"
        description = f"{details.get('device_name', 'GPU')}, compute capability {shown}"
        fast_in = [name for name, least in _FAST_FROM.items() if capability >= least]
        has_tf32 = bool(uses_tf32(capability))
        devices.append(Device(f"GPU:{number}", description, fast_in, has_tf32))
    return devices


def _read_keras() -> KerasFacts:
    """Imports Keras; returns its backend and dtype policy, or the error of the import."""
    try:
        import keras

        backend = keras.config.backend()
        policy = keras.config.dtype_policy().name
    except Exception as error:  # a backend that is not installed, or a broken installation
        return KerasFacts(error=f"{type(error).__name__}: {error}")
    return KerasFacts(backend, policy)


def is_without_pth() -> bool:
    """Looks whether amp_tf was installed with ``AMP_TF_WITHOUT_PTH=1``.

    pip's record of it has no ``amp_tf.pth`` then.
    """
    try:
        installed = importlib.metadata.files("amp-tf") or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return bool(installed) and not any(file.name == "amp_tf.pth" for file in installed)


def reads_pth(environ: Mapping[str, str]) -> bool:
    """Looks whether a new Python with the variable set turns amp_tf on."""
    switched_on = {name: text for name, text in environ.items() if name != DISABLE_VAR}
    switched_on[ENABLE_VAR] = "1"
    command = [sys.executable, "-c", _PROBE]
    if sys.flags.no_site:
        command.insert(1, "-S")
    try:
        probe = subprocess.run(
            command, env=switched_on, capture_output=True, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:  # a sitecustomize, for instance, does not end
        return False
    return probe.returncode == _IS_STARTED


def is_off(environ: Mapping[str, str]) -> bool:
    """Tells whether ``AMP_TF_DISABLE`` is set, be it to a value that means nothing."""
    try:
        return is_disabled(environ)
    except ConfigError:  # which is reported as a setting
        return True
