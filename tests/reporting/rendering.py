"""Renders a page by its scripts in Node.js, without a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

RUN = """
const { scripts, packed, expression } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const data = packed && JSON.parse(require("zlib").inflateSync(Buffer.from(packed, "base64")));
console.log(JSON.stringify(new Function("data", `${scripts}\\nreturn ${expression};`)(data)));
"""


def shown(page: str) -> str:
    """The HTML of a page once its scripts have run."""
    return str(evaluated(page, "rendered(data)"))


def evaluated(page: str, expression: str) -> Any:
    """The value of an expression that uses the functions of the page's scripts, and ``data``, its
    documents.
    """
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    packed, *_ = re.findall(r'id="documents">(.*?)</script>', page)
    given = {
        "scripts": "".join(re.findall(r"<script>(.*?)</script>", page, re.DOTALL)),
        "packed": packed,
    }
    found = subprocess.run(
        ["node", "-e", RUN],
        input=json.dumps({**given, "expression": expression}),
        capture_output=True,
        text=True,
    )
    assert not found.returncode, found.stderr
    return json.loads(found.stdout)
