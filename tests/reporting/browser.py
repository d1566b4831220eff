"""A headless Chromium over DevTools on a pipe: nothing but the standard library between a test and the browser."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
]  # fmt: skip
# Chromium talks on descriptors 3 and 4, whatever the pipes' own numbers are: this puts them there and becomes it.
LAUNCH = """
import os, sys
source, sink = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
source, sink = [os.dup2(d, 100 + d) for d in (source, sink)]
os.dup2(source, 3); os.dup2(sink, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "ArrowUp": 38, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9}


def find_browser():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    def __init__(self, path):
        self.profile = tempfile.mkdtemp(prefix="cosep-chromium-")
        theirs_in, self.sink = os.pipe()
        self.source, theirs_out = os.pipe()
        command = [sys.executable, "-S", "-c", LAUNCH, str(theirs_in), str(theirs_out), path, *FLAGS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.buffer, self.events = 0, b"", []

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.source)
        os.close(self.sink)
        shutil.rmtree(self.profile, ignore_errors=True)

    def command(self, method, session=None, timeout=60, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.sink, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while True:
            answer = self.receive(end)
            if answer is None:
                raise TimeoutError(f"chromium did not answer {method} within {timeout} s")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def receive(self, end):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.source], [], [], max(0, end - time.monotonic()))
            if not ready:
                return None
            piece = os.read(self.source, 1 << 20)
            if not piece:
                raise RuntimeError("chromium went away")
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """One tab, with the network turned off."""

    def __init__(self, browser, width=1280, height=900, dark=False):
        self.browser = browser
        self.target = browser.command("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.command("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")
        self.do("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.resize(width, height)
        if dark:
            self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def do(self, method, **parameters):
        return self.browser.command(method, self.session, **parameters)

    def resize(self, width, height=900):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.do("Emulation.setDeviceMetricsOverride", **metrics)

    def open(self, path):
        self.do("Page.navigate", url=Path(path).resolve().as_uri())
        end = time.monotonic() + 30
        while not self.run("document.documentElement?.dataset.ready"):  # there is none while a page goes
            assert time.monotonic() < end, f"the page did not become ready: {self.complaints()}"
            time.sleep(0.02)
        return self

    def run(self, script):
        """The value of an expression in the page; a promise is waited for."""
        found = self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.run(f"(r => [r.left + r.width / 2, r.top + r.height / 2])({box})")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, x, y):
        self.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x, y):
        self.do("Emulation.setTouchEmulationEnabled", enabled=True)
        self.do("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.do("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def screenshot(self, path=None):
        data = base64.b64decode(self.do("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])
        if path:
            Path(path).write_bytes(data)
        return data

    def complaints(self):
        """Errors and warnings on the console, exceptions, and violations of the page's own policy."""
        self.run("1")  # whatever happened before this answer has been reported
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, facts = event.get("method"), event.get("params", {})
            if (
                method == "Runtime.exceptionThrown"
                or (method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"))
                or (method == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"))
            ):
                found.append(facts)
        return found

    def requests(self):
        """Every address that the page asked for."""
        self.run("1")
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [e["params"]["request"]["url"] for e in mine if e.get("method") == "Network.requestWillBeSent"]

    def close(self):
        self.browser.command("Target.closeTarget", targetId=self.target)
