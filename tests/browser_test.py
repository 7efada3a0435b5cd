"""The page of a run in a browser: what it shows, says and plays."""

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
_WIDTHS = (1280, 390)
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


@pytest.fixture(scope='module')
def browser():
  with _sync.sync_playwright() as play:
    browser = play.chromium.launch(executable_path=_CHROMIUM)
    yield browser
    browser.close()


@pytest.fixture
def visit(browser, url):
  """Opens the page; whatever it complains of fails the test."""
  contexts, wrong = [], []

  def visit(width=1280, **options):
    size = {'width': width, 'height': 800}
    contexts.append(browser.new_context(viewport=size, **options))
    page = contexts[-1].new_page()
    page.set_default_timeout(10_000)
    page.on('pageerror', lambda error: wrong.append(str(error)))
    page.on('console', lambda said: wrong.append(said.text))
    page.on('request', lambda asked: wrong.append(asked.url))
    page.goto(url)
    # The page itself is all that is asked for.
    assert wrong.pop(0) == url
    return page

  yield visit
  for context in contexts:
    context.close()
  assert not wrong


def _examples(page):
  examples = page.locator('.example')
  assert examples.count() == 5
  return examples


def _tokens(page, example=-1, lane=0):
  return _examples(page).nth(example).locator('.tokens').nth(lane).locator('.t')


def _tip(page):
  return page.get_by_role('tooltip')


@pytest.mark.parametrize('width', _WIDTHS)
def test_figures_tables_and_answers_are_there_and_fit(visit, width):
  page = visit(width)
  figures = page.locator('section:not(.analysis) figure svg[role=img]')
  assert figures.count() == 4 * 2 + 1
  rows = page.locator('section:not(.analysis) table.summary tbody tr')
  assert rows.count() == 5 + 4
  for part in (figures.first, rows.first, _tokens(page).first):
    part.scroll_into_view_if_needed()
    box = part.bounding_box()
    assert box['height'] > 5
    assert box['x'] < width
  inside = 'document.documentElement.scrollWidth <= innerWidth'
  assert page.evaluate(inside)
  # Two answers beside each other where there is room, else one below the other.
  first, second = (
    _examples(page).first.locator('.lane').nth(i).bounding_box()
    for i in range(2)
  )
  assert (first['y'] == second['y']) == (width > 800)
  # A table goes on sorting.
  page.locator('table.summary button').first.click()
  assert page.locator('[aria-sort=ascending]').count() == 1


@pytest.mark.parametrize('width', _WIDTHS)
def test_a_token_says_what_was_said_of_it(visit, width):
  page = visit(width)
  draft, residual, bonus = _tokens(page).all()
  assert _tip(page).count() == 0
  draft.hover()
  said = _tip(page).inner_text()
  assert said.splitlines()[0] == 'accepted draft, token 5'
  words = said.split()
  for who, value in (('q', '0.750'), ('p', '0.250'), ('π', '0.500')):
    assert words[words.index(who) + 1] == value
  assert 'the rule keeps this token' in said
  assert 'likeliest: drafter “<a>↵”, verifier “<b>”' in said
  assert '1 of 2 in block 1 of 2' in said
  assert not draft.get_attribute('title')
  widths = [bar.bounding_box() for bar in _tip(page).locator('.probs i').all()]
  assert len(widths) == 3
  residual.focus()
  said = _tip(page).inner_text()
  assert f'1e{report_test.MINUS}6' in said
  assert 'the rule deferred the draft rejected here' in said
  box = _tip(page).bounding_box()
  assert box['x'] >= 0
  assert box['x'] + box['width'] <= width
  bonus.hover()
  assert 'the rule defers this token' in _tip(page).inner_text()
  # Where the pointer has left, the cursor's token is told again.
  page.mouse.move(1, 1)
  assert 'residual, token' in _tip(page).inner_text()
  page.keyboard.press('Escape')
  assert not _tip(page).count()


def test_what_nobody_looked_at_says_where_it_came_from(visit):
  page = visit()
  _tokens(page, 1).first.hover()
  assert _tip(page).inner_text().split('\n')[0] == 'accepted draft, token 5'
  assert not _tip(page).locator('.probs').count()
  _tokens(page, 1, 1).nth(1).hover()
  said = _tip(page).inner_text()
  assert 'verifier alone, token 6' in said
  assert 'token 2 of 3' in said


@pytest.mark.parametrize('width', _WIDTHS)
def test_keys_reach_everything(visit, width):
  page = visit(width)
  focused = 'document.activeElement.textContent'
  _examples(page).last.locator('.play').focus()
  for name in ('Restart', ''):
    page.keyboard.press('Tab')
    assert page.evaluate(focused) == name
  page.keyboard.press('ArrowRight')
  tokens = _tokens(page)
  texts = tokens.all_text_contents()
  page.keyboard.press('Tab')
  for key, place in (
    (None, 0),
    ('ArrowRight', 1),
    ('ArrowRight', 2),
    ('ArrowRight', 2),
    ('ArrowUp', 0),
    ('ArrowDown', 2),
    ('Home', 0),
    ('End', 2),
    ('ArrowLeft', 1),
  ):
    if key:
      page.keyboard.press(key)
    assert page.evaluate(focused) == texts[place]
    selected = [t.get_attribute('aria-selected') for t in tokens.all()]
    assert selected.index('true') == place
    assert selected.count('true') == 1
    assert _tip(page).is_visible()
  # One stop for each answer, which is left where the cursor stood.
  page.keyboard.press('Tab')
  assert page.evaluate(focused) == _tokens(page, -1, 1).all_text_contents()[0]
  page.keyboard.press('Shift+Tab')
  assert page.evaluate(focused) == texts[1]
  answer = _examples(page).last.get_by_role('listbox').first
  assert 'TokenV3' in answer.get_attribute('aria-label')
  assert answer.get_by_role('group').count() == 2
  assert answer.get_by_role('option').count() == 3


