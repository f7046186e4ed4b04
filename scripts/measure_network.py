#!/usr/bin/env python3
"""Run a command and say how many bytes went over loopback: scripts/measure_network.py COMMAND…

TensorFlow counts its messages nowhere that a program can read, so the kernel's counters of the
interface "lo" are read (/proc/net/dev), which hold everything that processes of one machine send
each other. The command runs in a network namespace of its own, so that nobody else's traffic
counts; where the machine allows none, the last line says that it counted the whole machine's. Needs
Linux and unshare (util-linux).

The last line on stderr is a JSON object: {"loopback_bytes": …, "private": true}. The status is the
command's.
"""

from __future__ import annotations

import fcntl
import json
import pathlib
import shutil
import socket
import struct
import subprocess
import sys

SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
INSIDE = "--in-namespace"


def main() -> int:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: scripts/measure_network.py COMMAND…\n\n{__doc__}")
        return 0 if arguments else 2
    private = arguments[0] == INSIDE
    if private:
        arguments = arguments[1:]
        bring_up_loopback()
    elif prefix := namespace_prefix():
        return subprocess.run([*prefix, sys.executable, __file__, INSIDE, *arguments]).returncode
    before = loopback_bytes()
    status = subprocess.run(arguments).returncode
    print(
        json.dumps({"loopback_bytes": loopback_bytes() - before, "private": private}),
        file=sys.stderr,
    )
    return status


def namespace_prefix() -> list[str]:
    """The command that gives the next one a network of its own, or nothing where that is not
    allowed.
    """
    for prefix in (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"]):
        if (
            shutil.which(prefix[0])
            and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
        ):
            return prefix
    return []


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def loopback_bytes() -> int:
    """Bytes sent over "lo" in this network namespace, with the headers of TCP and IP."""
    for line in pathlib.Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
