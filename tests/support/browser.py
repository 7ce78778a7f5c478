"""Chromium, driven by tests: one for all of them."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from support.polling import DEFAULT_TIMEOUT

T = TypeVar("T")

MAX_TABS = 100
SHOWS_FOCUS = """
const element = document.activeElement, box = element.getBoundingClientRect();
return element !== document.body && getComputedStyle(element).outlineStyle !== "none"
    && box.width > 0 && box.right > 0 && box.left < innerWidth;
"""
"""Whether the element with the focus is on the page, and has an outline."""

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


class Browser:
    """A browser that shows one page."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self._opened_at = 0.0

    def open(self, url: str) -> None:
        """Show a page."""
        self.driver.get(url)
        self._opened_at = self.driver.execute_script("return performance.timing.domLoading")

    def find(self, selector: str) -> WebElement:
        """The element that a CSS selector matches, once there is one."""
        return self.wait(lambda: self.driver.find_element(By.CSS_SELECTOR, selector), selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of an element as it is at this moment; empty without one."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        found: str = self.driver.execute_script(script, selector)
        return found

    def click(self, selector: str) -> None:
        """Click an element, once that is possible."""

        def click() -> bool:
            self.find(selector).click()
            return True

        self.wait(click, f"click {selector}")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, selector: str, *, back: bool = False) -> None:
        """Press the tabulator until an element has the focus, each time at one that shows it."""
        for _ in range(MAX_TABS):
            keys = ActionChains(self.driver)
            if back:
                keys.key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
            else:
                keys.send_keys(Keys.TAB).perform()
            assert self.driver.execute_script(SHOWS_FOCUS), self.focused()
            if self.has_focus(selector):
                return
        raise AssertionError(f"the tabulator does not reach {selector}")

    def has_focus(self, selector: str) -> bool:
        script = "return document.activeElement.matches(arguments[0])"
        return bool(self.driver.execute_script(script, selector))

    def focused(self) -> str:
        """The element that has the focus, as HTML."""
        return str(self.driver.execute_script("return document.activeElement.outerHTML"))

    def reject(self) -> None:
        """Reject the question of the page."""
        self.wait(lambda: self.driver.switch_to.alert, "question").dismiss()

    def confirm(self) -> str:
        """Accept the question of the page, and return it."""
        question = self.wait(lambda: self.driver.switch_to.alert, "question")
        text: str = question.text
        question.accept()
        return text

    def wait(self, condition: Callable[[], T], what: str) -> T:
        """The result of *condition*, once it is true; elements may be replaced while it waits."""
        waiting = WebDriverWait(
            self.driver, DEFAULT_TIMEOUT, 0.05, ignored_exceptions=(WebDriverException,)
        )
        return waiting.until(lambda _: condition(), f"did not happen: {what}")

    def wait_text(self, selector: str, text: str) -> None:
        """Wait until an element contains *text*."""
        self.wait(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def errors(self) -> list[str]:
        """What the console has logged as an error since `open`, and since the last call.

        Those of the page before may arrive after it is left: requests that were refused, or that
        concern what a test has deleted.
        """
        logged = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [
            each["message"]
            for each in logged
            if each["level"] == "SEVERE" and each["timestamp"] >= self._opened_at
        ]

    def resize(self, width: int) -> None:
        """Set the width of the page, also below the minimum of a window."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False},
        )

    def set_dark(self, dark: bool) -> None:
        """Prefer dark or light colours."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser for the length of the block.

    Skips without Chromium; fails instead where ``BATHOLITH_REQUIRE`` demands it.
    """
    if CHROMIUM is None or DRIVER is None:
        if "chromium" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("Chromium and its driver are required and not installed")
        pytest.skip("Chromium or its driver is not installed")
    options = Options()
    options.binary_location = CHROMIUM
    # Root cannot use Chromium's sandbox. Machines for tests may have a small /dev/shm.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
