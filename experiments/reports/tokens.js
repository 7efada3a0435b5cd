const tip = document.createElement('div');
tip.className = 'tip';
tip.id = 'tip';
tip.setAttribute('role', 'tooltip');
tip.hidden = true;
document.body.append(tip);
const line = (tag, text) => {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
};
function showTip(token) {
  const [head, ...rest] = token.dataset.note.split('\n');
  const probs = document.createElement('div');
  if (token.dataset.probs) {
    // Probabilities as bars, with the names of their distributions.
    const texts = rest.shift().split(' · ').map(text => text.split(' '));
    const names = {q: 'drafter q', p: 'verifier p', π: 'target π'};
    token.dataset.probs.split(' ').forEach((value, i) => {
      const bar = document.createElement('i');
      bar.style.setProperty('--p', 100 * value + '%');
      probs.append(
        line('span', names[texts[i][0]]), bar, line('span', texts[i][1]));
    });
    probs.className = 'probs';
  }
  tip.replaceChildren(line('b', head), probs,
    ...rest.map(text => line('p', text)), line('small', token.dataset.position));
  tip.hidden = false;
  const at = token.getClientRects()[0], size = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth - size.width - 8;
  const below = at.bottom + 6 + size.height < innerHeight;
  const top = below || at.top < size.height + 8
    ? at.bottom + 6 : at.top - size.height - 6;
  tip.style.left = scrollX + Math.max(8, Math.min(at.left, room)) + 'px';
  tip.style.top = scrollY + top + 'px';
}
const hideTip = () => { tip.hidden = true; };
document.addEventListener('keydown', e => { if (e.key === 'Escape') hideTip(); });

// A cursor moves along an answer; tab reaches one token of it.
for (const answer of document.querySelectorAll('.tokens')) {
  const blocks = [...answer.querySelectorAll('.block')];
  const tokens = [...answer.querySelectorAll('.t')];
  const alone = answer.classList.contains('no-blocks');
  answer.setAttribute('role', 'listbox');
  answer.setAttribute('aria-orientation', 'horizontal');
  answer.setAttribute('aria-label',
    `Answer by ${answer.dataset.name}; arrow keys move from token to token`
    + (alone ? '' : ', up and down from block to block'));
  blocks.forEach((block, b) => {
    block.setAttribute('role', 'group');
    block.setAttribute('aria-label', `Block ${b + 1} of ${blocks.length}`);
    [...block.children].forEach((token, i, all) => {
      token.dataset.position = alone ? `token ${b + 1} of ${blocks.length}`
        : `${i + 1} of ${all.length} in block ${b + 1} of ${blocks.length}`;
    });
  });
  let current = tokens[0];
  tokens.forEach((token, i) => {
    token.dataset.note = token.title;
    token.removeAttribute('title');
    token.setAttribute('role', 'option');
    token.setAttribute('aria-selected', false);
    token.setAttribute('aria-describedby', 'tip');
    token.tabIndex = i ? -1 : 0;
    token.onfocus = () => {
      current.tabIndex = -1;
      current.setAttribute('aria-selected', false);
      current = token;
      token.tabIndex = 0;
      token.setAttribute('aria-selected', true);
      showTip(token);
    };
    token.onblur = hideTip;
    token.onmouseenter = () => showTip(token);
    token.onmouseleave = () => {
      const focused = document.activeElement;
      if (focused.dataset.note) showTip(focused); else hideTip();
    };
  });
  answer.onkeydown = e => {
    const i = tokens.indexOf(current), b = blocks.indexOf(current.parentNode);
    const block = step => (blocks[b + step] || blocks[b]).firstElementChild;
    const to = {
      ArrowRight: () => tokens[i + 1], ArrowLeft: () => tokens[i - 1],
      ArrowDown: () => block(1), ArrowUp: () => block(-1),
      Home: () => tokens[0], End: () => tokens.at(-1),
    }[e.key];
    if (!to || e.ctrlKey || e.altKey || e.metaKey) return;
    e.preventDefault();
    (to() || current).focus();
  };
}
