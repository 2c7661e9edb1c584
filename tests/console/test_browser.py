"""The console in a real browser: every page on three brokers, one of which is killed while the page is watched; and
what works without JavaScript.

Debian's chromium and chromium-driver, headless. FLEETLOG_SCREENSHOTS names a directory that keeps the pictures.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from tests.cli.shell import Shell
from tests.console.addresses import addresses
from tests.console.browser import DESK, PHONE, Browser
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet
from tests.support.needs import needs
from tests.support.registry_process import RegistryProcess
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs("chromium", "chromedriver"),
]
SUBJECT = "orders-value"


def _is_gone(element: WebElement) -> bool:
    """Whether another page has taken the place of the element's."""
    try:
        element.is_enabled()
    except WebDriverException:  # stale, or a node that does not belong to the document any more
        return True
    return False


def test_every_page_in_a_browser_while_a_broker_is_killed(own_fleet: Fleet, browser: Browser) -> None:
    own_fleet.start()
    shell, topic = Shell(own_fleet), f"orders-{uuid.uuid4().hex[:4]}"
    shell.run("topics", "create", topic, "-p", "3", "-r", "3")
    shell.run("produce", topic, stdin="".join(f'{{"order": {n}, "note": "<b>bold</b>"}}\n' for n in range(40)))
    shell.run("consume", topic, "-g", "billing", "-n", "25")
    shell.run("quotas", "set", "--user", "alice", "producer_byte_rate=1000000")
    registry = RegistryProcess(own_fleet.bootstrap)
    assert registry.ask("POST", f"/subjects/{SUBJECT}/versions", {"schema": '"long"'})["id"] > 0
    console = Served(own_fleet.bootstrap, "--schema-registry", registry.url)
    try:
        _every_page(browser, console.url, topic)
        _keyboard_and_change(browser, console.url, shell)
        _live(browser, console.url, shell, topic)
        _search_on(browser, console.url, shell)
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
        ended = console.close(), registry.close()
        assert ended == (0, 0)


def test_charts_have_the_value_under_the_pointer_and_one_range(fleet: Fleet, browser: Browser) -> None:
    console = Served(fleet.bootstrap)
    driver = browser.driver
    try:
        driver.get(f"{console.url}?range=15m")
        eventually(lambda: driver.find_elements(By.CSS_SELECTOR, "#charts rect.at"), "the page draws by itself", 120)
        connections = "#charts .plots > figure:last-child"

        def pointed() -> str:
            """What stands below the chart of connections while the pointer is on its last point."""
            try:
                points = driver.find_elements(By.CSS_SELECTOR, f"{connections} rect.at:last-of-type")
                ActionChains(driver).move_to_element(points[0]).perform()
                return driver.find_element(By.CSS_SELECTOR, f"{connections} output").text
            except WebDriverException:  # the charts were renewed in between
                return ""

        eventually(lambda: re.fullmatch(r"\d\d:\d\d:\d\d · \d+", pointed()), "time and number of connections")
        driver.find_element(By.CSS_SELECTOR, "#charts summary").click()
        table = driver.find_element(By.CSS_SELECTOR, "#charts details table")
        assert len(table.find_elements(By.TAG_NAME, "tr")) == 31
        browser.picture("fleet-with-figures-desk")
        driver.find_element(By.LINK_TEXT, "6 h").click()
        eventually(lambda: driver.current_url.endswith("?range=6h"), "the range is in the address")
        assert driver.find_element(By.CSS_SELECTOR, ".ranges [aria-current]").text == "6 h"
        browser.resize(PHONE)
        browser.dark(True)
        assert browser.width() <= PHONE[0]
        browser.picture("fleet-with-figures-phone")
        assert browser.complaints() == []
    finally:
        assert console.close() == 0


