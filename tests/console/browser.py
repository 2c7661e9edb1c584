"""Debian's Chromium, headless, as the console's pages are looked at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tests.support.needs import program

PHONE, DESK = (390, 844), (1280, 900)


class Browser:
    """One window, and what the page complained of. ``scripts`` are allowed, or switched off as in its settings."""

    def __init__(self, pictures: Path, *, scripts: bool = True) -> None:
        browser, driver = program("chromium"), program("chromedriver")
        assert browser is not None, "apt-get install chromium chromium-driver"
        assert driver is not None, "apt-get install chromium chromium-driver"
        options = Options()
        options.binary_location = browser
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(word)
        if not scripts:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
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

    def troubles(self, axe: str, *rules: str) -> list[str]:
        """What axe-core finds serious or critical on the page as it is now; by these rules, or all."""
        if not self.driver.execute_script("return typeof axe === 'object'"):
            self.driver.execute_script(axe)
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = list(rules)
        script = """
            const [options, done] = arguments, look = () => axe.run(document, options).then(done, (e) => done(`${e}`));
            requestAnimationFrame(() => requestAnimationFrame(look));  // once the page has seen its own size
        """
        result = self.driver.execute_async_script(script, options)
        assert "violations" in result, result
        return [
            f"{one['id']} ({one['impact']}): {node['html'][:200]} {node['failureSummary']}"
            for one in result["violations"]
            if one["impact"] in {"serious", "critical"}
            for node in one["nodes"][:5]
        ]

    def complaints(self) -> list[str]:
        """What the browser refused or scripts raised: a violation of the policy stands here, too."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] == "SEVERE"]


def pictures_in(directory: Path) -> Path:
    pictures = Path(os.environ.get("FLEETLOG_SCREENSHOTS", directory / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    return pictures
