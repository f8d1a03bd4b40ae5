"""Pictures of the server's page for the docs: `PYTHONPATH=tests python -m support.screenshots BUNDLE`.

It serves the bundle (of `polyhead demo`) on a free port, asks it for a while so that the charts show something, and
writes docs/images/page-light.png and page-dark.png. Needs Chromium (see `browser.py`), Pillow, and the fonts that the
pictures shall show (Debian's fonts-inter and fonts-noto-color-emoji).
"""

import contextlib
import json
import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import Request, urlopen

from PIL import Image

from support.browser import Browser, missing

IMAGES = Path(__file__).parents[2] / "docs" / "images"
TEXT = (
    "You charged my card twice for order #48213 on 3 May, and the AeroBrew 300 never came. "
    "Please put this right today. Ingrid"
)
DONE = """
    return document.getElementById("answers").getAttribute("aria-busy") === "false"
      && !document.getElementById("results").hidden
"""
MOST = 200_000  # bytes of a picture
LOAD_SECONDS = 62


@contextlib.contextmanager
def served(bundle):
    """The address of a server of this bundle."""
    command = [sys.executable, "-m", "polyhead", "serve", str(bundle), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def asked(url, seconds):
    """Some requests a second, more and fewer of them by turns."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        body = json.dumps({"inputs": [TEXT[int(now) % 20 :]]}).encode()
        with urlopen(Request(f"{url}/v1/predict", body)) as answer:
            answer.read()
        time.sleep(0.04 + 0.05 * (1 + math.sin(now / 4)))


def pictures(browser, url):
    """Takes both."""
    IMAGES.mkdir(exist_ok=True)
    browser.emulate(width=1200, height=860, scale=1.5, scheme="light")
    browser.go(url)
    browser.wait("return document.querySelectorAll('#tasks button').length > 0")
    browser.type("#text", TEXT)
    for _ in range(5):  # the first compiles
        browser.press("Control", "Enter")
        browser.wait(DONE)
    browser.wait("return document.getElementById('load-milliseconds').textContent !== '–'")
    time.sleep(1)
    kept(browser, "page-light.png", whole=True)
    browser.emulate(width=1200, height=860, scale=1.5, scheme="dark")
    browser.click("#answers [data-task=sentiment]")
    browser.wait("return document.querySelector('#card-body .prose')")
    time.sleep(0.5)
    kept(browser, "page-dark.png")


def kept(browser, name, **how):
    """A picture of few colours, and so of few bytes."""
    path = IMAGES / name
    browser.picture(path, **how)
    with Image.open(path) as image:
        image.convert("RGB").quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < MOST, f"{name}: {path.stat().st_size:,} bytes"


def main(bundle):
    """Makes the pictures."""
    if missing():
        raise SystemExit(missing())
    with served(bundle) as url, Browser() as browser:
        load = threading.Thread(target=asked, args=(url, LOAD_SECONDS), daemon=True)
        load.start()
        time.sleep(LOAD_SECONDS - 12)
        pictures(browser, url)
        load.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