def _every_page(browser: Browser, url: str, topic: str) -> None:
    words = {
        "/partitions": "followers in sync", "/": "Brokers", "/topics": topic, "/topics/{name}": "retention.ms",
        "/topics/{name}/messages": '"order": 39', "/groups": "billing", "/group": "Lag in records",
        "/transactions": "No transaction is open", "/security": "producer_byte_rate",
        "/controller": "Timeline of elections", "/connections": "kafka-python", "/find": "orders-",
        "/brokers/{name}": "Connections by software", "/doctor": "all brokers share one failure domain",
        "/topics/{name}/analysis": "records of a batch", "/topics/{name}/setting": "Default",
        "/brokers/{name}/setting": "May be", "/topics/{name}/record": "keep the record's time",
        "/schemas": SUBJECT, "/schema": SUBJECT, "/topics/{name}/clients": "billing",
    }  # fmt: skip
    pages = {address: words.get(route, "") for route, address in addresses(topic, "billing", SUBJECT).items()}
    pages["topics/no-such"] = "there is no such topic"
    for path, shown in pages.items():
        name = path.replace("/", "-").replace("?", "-").replace(topic, "topic") or "fleet"
        for size, dark in ((DESK, False), (PHONE, True)):
            browser.resize(size)
            browser.dark(dark)
            browser.driver.get(url + path)
            eventually(lambda: shown in browser.text(), f"{shown!r} at {path}")  # noqa: B023
            alerts = [one.text for one in browser.driver.find_elements(By.CSS_SELECTOR, "[role=alert]")]
            assert bool(alerts) == path.endswith("no-such"), f"{path}: {alerts}"
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
    browser.driver.find_element(By.TAG_NAME, "body").send_keys("f")
    assert browser.driver.switch_to.active_element.get_attribute("name") == "name"
    browser.driver.switch_to.active_element.send_keys("order")
    eventually(lambda: "name=order" in browser.driver.current_url, "the list follows what is typed")
    browser.driver.find_element(By.TAG_NAME, "body").send_keys("/")
    browser.driver.switch_to.active_element.send_keys("bill")
    results = "dialog [role=option][aria-selected]"
    one = [By.CSS_SELECTOR, f"{results}[href='/group?name=billing'][aria-selected=true]"]
    eventually(lambda: browser.driver.find_elements(*one), "the palette finds a group")
    browser.picture("palette")
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    eventually(lambda: browser.driver.title.startswith("billing"), "the group's page")
    browser.driver.find_element(By.TAG_NAME, "body").send_keys("?")
    assert "find a topic, group, broker or page" in browser.driver.find_element(By.TAG_NAME, "dialog").text
    browser.picture("keys")
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.driver.find_element(By.CSS_SELECTOR, ".crumbs a").click()
    eventually(lambda: browser.driver.title.startswith("Groups"), "what is above the group")
    browser.driver.get(f"{url}topics")
    browser.driver.find_element(By.XPATH, "//summary[text()='Create a topic']").send_keys(Keys.ENTER)
    browser.driver.find_element(By.NAME, "topic").send_keys("by-hand", Keys.ENTER)
    eventually(lambda: "fleetlog topics create" in browser.text(), "the question")
    browser.picture("confirm")
    assert not browser.driver.find_elements(By.CSS_SELECTOR, "button.danger"), "red is for what destroys"
    browser.driver.find_element(By.CSS_SELECTOR, "form.line button.main").send_keys(Keys.ENTER)
    eventually(lambda: browser.driver.title.startswith("by-hand"), "the topic's page")
    assert "by-hand" in {row["topic"] for row in shell.json("topics", "list")}


def _live(browser: Browser, url: str, shell: Shell, topic: str) -> None:
    """What comes is added to what is there."""
    browser.driver.get(f"{url}topics/{topic}/messages?count=5")
    assert browser.text().count('"order"') == 5
    browser.driver.find_element(By.CSS_SELECTOR, "[data-tail] button").click()
    eventually(lambda: "0 followed" in browser.text(), "following")
    shell.run("produce", topic, stdin="<i>came later</i>\n")
    eventually(lambda: "<i>came later</i>" in browser.text(), "the new record")
    assert browser.text().count('"order"') == 5
    browser.picture("live")
    browser.driver.get(f"{url}topics/by-hand/messages")
    assert "No records here." in browser.text()
    browser.driver.find_element(By.CSS_SELECTOR, "[data-tail] button").click()
    eventually(lambda: "0 followed" in browser.text(), "following")
    key = "a-key-of-one-word"
    shell.run("produce", "by-hand", "--key-separator", ":", stdin=f"{key}:the first {'long ' * 60}\n")
    eventually(lambda: "the first" in browser.text(), "the new record")
    assert "No records here." not in browser.text()
    cell = browser.driver.find_element(By.XPATH, f"//td[@data-label='Key']/pre[text()='{key}']")
    assert cell.size["height"] < 30, "a key of one word stands on one line"
    _fast(browser, shell)
    reason = "the registry has no schema 77"
    assert reason not in browser.text()
    producer = Producer({"bootstrap.servers": shell.environment["FLEETLOG_BOOTSTRAP"]})
    producer.produce("by-hand", b"\0\0\0\0\x4d\xff\xfe")
    assert producer.flush(30) == 0
    eventually(lambda: reason in browser.text(), "why the bytes of a schema are hexadecimal")


