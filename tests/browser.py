"""A real browser without a window: a page is opened, and what it says is returned.

Chromium speaks its DevTools protocol over two pipes, JSON messages that end in a zero
byte: https://chromedevtools.github.io/devtools-protocol/
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
)
OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which root has none of, in a container; the page is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
)
# Runs a program that reads messages from file 3 and writes them to file 4.
LAUNCH = """
import fcntl, os, sys
moved = [fcntl.fcntl(int(file), fcntl.F_DUPFD, 10) for file in sys.argv[1:3]]
for file, place in zip(moved, (3, 4)):
    os.dup2(file, place)
    os.close(file)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page(NamedTuple):
    """What a browser found in a page."""

    errors: list[str]  # of the console, of scripts, and of what was refused
    requests: list[str]  # addresses that were asked for, less the page's own
    value: object  # of an expression


def find_browser():
    """Return the path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def open_page(browser: str, path: Path, expression: str, timeout: float = 60) -> Page:
    """Open a file, wait until it has loaded, and evaluate an expression in it."""
    # Its children may still write there when it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        process = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-c",
                LAUNCH,
                f"{theirs_in}",
                f"{theirs_out}",
                *command,
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            return _Session(ours_in, ours_out, timeout).open(path, expression)
        finally:
            os.close(ours_out)  # which ends it
            os.close(ours_in)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class _Session:
    def __init__(self, read: int, write: int, timeout: float):
        self.read, self.write = read, write
        self.until = time.monotonic() + timeout
        self.rest, self.number, self.session, self.events = b"", 0, None, []

    def open(self, path: Path, expression: str) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attach = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attach["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        address = path.resolve().as_uri()
        self.call("Page.navigate", url=address)
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self.events.append(self.message())
        found = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"]))
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        requests = [url for url in asked if url != address]
        return Page(self.errors(), requests, found["result"].get("value"))

    def errors(self) -> list[str]:
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed")
        found = [e["params"] for e in self.events if e["method"] in kinds]
        found += [
            event["params"]
            for event in self.events
            if event["method"] == "Runtime.consoleAPICalled"
            and event["params"]["type"] in ("error", "assert", "warning")
        ]
        return [json.dumps(entry) for entry in found]

    def call(self, method: str, **params):
        """Send a command, and wait for its answer; events on the way are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            found = self.message()
            if found.get("id") == self.number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.events.append(found)

    def message(self) -> dict:
        while b"\0" not in self.rest:
            left = self.until - time.monotonic()
            if left <= 0 or not select.select([self.read], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self.read, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self.rest += part
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)
