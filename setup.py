"""Builds what pyproject.toml cannot describe: the libraries written in C and what switches amp_tf
on.

* ``build_native`` compiles :data:`LIBRARIES` with the C compiler in the ``ziglang`` package, so
  that no compiler is needed on the machine. ``python setup.py build_native --inplace`` does it in a
  checkout.
* ``_amp_tf_start.py`` and the two files that have Python call it when it starts, ``amp_tf.pth``
  and, from Python 3.15 on, ``amp_tf.start`` (PEP 829), go to the root of site-packages, from wheels
  and from editable installs alike, and into RECORD, so that ``pip uninstall`` removes them. In an
  editable install ``_amp_tf_start.py`` knows the checkout.

``AMP_TF_WITHOUT_PTH=1 pip install .`` leaves those two out: then nothing of amp_tf runs when Python
starts. ``AMP_TF_WHEEL_ARCH=aarch64 pip wheel .`` cross-compiles; the default is the machine's own
architecture.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
SHIM = "amp_tf/hooks/shim.c"
RUN_BY_PYTHON = ("amp_tf.pth", "amp_tf.start")
AT_SITE_PACKAGES_ROOT = (*RUN_BY_PYTHON, "_amp_tf_start.py")
# each with its source and the options that it is compiled with; the shim serves one device type
LIBRARIES = {
    "amp_tf/hooks/amp_tf_cpu.so": (SHIM, '-DAMP_TF_DEVICE_TYPE="CPU"', "-lpthread"),
    "amp_tf/hooks/amp_tf_gpu.so": (SHIM, '-DAMP_TF_DEVICE_TYPE="GPU"', "-lpthread"),
}
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.17"  # manylinux2014


def architecture() -> str:
    """The processor that the wheel is for.

    Raises:
        SystemExit: it is none of :data:`ARCHITECTURES`.
    """
    name = os.environ.get("AMP_TF_WHEEL_ARCH") or platform.machine()
    if name not in ARCHITECTURES:
        raise SystemExit(
            f"AMP_TF_WHEEL_ARCH: amp_tf is built for Linux on {' and '.join(ARCHITECTURES)}, not "
            f"on {name!r}. "
            f"Set AMP_TF_WHEEL_ARCH to one of {', '.join(ARCHITECTURES)}."
        )
    return name


def compile_libraries(base: Path) -> None:
    """Compiles the libraries into a folder that holds the package.

    Each replaces the one before in one step: the linker would remove that first, and a program that
    starts in between, such as a test in another environment of the same checkout, would find none.
    """
    for library, (source, *options) in LIBRARIES.items():
        target = base / library
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            built = Path(folder, target.name)
            command = [
                *(
                    sys.executable,
                    "-m",
                    "ziglang",
                    "cc",
                    "-target",
                    f"{architecture()}-linux-gnu.{GLIBC}",
                ),
                *(
                    "-std=gnu11",
                    "-O2",
                    "-s",
                    "-shared",
                    "-fPIC",
                    "-fvisibility=hidden",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                ),
                *(*options, "-o", str(built), str(ROOT / source)),
            ]
            subprocess.run(command, check=True)
            built.replace(target)


def add_to_wheel(wheel: Path, home: str | None = None) -> None:
    """Puts the files of the checkout that switch amp_tf on at the root of a wheel and lists them in
    its RECORD.

    Args:
        home: the folder of the package, where that is not in the wheel.
    """
    left_out = RUN_BY_PYTHON if os.environ.get("AMP_TF_WITHOUT_PTH") == "1" else ()
    staged = wheel.with_suffix(".tmp")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as new:
        record = next(
            item for item in old.infolist() if item.filename.endswith(".dist-info/RECORD")
        )
        lines = []
        for name in sorted({*AT_SITE_PACKAGES_ROOT}.difference(left_out)):
            data = (ROOT / name).read_bytes()
            if home is not None:
                data = re.sub(
                    rb"^HOME = .*", lambda _: f"HOME = {home!r}".encode(), data, flags=re.MULTILINE
                )
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
            # The date of a member of the old wheel keeps builds reproducible under
            # SOURCE_DATE_EPOCH.
            entry = zipfile.ZipInfo(name, record.date_time)
            entry.external_attr = 0o100644 << 16
            new.writestr(entry, data, zipfile.ZIP_DEFLATED)
        for item in old.infolist():
            if item is not record:
                new.writestr(item, old.read(item), zipfile.ZIP_DEFLATED)
        new.writestr(record, "".join(lines).encode() + old.read(record), zipfile.ZIP_DEFLATED)
    staged.replace(wheel)


class BuildNative(Command):
    """A sub-command of ``build``, by the protocol of ``setuptools.command.build.SubCommand``."""

    description = "compile the libraries written in C with ziglang"
    user_options = [("inplace", "i", "put the libraries beside their source")]  # noqa: RUF012 - setuptools' own form
    boolean_options = ["inplace"]  # noqa: RUF012 - likewise
    editable_mode = False

    def initialize_options(self) -> None:
        self.inplace = False
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        compile_libraries(ROOT if self.inplace or self.editable_mode else Path(str(self.build_lib)))

    def get_source_files(self) -> list[str]:
        return [SHIM, *AT_SITE_PACKAGES_ROOT]

    def get_outputs(self) -> list[str]:
        return [str(Path(str(self.build_lib)) / library) for library in LIBRARIES]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildWithNative(build):
    """``build`` with one more step."""

    # After build_py, which may have copied libraries for another architecture from the checkout.
    sub_commands = [*build.sub_commands, ("build_native", None)]  # noqa: RUF012 - setuptools' own form


class NativeWheel(bdist_wheel):
    """One wheel for every Python: ctypes loads the libraries, so no Python ABI is involved."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", f"manylinux2014_{architecture()}"

    def run(self) -> None:
        super().run()
        for kind, _, path in self.distribution.dist_files:
            if kind == "bdist_wheel":
                add_to_wheel(Path(path))


class EditableWheel(editable_wheel):
    """The wheel of an editable install, with the files that switch amp_tf on."""

    def run(self) -> None:
        before = set(Path(self.dist_dir or "dist").glob("*.whl"))
        super().run()
        for wheel in set(Path(self.dist_dir).glob("*.whl")) - before:
            add_to_wheel(wheel, str(ROOT))


class BinaryDistribution(Distribution):
    """A distribution whose wheel is for one architecture, though it has no extension module."""

    def has_ext_modules(self) -> bool:
        return True


# pip builds in the checkout; what it makes on the way would be left there.
scratch = tempfile.TemporaryDirectory(prefix="amp_tf-build-")

setup(
    options={"build": {"build_base": scratch.name}, "egg_info": {"egg_base": scratch.name}},
    distclass=BinaryDistribution,
    cmdclass={
        "build": BuildWithNative,
        "build_native": BuildNative,
        "bdist_wheel": NativeWheel,
        "editable_wheel": EditableWheel,
    },
)
