"""The page of a run in a browser: what it shows and says."""

import shutil

import pytest
import report_test

from experiments import records, reports

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
_VIEW = records.View(
  point='all',
  lenience=0.25,
  # Of the last example that is shown.
  id='2',
  q=[0.75, 1e-6, 0.5],
  p=[0.25, 0.5, 1.0],
  pi=[0.5, 0.375, 1.0],
  deferred=[0, 0, 1],
  drafter_argmax=['<a>\n', ' c', '</s>'],
  verifier_argmax=['<b>', ' b', '</s>'],
  rejected=[None] * 3,
)


@pytest.fixture(scope='module')
def url(tmp_path_factory):
  """A page: of one task beside strict decoding, of another the verifier."""
  path = tmp_path_factory.mktemp('run')
  lines = report_test.make_records(methods=('verifier_only', 'token_v3'))
  lines += [report_test.make_record('sums', 'speed', 0.0, i) for i in range(8)]
  report_test.make_workdir(path, lines)
  records.write(path / 'views' / 'sums.jsonl', [_VIEW])
  return reports.write_report(path).as_uri()


def test_a_page_shows_answers_says_what_tokens_are_and_sorts(url):
  wrong = []
  with _sync.sync_playwright() as play:
    browser = play.chromium.launch(executable_path=_CHROMIUM)
    page = browser.new_page(viewport={'width': 390, 'height': 800})
    page.set_default_timeout(10_000)
    page.on('pageerror', lambda error: wrong.append(str(error)))
    page.on('console', lambda said: wrong.append(said.text))
    page.on('request', lambda asked: wrong.append(asked.url))
    page.goto(url)
    # The page itself is all that is asked for.
    assert wrong == [url]
    figures = page.locator('section:not(.analysis) figure svg[role=img]')
    assert figures.count() == 4 * 2 + 1
    inside = 'document.documentElement.scrollWidth <= innerWidth'
    assert page.evaluate(inside)
    page.locator('table.summary button').first.click()
    assert page.locator('[aria-sort=ascending]').count() == 1
    tokens = (
      page.locator('.example').last.locator('.tokens').first.locator('.t')
    )
    tip = page.get_by_role('tooltip')
    tokens.first.hover()
    said = tip.inner_text()
    assert said.splitlines()[0] == 'accepted draft, token 5'
    assert 'the rule keeps this token' in said
    assert '1 of 2 in block 1 of 2' in said
    assert tip.locator('.probs i').count() == 3
    tokens.first.focus()
    page.keyboard.press('ArrowRight')
    assert 'the rule deferred the draft rejected here' in tip.inner_text()
    page.keyboard.press('Escape')
    assert not tip.count()
    browser.close()
  assert wrong == [url]
