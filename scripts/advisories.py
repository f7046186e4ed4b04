#!/usr/bin/env python3
"""Look locked requirements up in a copy of the vulnerability database, for machines that cannot ask it.

    scripts/advisories.py all.zip docker/requirements.gpu.txt

The copy is a zip file or a folder of advisories in OSV's JSON format, as osv.dev publishes it for PyPI
(https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip). Which versions an advisory affects follows the
evaluation that the format defines (https://ossf.github.io/osv-schema/#evaluation). Needs packaging. The last line tells
how old the newest advisory is, because a copy knows nothing of what came after it; the status is 1 where something is
known.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)
LOWEST = Version("0.dev0")


@dataclasses.dataclass(frozen=True)
class Audit:
    """What a copy of the database says.

    Attributes:
        known: one line for each advisory that affects a requirement.
        requirements: how many were looked up.
        advisories: how many the copy holds.
        newest: when the newest of them was published, YYYY-MM-DD.
    """

    known: tuple[str, ...]
    requirements: int
    advisories: int
    newest: str

    def __str__(self) -> str:
        return (
            f"{self.requirements} requirements looked up in a copy of {self.advisories:,} advisories, "
            f"the newest of {self.newest or 'unknown date'}: {len(self.known) or 'none'} known"
        )


def audit(copy: pathlib.Path, lock: pathlib.Path) -> Audit:
    """Look every ``name==version`` of a lock up in a copy of the database.

    Raises:
        ValueError: the copy holds no advisory.
    """
    wanted = {(canonicalize_name(name), version) for name, version in PINNED.findall(lock.read_text(encoding="utf-8"))}
    names = {name for name, _ in wanted}
    known, count, newest = set(), 0, ""
    for advisory in read(copy):
        count += 1
        newest = max(newest, advisory.get("published", "")[:10])
        if "withdrawn" in advisory:
            continue
        for affected in advisory.get("affected", ()):
            package = affected.get("package", {})
            name = canonicalize_name(package.get("name", ""))
            if package.get("ecosystem") != "PyPI" or name not in names:
                continue
            versions = [version for one, version in wanted if one == name and affects(affected, version)]
            known.update(f"{lock.name}: {name} {version} has {advisory['id']}" for version in versions)
    if not count:
        raise ValueError(f"{copy} holds no advisory. It should be the all.zip that osv.dev publishes, or its content")
    return Audit(tuple(sorted(known)), len(wanted), count, newest)


def read(copy: pathlib.Path) -> Iterator[dict[str, Any]]:
    if copy.is_dir():
        for path in copy.rglob("*.json"):
            yield json.loads(path.read_bytes())
        return
    with zipfile.ZipFile(copy) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                yield json.loads(archive.read(name))


def affects(affected: dict[str, Any], version: str) -> bool:
    """Whether one entry of an advisory's "affected" holds for a version."""
    ours = Version(version)
    if any(parse(listed) == ours for listed in affected.get("versions", ())):
        return True
    ranges = (one["events"] for one in affected.get("ranges", ()) if one.get("type") == "ECOSYSTEM")
    return any(in_range(events, ours) for events in ranges)


def in_range(events: list[dict[str, str]], version: Version) -> bool:
    """Whether a version lies in a range. Mistakes are on the side of reporting.

    An "introduced" that is no version counts from the event before it in the list, an end that is none never comes.
    """
    steps, before = [], LOWEST
    for kind, text in (pair for event in events for pair in event.items()):
        at = parse(text) or (before if kind == "introduced" else None)
        if at is not None:
            steps.append((at, kind))
            before = at
    inside = False
    for at, kind in sorted(steps, key=lambda step: step[0]):
        if kind == "introduced" and version >= at:
            inside = True
        elif (kind == "fixed" and version >= at) or (kind == "last_affected" and version > at):
            inside = False
    return inside


def parse(text: str) -> Version | None:
    """A version, or ``None`` for the few old ones that follow no standard and so are none of a lock's."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("copy", type=pathlib.Path, help="the database: a zip file or a folder of OSV's advisories")
    parser.add_argument("locks", type=pathlib.Path, nargs="+", metavar="lock", help="a file of locked requirements")
    arguments = parser.parse_args()
    results = [audit(arguments.copy, lock) for lock in arguments.locks]
    for lock, result in zip(arguments.locks, results, strict=True):
        print(*result.known, f"{lock.name}: {result}", sep="\n")
    return int(any(result.known for result in results))


if __name__ == "__main__":
    sys.exit(main())
