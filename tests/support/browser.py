"""A headless Chromium, driven through ChromeDriver by the W3C's WebDriver protocol: JSON over HTTP, no package needed.

Debian's packages are `chromium` and `chromium-driver`.
"""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

CHROMIUM, DRIVER = ("chromium", "chromium-browser", "google-chrome"), "chromedriver"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
)
OWN = ("chrome://", "chrome-untrusted://")  # addresses of the browser's own pages
SECONDS = 30  # that is waited for anything
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of an element
KEYS = {
    "Enter": "\ue007",
    "Tab": "\ue004",
    "Escape": "\ue00c",
    "Space": " ",
    "ArrowDown": "\ue015",
    "ArrowUp": "\ue013",
    "ArrowLeft": "\ue012",
    "ArrowRight": "\ue014",
    "Home": "\ue011",
    "End": "\ue010",
    "Shift": "\ue008",
    "Control": "\ue009",
}
_opener = build_opener(ProxyHandler({}))  # loopback is never asked through a proxy


def missing():
    """Why there is no browser; None where there is one."""
    if not any(map(shutil.which, CHROMIUM)):
        return "no Chromium: Debian's package chromium is not installed"
    if shutil.which(DRIVER) is None:
        return "no ChromeDriver: Debian's package chromium-driver is not installed"
    return None


class BrowserError(Exception):
    """What the driver says of a command that failed."""


class Browser:
    """One window. Elements are named by CSS selectors; everything else is read by scripts."""

    def __init__(self, *, width=1280, height=900):
        """Starts the driver and a browser with an empty profile."""
        self._ended = ExitStack()
        try:
            self._start(width, height)
        except BaseException:
            self._ended.close()
            raise

    def _start(self, width, height):
        profile = self._ended.enter_context(tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True))
        log = Path(profile) / "driver.log"
        driver = subprocess.Popen(
            [DRIVER, "--port=0", f"--log-path={log}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._ended.callback(_stop, driver)
        port = next(
            int(line.rsplit(" ", 1)[1].strip(". \n")) for line in driver.stdout if "successfully on port" in line
        )
        self._root = f"http://127.0.0.1:{port}"
        arguments = [*FLAGS, f"--user-data-dir={profile}/profile", f"--window-size={width},{height}"]
        options = {"args": arguments, "binary": next(filter(None, map(shutil.which, CHROMIUM)))}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }
        session = self._asked("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        self._root += f"/session/{session}"
        self._ended.callback(self._asked, "DELETE", "")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.close()

    def go(self, url):
        """Opens an address, and waits until it is loaded."""
        self._asked("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """What the body of a function returns; `arguments[0]` is the first of these. It may return a promise."""
        return self._asked("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script, *arguments):
        """Waits until the script returns something true, and returns that."""
        until = time.monotonic() + SECONDS
        while not (value := self.run(script, *arguments)):
            assert time.monotonic() < until, f"it did not come to be so: {script}"
            time.sleep(0.02)
        return value

    def click(self, selector):
        """As a person does: the element must be seen, and nothing may lie over it."""
        self._asked("POST", f"/element/{self._element(selector)}/click", {})

    def type(self, selector, text):
        """Types into a field, behind what stands there."""
        if all(ord(letter) <= 0xFFFF for letter in text):
            self._asked("POST", f"/element/{self._element(selector)}/value", {"text": text})
            return
        # ChromeDriver refuses an emoji as keys, and a person enters it by no key either
        self.run(
            "const e = document.querySelector(arguments[0]); e.focus(); e.selectionStart = e.value.length", selector
        )
        self.devtools("Input.insertText", text=text)

    def press(self, *keys):
        """Presses keys together, wherever the focus is: `press("Control", "Enter")`."""
        codes = [KEYS.get(key, key) for key in keys]
        moves = [{"type": "keyDown", "value": code} for code in codes]
        moves += [{"type": "keyUp", "value": code} for code in reversed(codes)]
        self._asked("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": moves}]})

    def text(self, selector):
        """The text of an element as it is seen."""
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def texts(self, selector):
        """The texts of all elements that match."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)

    def accessible(self, selector):
        """The role and the name that a screen reader gets."""
        element = self._element(selector)
        return tuple(self._asked("GET", f"/element/{element}/{what}") for what in ("computedrole", "computedlabel"))

    def emulate(self, *, width=None, height=900, scale=1, scheme=None, motion=None):
        """The size of the window, and what the system prefers; None leaves it as the machine has it."""
        if width is None:
            self.devtools("Emulation.clearDeviceMetricsOverride")
        else:
            size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
            self.devtools("Emulation.setDeviceMetricsOverride", **size)
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in wanted.items() if value]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def devtools(self, command, **parameters):
        """A command of the DevTools protocol."""
        return self._asked("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind):
        """What was logged since the last time, of kind "browser" or "performance"."""
        return self._asked("POST", "/se/log", {"type": kind})

    def requested(self):
        """The addresses that pages asked since the last time; not what the browser's own first page is made of."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        sent = [params for params in sent if not params["documentURL"].startswith(OWN)]
        sockets = [event["params"] for event in events if event["method"] == "Network.webSocketCreated"]
        return [params["request"]["url"] for params in sent] + [params["url"] for params in sockets]

    def picture(self, path, *, whole=False):
        """A PNG file of what is seen, or of the whole page."""
        more = {}
        if whole:
            size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
            more = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "scale": 1, **_sized(size)}}
        shot = self.devtools("Page.captureScreenshot", format="png", **more)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def _element(self, selector):
        return self._asked("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def _asked(self, method, path, body=None):
        content = None if body is None else json.dumps(body).encode()
        request = Request(self._root + path, content, {"Content-Type": "application/json"}, method=method)
        try:
            with _opener.open(request, timeout=2 * SECONDS) as answer:
                return json.loads(answer.read())["value"]
        except HTTPError as error:
            with error:
                raise BrowserError(json.loads(error.read())["value"]["message"].partition("\n")[0]) from None


def _sized(size):
    return {"width": size["width"], "height": size["height"]}


def _stop(process):
    process.terminate()
    process.wait(SECONDS)
    process.stdout.close()
