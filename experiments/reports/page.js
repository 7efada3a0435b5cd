for (const table of document.querySelectorAll('.summary')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, i) => head.querySelector('button').onclick = () => {
    const up = head.getAttribute('aria-sort') !== 'ascending';
    heads.forEach(h => h.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const key = row => row.cells[i].dataset.key.replace('inf', 'Infinity');
    const order = (a, b) => {
      const x = Number(key(a)), y = Number(key(b));
      if (isNaN(x) && isNaN(y))
        return (up ? 1 : -1) * key(a).localeCompare(key(b));
      // What is unknown is last in both directions.
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
      return x === y ? 0 : (up ? 1 : -1) * (x < y ? -1 : 1);
    };
    body.append(...[...body.rows].sort(order));
  });
}