def _fast(browser: Browser, shell: Shell) -> None:
    """Of 400 records that come between two looks 50 are shown and the others counted, 200 or all 500 if one says so."""

    def followed() -> tuple[int, int]:
        found = re.search(r"(\d+) followed(?:, about (\d+) left out: they came faster)?", browser.text())
        return (int(found[1]), int(found[2] or 0)) if found is not None else (-1, -1)

    def write(count: int) -> None:
        shell.run("produce", "by-hand", stdin="".join(f"{n}\n" for n in range(count)))

    assert followed() == (1, 0)
    write(400)
    shown, left = eventually(followed, "all are shown or counted", good=lambda found: sum(found) == 401)
    assert left > 0
    assert shown >= 51
    Select(browser.driver.find_element(By.CSS_SELECTOR, "[data-tail] select")).select_by_visible_text("500")
    write(1)
    eventually(followed, "what the next look shows", good=lambda found: sum(found) == 402)
    write(300)
    assert eventually(followed, "all of these", good=lambda found: sum(found) == 702) == (shown + 301, left)
    browser.picture("fast")


def _search_on(browser: Browser, url: str, shell: Shell) -> None:
    """What one page's budget does not reach is found by the next ones; a page that searches can be stopped."""
    shell.run("topics", "create", "many", "-p", "2", "-r", "3")
    producer = Producer({"bootstrap.servers": shell.environment["FLEETLOG_BOOTSTRAP"], "linger.ms": 50})
    for number in range(25_000):
        producer.produce("many", f'{{"number": {number}}}', partition=number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0
    page = browser.driver
    page.get(f"{url}topics/many/messages")
    page.find_element(By.NAME, "filter").send_keys("value.number == 12 || value.number == 24998", Keys.ENTER)
    eventually(lambda: "budget is used up" in browser.text(), "the first page")
    assert re.search(r"/messages\?filter=[^&]*&count=50$", page.current_url), (
        f"only what was filled in: {page.current_url}"
    )
    assert browser.text().count('"number"') == 1
    browser.picture("filter-first-page")
    button = page.find_element(By.CSS_SELECTOR, "[data-search-on] button")
    button.click()
    eventually(lambda: "that is all" in browser.text(), "the whole topic was searched")
    assert browser.text().count('"number"') == 2
    assert "searched, 2 found, about 0 offsets left: that is all" in browser.text()
    assert not button.is_enabled()
    browser.picture("filter-searched-on")
    page.get(f"{url}topics/many/messages?at=1:100&count=3")
    page.find_element(By.CSS_SELECTOR, "details.json summary").click()
    name = page.find_element(By.CSS_SELECTOR, "[data-path='value.number']")
    name.send_keys(Keys.ENTER)
    assert page.switch_to.active_element.text == "Copy the value"
    browser.picture("menu-of-a-value")
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    eventually(lambda: "columns=value.number" in page.current_url, "a column by its name")
    assert [one.text for one in page.find_elements(By.CSS_SELECTOR, "td[data-label='value.number']")] == [
        "201",
        "203",
        "205",
    ]
    page.find_element(By.CSS_SELECTOR, "details.json summary").click()
    page.find_element(By.CSS_SELECTOR, "[data-path='value.number']").click()
    page.find_element(By.CSS_SELECTOR, ".menu button:last-child").click()
    eventually(lambda: "filter=value.number" in page.current_url, "a filter by its value")
    assert browser.text().count('"number"') == 1
    page.get(f"{url}topics/many/messages?filter=value.number+<<+3")
    assert "filter: character 15" in page.find_element(By.CSS_SELECTOR, "[role=alert]").text
    browser.picture("filter-wrong")
    assert [one for one in browser.complaints() if "status of 400" not in one] == []


def test_without_javascript_pages_are_found_searched_and_changed(
    fleet: Fleet, served: Served, plain_browser: Browser
) -> None:
    """By links, forms and buttons alone. Only what follows or renews itself is missing.

    The driver still reads pages by scripts: the setting stops those of pages.
    """
    page, shell, name = plain_browser.driver, Shell(fleet), f"plain-{uuid.uuid4().hex[:6]}"
    page.get("data:text/html,<p>off</p><script>document.body.textContent='on'</script>")
    assert plain_browser.text().strip() == "off", "scripts of pages do not run here"

    def shown(words: str) -> None:
        eventually(lambda: words in plain_browser.text(), f"{words!r} at {page.current_url}")

    def leave(act: Callable[[], object]) -> None:
        """Press what leads to another page, which is there afterwards."""
        before = page.find_element(By.TAG_NAME, "html")
        act()
        eventually(lambda: _is_gone(before), f"another page than {page.current_url}")

    def press(words: str) -> None:
        (found,) = [one for one in page.find_elements(By.TAG_NAME, "button") if one.text == words]
        leave(found.click)

    page.get(served.url)
    links = [one.text for one in page.find_elements(By.CSS_SELECTOR, "header nav a")]
    headings = {
        "Fleet": "Disks", "Topics": "Topics", "Partitions": "followers in sync", "Groups": "Groups",
        "Transactions": "Transactions and sinks",
        "Connections": "Software", "Security": "Access control", "Controller": "Partitions led", "Doctor": "examined",
    }  # fmt: skip
    assert links == list(headings)
    for link, words in headings.items():
        leave(page.find_element(By.LINK_TEXT, link).click)
        shown(words)
        assert page.find_element(By.CSS_SELECTOR, "header nav a[aria-current]").text == link
    leave(page.find_element(By.LINK_TEXT, "Topics").click)
    page.find_element(By.XPATH, "//summary[text()='Create a topic']").click()
    page.find_element(By.NAME, "topic").send_keys(name)
    page.find_element(By.NAME, "partitions").send_keys("1")
    press("Show the command")
    shown(f"fleetlog topics create --bootstrap={fleet.bootstrap}")
    leave(page.find_element(By.CSS_SELECTOR, "form.line button.main").click)
    shown("retention.ms")
    shell.run("produce", name, stdin="".join(f"record {n}\n" for n in range(30)))
    shell.run("consume", name, "-g", f"group-{name}", "-n", "25")
    leave(page.find_element(By.LINK_TEXT, "Topics").click)
    leave(lambda: page.find_element(By.NAME, "name").send_keys(name, Keys.ENTER))
    leave(page.find_element(By.LINK_TEXT, name).click)
    leave(page.find_element(By.PARTIAL_LINK_TEXT, "Messages").click)
    shown("record 29")
    assert not page.find_element(By.ID, "tail").is_displayed(), "what needs JavaScript is not offered"
    count = page.find_element(By.NAME, "count")
    count.clear()
    count.send_keys("10")
    press("Show")
    shown("record 20")
    press("Older")
    shown("record 10")
    page.find_element(By.NAME, "filter").send_keys("value == 'record 7'")
    press("Show")
    shown("1 shown")
    leave(page.find_element(By.LINK_TEXT, "Groups").click)
    leave(page.find_element(By.LINK_TEXT, f"group-{name}").click)
    shown("Lag in seconds")
    page.find_element(By.XPATH, "//summary[text()='Move the offsets']").click()
    press("Show what would change")
    shown("fleetlog groups reset")
    leave(page.find_element(By.LINK_TEXT, "No, go back").click)
    shown("Members")
    assert plain_browser.complaints() == []


def test_from_the_first_page_to_the_record_that_a_group_is_stuck_at(
    fleet: Fleet, served: Served, browser: Browser
) -> None:
    """Which topic has a consumer that lags, since when, who is it, and at which record: four clicks."""
    shell, name = Shell(fleet), f"stuck-{uuid.uuid4().hex[:6]}"
    shell.run("topics", "create", name, "-p", "1")
    shell.run("produce", name, stdin="".join(f"record {n}\n" for n in range(10)))
    shell.run("consume", name, "-g", f"group-{name}", "-n", "4")
    visitor = Visitor(served)
    eventually(
        lambda: [row["behind"] for row in visitor.json("/topics?sort=-behind")["topics"] if row["topic"] == name],
        "its coordinator has computed the lag", good=lambda seconds: (seconds[0] or 0) > 0,
    )  # fmt: skip
    page, clicks = browser.driver, 0

    def click(by: str, words: str) -> None:
        nonlocal clicks
        before, clicks = page.find_element(By.TAG_NAME, "html"), clicks + 1
        page.find_element(by, words).click()
        eventually(lambda: _is_gone(before), f"another page than {page.current_url}")

    page.get(served.url)
    click(By.LINK_TEXT, "Topics")
    click(By.LINK_TEXT, "Behind, s")
    row = page.find_element(By.XPATH, f"//tr[td/a[text()='{name}']]")
    assert float(row.find_elements(By.TAG_NAME, "td")[6].text) > 0
    click(By.LINK_TEXT, name)
    who = (By.XPATH, f"//tr[td/a[text()='group-{name}']]")
    eventually(lambda: page.find_elements(*who), "who uses it")
    cells = [one.text for one in page.find_element(*who).find_elements(By.TAG_NAME, "td")]
    assert (cells[0], cells[2], cells[-1]) == (f"group-{name}", "6", "its next record, 0:4")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:.]+Z", cells[4]), "since when"
    browser.picture("stuck-topic")
    click(By.PARTIAL_LINK_TEXT, "its next record")
    assert clicks == 4
    first = page.find_element(By.CSS_SELECTOR, "#messages tbody tr")
    assert "record 4" in first.text
    browser.picture("stuck-record")
