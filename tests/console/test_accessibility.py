"""axe-core finds nothing serious or critical: on every page, light and dark, at the width of a desk and of a phone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.cli.shell import Shell
from tests.console.addresses import addresses
from tests.console.axe import axe_source
from tests.console.browser import DESK, PHONE, Browser
from tests.console.served import Served, Visitor, log_in, scram_config
from tests.support.fleet import Fleet
from tests.support.needs import needs
from tests.support.registry_process import RegistryProcess
from tests.support.secured import BROKER_PASSWORD, BROKER_USER
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs("chromium", "chromedriver"),
]
COLOURS = ("color-contrast", "link-in-text-block")
"""The rules that another theme may break."""


@pytest.fixture(scope="module")
def axe() -> str:
    return axe_source()


def _looked_at(browser: Browser, axe: str, name: str, make: Callable[[], object] = lambda: None) -> list[str]:
    """Troubles of a page in all four forms. ``make`` brings it into the state that is meant, after it was loaded."""
    found = []
    for size, dark, rules in (
        (DESK, False, ()), (DESK, True, COLOURS), (PHONE, False, COLOURS), (PHONE, True, ())
    ):  # fmt: skip
        browser.resize(size)
        browser.dark(dark)
        if size == PHONE and not dark:  # a page that is loaded at that width
            browser.driver.refresh()
            make()
        where = f"{name}, {size[0]} px, {'dark' if dark else 'light'}"
        found += [f"{where}: {one}" for one in browser.troubles(axe, *rules)]
    return found


@pytest.fixture(scope="module")
def registry(fleet: Fleet) -> Iterator[RegistryProcess]:
    process = RegistryProcess(fleet.bootstrap)
    yield process
    assert process.close() == 0


@pytest.fixture(scope="module")
def served(fleet: Fleet, registry: RegistryProcess) -> Iterator[Served]:
    console = Served(fleet.bootstrap, "--schema-registry", registry.url)
    yield console
    assert console.close() == 0


def test_no_page_has_what_keeps_people_from_using_it(
    fleet: Fleet, served: Served, registry: RegistryProcess, browser: Browser, axe: str
) -> None:
    topic, shell = f"seen-{uuid.uuid4().hex[:6]}", Shell(fleet)
    group = f"group-{topic}"
    shell.run("topics", "create", topic, "-p", "3", "-r", "3", "-c", "retention.ms=3600000")
    shell.run("produce", topic, stdin="".join(f'{{"order": {n}, "of": "Ann"}}\n' for n in range(30)))
    shell.run("consume", topic, "-g", group, "-n", "10")
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    producer.produce(topic, b"a letter", headers={"__dlq.errors.group": b"g", "fleetlog.dlq.reason": b"rejected"})
    assert producer.flush(30) == 0
    for text in ('"long"', '["long", "string"]'):
        assert registry.ask("POST", f"/subjects/{topic}-value/versions", {"schema": text})["id"] > 0
    served_figures = Visitor(served)
    eventually(lambda: "rect class" in served_figures.page("/") or "<svg" in served_figures.page("/"), "charts", 60)
    found = []
    pages = addresses(topic, group, f"{topic}-value")
    pages["/topics"] += "?records=yes"
    pages["/topics/{name}/messages"] += "?columns=value.order"
    for name, address in pages.items():
        browser.driver.get(served.url + address)
        assert not browser.driver.find_elements(By.CSS_SELECTOR, "[role=alert]"), address

        def opened() -> None:
            """With all that can be opened."""
            browser.driver.execute_script("document.querySelectorAll('main details').forEach((one) => one.open = true)")

        opened()
        found += _looked_at(browser, axe, name, opened)
    browser.driver.get(f"{served.url}no-such-page")
    found += _looked_at(browser, axe, "an error")
    for key, name in (("/", "the palette"), ("?", "the keys")):
        browser.driver.get(f"{served.url}topics")

        def pressed(key: str = key) -> None:
            browser.driver.find_element(By.TAG_NAME, "body").send_keys(key)

        pressed()
        if key == "/":
            browser.driver.switch_to.active_element.send_keys("seen")
            eventually(lambda: browser.driver.find_elements(By.CSS_SELECTOR, "dialog [role=option]"), "results")
        found += _looked_at(browser, axe, name, pressed)
        browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.driver.get(f"{served.url}topics")
    browser.driver.find_element(By.XPATH, "//summary[text()='Create a topic']").click()
    browser.driver.find_element(By.NAME, "topic").send_keys("not-made", Keys.ENTER)
    eventually(lambda: "fleetlog topics create" in browser.text(), "the question")
    found += browser.troubles(axe)
    assert found == [], "\n".join(found)


def test_users_rules_and_the_login_can_be_used(guarded: Fleet, browser: Browser, axe: str, tmp_path: Path) -> None:
    """What stands on the page of security of a fleet that has users."""
    words = ("--login", "SCRAM-SHA-256", "--command-config", str(scram_config(tmp_path)))
    console = Served(guarded.bootstrap, *words)
    try:
        admin = Visitor(console)
        assert log_in(admin, BROKER_USER, BROKER_PASSWORD).status == 303
        token = admin.json("/topics")["form_token"]
        rule = {"form_token": token, "resource": "Topic", "name": "eu-", "pattern": "prefixed", "op:Read": "yes",
                "principal": "User:zoe", "permission": "Allow", "confirm": "yes"}  # fmt: skip
        assert admin.post("/change/add-acl", rule).status == 303
        quota = {"form_token": token, "user": "zoe", "quota": "producer_byte_rate", "value": "1000", "confirm": "yes"}
        assert admin.post("/change/set-quota", quota).status == 303
        driver = browser.driver
        driver.get(console.url)
        assert urlsplit(driver.current_url).path == "/login"
        found = _looked_at(browser, axe, "/login")
        driver.find_element(By.NAME, "user").send_keys(BROKER_USER)
        driver.find_element(By.NAME, "password").send_keys(BROKER_PASSWORD, Keys.ENTER)
        eventually(lambda: driver.title.startswith("Fleet"), "logged in")
        driver.get(f"{console.url}security")
        assert "User:zoe" in browser.text()
        found += _looked_at(browser, axe, "/security")
        browser.resize(PHONE)
        assert browser.width() <= PHONE[0]
        browser.picture("security-phone")
        assert found == [], "\n".join(found)
    finally:
        left = {name: value for name, value in rule.items() if name != "op:Read"}
        try:
            for kind, form in (("remove-acl", left), ("remove-quota", quota)):
                assert admin.post(f"/change/{kind}", form).status == 303
            assert "Remove a quota: done" in admin.page("/security")  # which names what is removed, once
            eventually(lambda: "zoe" not in admin.page("/security"), "other tests find the fleet as it was")
        finally:
            assert console.close() == 0
