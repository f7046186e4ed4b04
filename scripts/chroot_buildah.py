"""Build and run container images without a daemon: buildah from Debian's archive, in a mount
namespace of its own.

mmdebstrap makes a small Debian tree from packages, which becomes the base image as it is before
buildah is installed. Each command runs in a fresh mount namespace, chrooted into the tree, where
the images live too. So neither a daemon nor a registry is needed, and overlayfs is used only where
it can be. Root is needed, or a user namespace that makes one root.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import subprocess

import venvs

SUITE = "bookworm"
TOOL_PACKAGES = "buildah util-linux"
BASE_PACKAGES = "python3,python3-venv,ca-certificates,passwd"
BASE_IMAGE = "localhost/amp-tf-base:bookworm"
_CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")


def why_not_here(*, may_install: bool) -> str:
    """The reason why containers cannot be built on this machine, or "" if they can.

    Args:
        may_install: whether mmdebstrap may be installed with apt-get where it is missing.
    """
    if os.geteuid() != 0:
        return "root is needed (chroot, mount); run it with sudo or inside a user namespace"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        return "this machine does not allow mount namespaces"
    if shutil.which("mmdebstrap"):
        return ""
    if not may_install:
        return "mmdebstrap is missing: apt-get install mmdebstrap, or run with --install-tools"
    if not shutil.which("apt-get"):
        return "mmdebstrap is missing, and so is apt-get"
    quiet = {
        "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        "stdout": subprocess.DEVNULL,
    }
    subprocess.run(["apt-get", "update", "-q"], **quiet)
    if subprocess.run(
        ["apt-get", "install", "-q", "-y", "--no-install-recommends", "mmdebstrap"], **quiet
    ).returncode:
        return "apt-get could not install mmdebstrap"
    return ""


@dataclasses.dataclass(frozen=True)
class Buildah:
    """buildah in its tree.

    Attributes:
        folder: where the trees, the images and the log are; it can be deleted at any time. Buildah
            sees this checkout, read-only, as /checkout.
    """

    folder: pathlib.Path

    @property
    def tree(self) -> pathlib.Path:
        return self.folder / "tools"

    @property
    def log(self) -> pathlib.Path:
        return self.folder / "container.log"

    def prepare(self) -> None:
        """Make the tree and the base image, as far as they are missing.

        Raises:
            venvs.SetupError: a step failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.tree / "base.tar").exists():
            shutil.rmtree(self.tree, ignore_errors=True)
            self._bootstrap()
        self._bring_machine_settings()
        self._choose_storage()
        if self.capture("buildah", "images", "--quiet", BASE_IMAGE).returncode != 0:
            script = (
                'set -e; c=$(buildah from scratch); buildah add -q "$c" /base.tar /; '
                # The machine's certificates, and pip told to use them: a base image of a company
                # would do the same.
                '[ ! -e /machine.crt ] || buildah copy -q "$c" /machine.crt '
                "/etc/ssl/certs/ca-certificates.crt; "
                'buildah config --env PIP_CERT=/etc/ssl/certs/ca-certificates.crt "$c"; '
                # The checks import a part of what pip would compile, and copy all of it.
                'buildah config --env PIP_COMPILE=0 "$c"; '
                f'buildah commit -q --rm "$c" {BASE_IMAGE}'
            )
            self.run("sh", "-c", script, title="commit the base image")

    def run(self, *command: str, title: str) -> None:
        """Run a command in the tree, its output going to the log.

        Raises:
            venvs.SetupError: its status was not 0.
        """
        venvs.run(self._wrap(command), title=title, log=self.log, cwd=self.folder)

    def capture(self, *command: str, timeout: float = 300) -> subprocess.CompletedProcess:
        """Run a command in the tree and return its status and output."""
        return subprocess.run(
            self._wrap(command), capture_output=True, text=True, errors="replace", timeout=timeout
        )

    def start(self, *command: str) -> subprocess.Popen:
        """Start a command in the tree, its output piped."""
        return subprocess.Popen(
            self._wrap(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def inspect(self, image: str) -> dict:
        """The Docker configuration of an image."""
        answer = self.capture("buildah", "inspect", "--type", "image", image)
        return json.loads(answer.stdout)["Docker"]["config"]

    def _bootstrap(self) -> None:
        # Not what mmdebstrap mounts there, nor what it takes away at its end.
        left_out = "dev proc sys tmp/* var/lib/apt/lists/* var/cache/apt/* etc/apt/apt.conf.d/00mm*"
        base = self.folder / "base.tar"
        keep = ["tar", "--create", "--numeric-owner", "--one-file-system", f"--file={base}"]
        keep += [f"--exclude=./{path}" for path in left_out.split()]
        add = f'-o DPkg::Chroot-Directory="$1" install --no-install-recommends {TOOL_PACKAGES}'
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={BASE_PACKAGES}",
            f'--customize-hook={shlex.join(keep)} --directory="$1" .',
            f'--customize-hook=APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --quiet --yes {add}',
            SUITE,
            str(self.tree),
        ]
        venvs.run(command, title="make a tree with buildah", log=self.log, cwd=self.folder)
        base.rename(self.tree / base.name)

    def _choose_storage(self) -> None:
        # On an overlay (CI inside a container) buildah cannot make another one; vfs copies files,
        # which always works.
        kind = subprocess.run(
            ["stat", "--file-system", "--format=%T", self.folder],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        driver = "vfs" if kind in ("overlayfs", "tmpfs") else "overlay"
        settings = f'[storage]\ndriver = "{driver}"\ngraphroot = "/var/lib/containers/storage"\n'
        settings += 'runroot = "/run/containers/storage"\n'
        target = self.tree / "etc" / "containers" / "storage.conf"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(settings, encoding="utf-8")

    def _bring_machine_settings(self) -> None:
        for name in ("resolv.conf", "hosts"):
            source = pathlib.Path("/etc") / name
            if source.exists():
                shutil.copyfile(source, self.tree / "etc" / name)
        if _CERTIFICATES.exists():
            shutil.copyfile(_CERTIFICATES, self.tree / "machine.crt")
        for name in ("checkout", "proc", "sys", "dev"):
            (self.tree / name).mkdir(exist_ok=True)

    def _wrap(self, command: tuple[str, ...]) -> list[str]:
        # The tree is bound onto itself because buildah remounts /, which must be a mount point for
        # that.
        setup = (
            'set -e; t=$1; c=$2; shift 2; mount --bind "$t" "$t"; '
            'for d in proc dev sys; do mount --rbind "/$d" "$t/$d"; done; '
            'mount --bind "$c" "$t/checkout"; mount -o remount,bind,ro "$t/checkout"; '
            "PATH=$PATH:/usr/sbin:/sbin; "  # where chroot is, and not in every user's PATH
            'exec chroot "$t" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root '
            'BUILDAH_ISOLATION=chroot "$@"'
        )
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", setup, "sh",
                str(self.tree), str(venvs.ROOT), *command]  # fmt: skip