def _faster(example, steps=6):
  speed = example.get_by_role('slider')
  before = speed.get_attribute('aria-valuetext')
  for _ in range(steps):
    speed.press('ArrowRight')
  assert speed.get_attribute('aria-valuetext') != before
  assert 'modelled per second' in example.locator('output').inner_text()


def _milliseconds(clock):
  return float(clock.inner_text().removesuffix(' ms'))


@pytest.mark.parametrize('width', _WIDTHS)
def test_both_clocks_tick_until_the_answers_are_there(visit, width):
  page = visit(width)
  # Two blocks of 15 ms, beside three calls of the verifier.
  example = _examples(page).nth(1)
  button = example.locator('.play')
  clocks = example.get_by_role('timer').all()
  whole = [_milliseconds(clock) for clock in clocks]
  assert whole == [30.0, 30.0]
  _faster(example, 2)
  button.press('Enter')
  assert button.inner_text() == 'Pause'
  assert example.locator('.later').count()
  page.wait_for_function(
    "e => parseFloat(e.querySelector('.clock b').textContent) > 3",
    arg=example.element_handle(),
  )
  button.click()
  assert button.inner_text() == 'Resume'
  stands = [_milliseconds(clock) for clock in clocks]
  assert 3 < stands[0] < 30
  # A draft stands there before the verifier has read it.
  assert example.locator('.proposed').count()
  page.wait_for_timeout(100)
  assert [_milliseconds(clock) for clock in clocks] == stands
  assert all(head.is_visible() for head in example.locator('.track i').all())
  _faster(example)
  button.click()
  example.get_by_text('Finished: ').wait_for(state='attached')
  assert [_milliseconds(clock) for clock in clocks] == whole
  assert example.locator('.later, .proposed').count() == 0
  assert button.inner_text() == 'Play'
  example.locator('.restart').click()
  assert button.inner_text() == 'Pause'
  assert example.locator('.later').count()


def test_who_wants_no_motion_gets_blocks(visit):
  page = visit(reduced_motion='reduce')
  example = _examples(page).first
  _faster(example)
  page.evaluate(
    """example => {
    window.seen = new Set();
    new MutationObserver(() => window.seen.add([
      example.querySelectorAll('.proposed').length,
      example.querySelector('.clock b').textContent].join())).observe(
        example, {subtree: true, childList: true, attributes: true});
  }""",
    example.element_handle(),
  )
  example.locator('.play').click()
  example.get_by_text('Finished: ').wait_for(state='attached')
  # Two blocks of 15 ms each, and the beginning.
  assert sorted(page.evaluate('[...seen]')) == ['0,0 ms', '0,15 ms', '0,30 ms']
  moving = page.evaluate(
    'e => getComputedStyle(e).transitionDuration',
    _tokens(page).first.element_handle(),
  )
  assert moving == '0s'


def test_without_a_script_titles_say_it(visit):
  page = visit(java_script_enabled=False)
  title = _tokens(page).first.get_attribute('title')
  assert title.splitlines() == [
    'accepted draft, token 5',
    'q 0.750 · p 0.250 · π 0.500',
    'the rule keeps this token',
    'likeliest: drafter “<a>↵”, verifier “<b>”',
  ]
  assert page.locator('.controls').first.is_hidden()
  assert page.locator('.track svg').first.is_visible()


_CONTRAST = """element => {
  const rgb = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => rgb(colour).slice(0, 3).map(c => c / 255).map(
    c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4).reduce(
      (sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  let behind = element;
  while (rgb(getComputedStyle(behind).backgroundColor)[3] === 0)
    behind = behind.parentElement;
  const both = [getComputedStyle(element).color,
    getComputedStyle(behind).backgroundColor].map(light).sort((a, b) => b - a);
  return (both[0] + .05) / (both[1] + .05);
}"""


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_everything_can_be_read(visit, scheme):
  page = visit(color_scheme=scheme)
  _tokens(page).first.hover()
  for selector in (
    *('.draft', '.residual', '.bonus', '.alone'),
    *('.tokens .t.residual', '.clock', '.clock b', '.controls button'),
    *('.controls output', '.tip b', '.tip p', '.tip small', '.guide'),
  ):
    for element in page.locator(selector).element_handles()[:3]:
      assert page.evaluate(_CONTRAST, element) >= 4.5, selector
  # Sources differ by more than their colours, which a user may replace.
  page.emulate_media(forced_colors='active')
  lines = [
    page.evaluate(
      'e => getComputedStyle(e).borderBottomStyle',
      page.locator(f'.tokens .{kind}').first.element_handle(),
    )
    for kind in ('draft', 'residual', 'bonus', 'alone')
  ]
  assert lines == ['none', 'solid', 'dotted', 'dashed']
