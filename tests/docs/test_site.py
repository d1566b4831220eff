"""The site: built without a warning, complete, and showing without the network."""

import re
import time

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import cosep
import cosep.errors
from cosep.cli.app import app
from cosep.cli.options import setting_flags
from tests.docs.blocks import ROOT
from tests.reporting.browser import Browser, Page, find_browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)  # strict: a broken link, a missing page or an unknown name ends it
    return folder


def text_of(site, page):
    return re.sub(r"<[^>]+>", "", (site / page / "index.html").read_text())


def test_no_page_fetches_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        found = re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"', page.read_text())
        assert not found, (page, found)


def test_no_page_is_wider_than_a_phone(site):
    path = find_browser()
    if path is None:
        pytest.skip("there is no Chromium here")
    browser = Browser(path)
    try:
        tab, wide = Page(browser, width=400), {}
        for page in sorted(site.rglob("index.html")):
            tab.do("Page.navigate", url=page.as_uri())
            end = time.monotonic() + 20
            while tab.run("document.readyState + ' ' + location.href") != f"complete {page.as_uri()}":
                assert time.monotonic() < end, page
                time.sleep(0.02)
            width = tab.run("document.documentElement.scrollWidth")
            if width > 400:
                wide[page.relative_to(site).as_posix()] = width
        assert not wide
    finally:
        browser.close()


def test_formulas_are_there_without_scripts(site):
    page = (site / "method" / "index.html").read_text()
    assert "<mfrac>" in page
    assert "arithmatex" not in page


def test_every_public_name_every_command_and_every_setting_has_its_place(site):
    api, commands, settings = (text_of(site, f"reference/{page}") for page in ("api", "commands", "settings"))
    names = (ROOT / "docs" / "reference" / "api.md").read_text()
    errors = {name for name, value in vars(cosep.errors).items() if isinstance(value, type)}  # by their module
    assert not [name for name in cosep.__all__ if f"::: cosep.{name}\n" not in names and name not in errors]
    assert cosep.prune.__doc__.splitlines()[0] in api
    assert not [c.name for c in app.registered_commands if f"cosep {c.name}" not in commands]
    assert not [flag for flags in setting_flags().values() for flag in flags if flag not in settings]
