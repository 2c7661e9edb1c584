"""The console in a real browser: every page on three brokers, one of which is killed while the page is watched.

Debian's chromium and chromium-driver, headless. FLEETLOG_SCREENSHOTS names a directory that keeps the pictures.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.cli.shell import Shell
from tests.console.served import Served
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

FOUND = shutil.which("chromium") is not None and shutil.which("chromedriver") is not None
pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not FOUND and "CI" not in os.environ, reason="apt install chromium chromium-driver"),
]
PHONE, DESK = (390, 844), (1280, 900)


class Browser:
    """One window, and what the page complained of."""

    def __init__(self, pictures: Path) -> None:
        program, driver = shutil.which("chromium"), shutil.which("chromedriver")
        assert program is not None, "apt-get install chromium chromium-driver"
        assert driver is not None, "apt-get install chromium chromium-driver"
        options = Options()
        options.binary_location = program
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(driver))
        self.pictures = pictures
        self.resize(DESK)

    def resize(self, size: tuple[int, int]) -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def dark(self, wanted: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def picture(self, name: str) -> None:
        assert self.driver.save_screenshot(str(self.pictures / f"{name}.png"))

    def text(self) -> str:
        """What one reads on the page."""
        return str(self.driver.execute_script("return document.body.innerText"))

    def width(self) -> int:
        return int(self.driver.execute_script("return document.documentElement.scrollWidth"))

    def complaints(self) -> list[str]:
        """What the browser refused or scripts raised: a violation of the policy stands here, too."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] == "SEVERE"]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    pictures = Path(os.environ.get("FLEETLOG_SCREENSHOTS", tmp_path / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    found = Browser(pictures)
    yield found
    found.driver.quit()


def test_every_page_in_a_browser_while_a_broker_is_killed(own_fleet: Fleet, browser: Browser) -> None:
    own_fleet.start()
    shell, topic = Shell(own_fleet), f"orders-{uuid.uuid4().hex[:4]}"
    shell.run("topics", "create", topic, "-p", "3", "-r", "3")
    shell.run("produce", topic, stdin="".join(f'{{"order": {n}, "note": "<b>bold</b>"}}\n' for n in range(40)))
    shell.run("consume", topic, "-g", "billing", "-n", "25")
    shell.run("quotas", "set", "--user", "alice", "producer_byte_rate=1000000")
    console = Served(own_fleet.bootstrap)
    try:
        _every_page(browser, console.url, topic)
        _keyboard_and_change(browser, console.url, shell)
        _live(browser, console.url, shell, topic)
        browser.driver.get(console.url)
        eventually(lambda: "Healthy" in browser.text(), "a healthy fleet")
        assert browser.complaints() == []
        own_fleet.brokers[2].kill()
        eventually(lambda: "broker 3" in browser.text() and "down" in browser.text(), "the page by itself says so")
        eventually(lambda: "under-replicated" in browser.text(), "partitions with problems")
        browser.picture("fleet-with-a-dead-broker")
        own_fleet.brokers[2].start()
        eventually(lambda: "Healthy" in browser.text(), "healthy again")
    finally:
        assert console.close() == 0


def _every_page(browser: Browser, url: str, topic: str) -> None:
    pages = {
        "": "Brokers", "topics": topic, f"topics/{topic}": "retention.ms", f"topics/{topic}/messages": '"order": 39',
        "groups": "billing", "group?name=billing": "Lag in records", "transactions": "No transaction is open",
        "security": "producer_byte_rate", "controller": "Timeline of elections", "connections": "kafka-python",
        "doctor": "all brokers share one failure domain",
        f"topics/{topic}/copy?partition=0&offset=0": "keep the record's time",
        "topics/no-such": "there is no such topic",
    }  # fmt: skip
    for path, words in pages.items():
        name = path.replace("/", "-").replace("?", "-").replace(topic, "topic") or "fleet"
        for size, dark in ((DESK, False), (PHONE, True)):
            browser.resize(size)
            browser.dark(dark)
            browser.driver.get(url + path)
            eventually(lambda: words in browser.text(), f"{words!r} at {path}")  # noqa: B023
            assert browser.width() <= size[0], f"{path} is wider than {size[0]}"
            browser.picture(f"{name}-{'phone' if size == PHONE else 'desk'}")
    assert [one for one in browser.complaints() if "404" not in one] == []
    browser.resize(DESK)
    browser.dark(False)


def _keyboard_and_change(browser: Browser, url: str, shell: Shell) -> None:
    """A topic is made with keys alone."""
    browser.driver.get(url)
    browser.driver.find_element(By.TAG_NAME, "body").send_keys("g")
    browser.driver.switch_to.active_element.send_keys("t")
    eventually(lambda: browser.driver.title.startswith("Topics"), "the page of topics")
    browser.driver.find_element(By.TAG_NAME, "body").send_keys("/")
    assert browser.driver.switch_to.active_element.get_attribute("name") == "name"
    browser.driver.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    browser.driver.find_element(By.NAME, "topic").send_keys("by-hand", Keys.ENTER)
    eventually(lambda: "fleetlog topics create" in browser.text(), "the question")
    browser.picture("confirm")
    browser.driver.find_element(By.CSS_SELECTOR, "button.danger").send_keys(Keys.ENTER)
    eventually(lambda: browser.driver.title.startswith("by-hand"), "the topic's page")
    assert "by-hand" in {row["topic"] for row in shell.json("topics", "list")}


def _live(browser: Browser, url: str, shell: Shell, topic: str) -> None:
    browser.driver.get(f"{url}topics/{topic}/messages?count=5")
    browser.driver.find_element(By.CSS_SELECTOR, "[data-tail] button").click()
    eventually(lambda: "0 followed" in browser.text(), "following")
    shell.run("produce", topic, stdin="<i>came later</i>\n")
    eventually(lambda: "<i>came later</i>" in browser.text(), "the new record")
    browser.picture("live")
