for (const table of document.querySelectorAll('table.summary')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, i) => head.querySelector('button').onclick = () => {
    const up = head.getAttribute('aria-sort') !== 'ascending';
    heads.forEach(h => h.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const key = row => row.cells[i].dataset.key;
    const order = (a, b) => {
      if (i === 0) return (up ? 1 : -1) * key(a).localeCompare(key(b));
      const x = Number(key(a)), y = Number(key(b));
      if (isNaN(x) && isNaN(y))
        return (up ? 1 : -1) * key(a).localeCompare(key(b));
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
      return x === y ? 0 : (up ? 1 : -1) * (x < y ? -1 : 1);
    };
    body.append(...[...body.rows].sort(order));
  });
}
for (const entry of document.querySelectorAll('.legend [data-key]')) {
  const plots = entry.closest('section').querySelectorAll('figure');
  const focus = on => plots.forEach(plot => {
    plot.classList.toggle('focus', on);
    plot.querySelectorAll('[data-method]').forEach(e => e.classList.toggle(
      'on', on && e.dataset.method === entry.dataset.key));
  });
  entry.onmouseenter = () => focus(true);
  entry.onmouseleave = () => focus(false);
}
