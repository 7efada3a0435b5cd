"""The page of a run in a browser: what it shows and says."""

import shutil

import pytest
import report_test

_sync = pytest.importorskip(
  'playwright.sync_api', reason='install playwright: pip install -e .[test-all]'
)
_CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    _CHROMIUM is None, reason="install Debian's chromium: apt install chromium"
  ),
]


def test_a_page_fits_a_phone_sorts_and_asks_for_nothing(tmp_path):
  path = report_test.make_workdir(tmp_path)
  url = report_test.report_of(path).as_uri()
  wrong = []
  with _sync.sync_playwright() as play:
    browser = play.chromium.launch(executable_path=_CHROMIUM)
    page = browser.new_page(viewport={'width': 390, 'height': 800})
    page.set_default_timeout(10_000)
    page.on('pageerror', lambda error: wrong.append(str(error)))
    page.on('console', lambda said: wrong.append(said.text))
    page.on('request', lambda asked: wrong.append(asked.url))
    page.goto(url)
    assert page.locator('figure img').evaluate('x => x.naturalWidth') > 0
    inside = 'document.documentElement.scrollWidth <= innerWidth'
    assert page.evaluate(inside)
    page.locator('details summary').first.click()
    page.locator('table.summary button').last.click()
    assert page.locator('[aria-sort=ascending]').count() == 1
    browser.close()
  # The page itself, and its figure, are all that is asked for.
  assert [x for x in wrong if not x.startswith('data:image/')] == [url]
