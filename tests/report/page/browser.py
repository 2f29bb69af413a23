"""Headless Chromium for tests: one session, what it drew, what it logged, what it asked the network for."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_LIMIT_S = 60.0
_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,900"),
    *("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-sync"),
)


class Browser:
    """A Chromium with a page in it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Load a page and wait until it has drawn itself."""
        self.messages()
        self.driver.get(path.as_uri())
        self.until(lambda: self.run("return performance.getEntriesByName('dlplacer drawn').length") == 1)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns, which sees the names of the page's own script."""
        return self.driver.execute_script(script, *arguments)

    def until(self, holds: Callable[[], Any]) -> Any:
        """Wait for a condition, as long as a machine under load may need; returns its value."""
        limit = time.monotonic() + _LIMIT_S
        while not (found := holds()):
            assert time.monotonic() < limit, "the page did not get there"
            time.sleep(0.02)
        return found

    def settled(self) -> None:
        """Wait until what was asked for is drawn: no glide under way, two frames past."""
        script = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)));"
        before = None
        while (now := self.run("return [view.begin, view.end]")) != before:
            before = now
            self.driver.execute_async_script(script)
            time.sleep(0.05)

    def find(self, selector: str) -> Any:
        """The first element of a CSS selector."""
        from selenium.webdriver.common.by import By

        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def actions(self) -> Any:
        """A chain of input as a hand would make it."""
        from selenium.webdriver.common.action_chains import ActionChains

        return ActionChains(self.driver, duration=0)

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        self.actions().send_keys(*keys).perform()
        self.settled()

    def click_at(self, selector: str, x: float, y: float) -> None:
        """Click at a point of an element, from its upper left corner."""
        self.move_to(selector, x, y).click().perform()
        self.settled()

    def move_to(self, selector: str, x: float, y: float) -> Any:
        """A chain that begins at a point of an element."""
        element = self.find(selector)
        box = element.rect
        return self.actions().move_to_element_with_offset(
            element, round(x - box["width"] / 2), round(y - box["height"] / 2)
        )

    def colors(self, selector: str = "#gantt") -> dict[str, int]:
        """Colour → pixels of a canvas."""
        found: dict[str, int] = self.run(
            "const canvas = document.querySelector(arguments[0]);"
            "const copy = new OffscreenCanvas(canvas.width, canvas.height);"
            "const context = copy.getContext('2d', {willReadFrequently: true});"
            "context.drawImage(canvas, 0, 0);"
            "const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;"
            "const counts = {};"
            "for (let at = 0; at < pixels.length; at += 4) {"
            "  const name = pixels[at] + ',' + pixels[at + 1] + ',' + pixels[at + 2];"
            "  counts[name] = (counts[name] || 0) + 1;"
            "}"
            "return counts;",
            selector,
        )
        return found

    def messages(self) -> list[str]:
        """What the console has logged since the last call: errors, warnings, refused loads."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call, but for pages themselves and data in them."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        sent = (event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent")
        return [url for url in sent if not url.startswith(("data:", "file:", "blob:"))]


@contextmanager
def browser() -> Iterator[Browser]:
    """A session; the test is skipped where Chromium, its driver or selenium is missing."""
    pytest.importorskip("selenium", reason="selenium is not installed: the page is not tested in a browser")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("no chromium and chromedriver here (Debian: apt install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs[1]))
    try:
        driver.set_script_timeout(_LIMIT_S)
        yield Browser(driver)
    finally:
        driver.quit()
