"""A real Chromium without a window, driven by the WebDriver protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
MISSING = next(
    (f"there is no {name}" for name in ("chromium", "chromedriver") if shutil.which(name) is None),
    "",
)
ENTER = "\ue007"
TAB = "\ue004"


class Page:
    """A page in the browser."""

    def __init__(self, address: str) -> None:
        self._address = address

    def call(self, path: str, **body: Any) -> Any:
        """One command of WebDriver's."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._address}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, path: Path, fragment: str = "") -> None:
        self.call("/url", url=path.as_uri() + fragment)

    def run(self, script: str) -> Any:
        """The result of a script."""
        return self.call("/execute/sync", script=script, args=[])

    def wait(self, script: str) -> Any:
        """The result of a script, once it is true."""
        end = time.monotonic() + 20
        while not (found := self.run(f"return {script}")):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.1)
        return found

    def press(self, keys: str) -> None:
        """Types into what has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def look(self, width: int, *, dark: bool = False, medium: str = "screen") -> None:
        """Sets the width in pixels, and what the reader prefers."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._developer("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._developer("Emulation.setEmulatedMedia", {"media": medium, "features": scheme})

    def picture(self, path: Path) -> None:
        """Writes a PNG of what is in the window."""
        shot = self._developer("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(shot["data"]))

    def _developer(self, command: str, params: dict[str, Any]) -> Any:
        return self.call("/goog/cdp/execute", cmd=command, params=params)


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A page of a browser of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        root = Page(f"http://127.0.0.1:{port}")
        options = {"binary": shutil.which("chromium"), "args": list(FLAGS)}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        for _ in range(100):
            with contextlib.suppress(urllib.error.URLError):
                session = root.call("/session", **wanted)["sessionId"]
                break
            time.sleep(0.1)
        yield Page(f"http://127.0.0.1:{port}/session/{session}")
    finally:
        driver.terminate()
        driver.wait(20)
