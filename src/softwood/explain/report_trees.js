// Trees to explore: the picture of one tree, for all rows or one of them.

function fillChoices() {
  data.trees.forEach((tree, i) => add(byId("tree"), "option", {value: i}, `member ${tree.member}, tree ${tree.tree}`));
  add(byId("row"), "option", {value: -1}, "all rows");
  data.rows.forEach((row, i) => add(byId("row"), "option", {value: i}, `row ${row.row}: ${row.prediction}, truth ${row.truth}`));
  data.outputs.forEach((output, i) => add(byId("output"), "option", {value: i}, output));
  if (data.outputs.length === 1) byId("output-label").hidden = true;
  for (const id of ["tree", "row", "output"]) byId(id).addEventListener("change", showTree);
}

function showTree() {
  const t = Number(byId("tree").value), r = Number(byId("row").value), k = Number(byId("output").value);
  const tree = data.trees[t], row = r < 0 ? null : data.rows[r];
  const reach = tree.nodes.map((_, i) => row ? (row.trees[t].reach[i] || 0) : tree.reach[i]);
  const used = reach.filter((share) => share > 0).length;
  byId("tree-summary").textContent = row
    ? `Row ${row.row} reaches ${used} of ${tree.nodes.length} nodes shown; this tree adds ${signed(row.trees[t].adds[k])} to a raw score of ${signed(row.scores[k])}.`
    : `Discs and branches: share of rows that arrives. ${tree.nodes.length - used} of ${tree.nodes.length} nodes shown are unused. Blue leaves raise the ${data.roc ? `raw score of “${data.outputs[k]}”` : data.outputs[k]}, brown ones lower it.`;
  const ends = 2 ** tree.depth, width = Math.max(760, 30 * ends), height = 95 * (tree.depth + 1) + 20;
  const svg = byId("tree-picture");
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.minWidth = `${Math.min(width, 760 + 18 * ends)}px`;  // words stay readable; the frame scrolls
  const place = (node) => [node.x * width, 40 + 95 * node.level];
  const largest = Math.max(...tree.nodes.filter((node) => node.end).map((node) => Math.abs(node.values[k]))) || 1;
  tree.nodes.forEach((node, i) => {
    if (node.end) return;
    for (const child of [2 * i + 1, 2 * i + 2]) {
      const [x1, y1] = place(node), [x2, y2] = place(tree.nodes[child]);
      add(svg, "line", {x1, y1, x2, y2, stroke: reach[child] > 0 ? "var(--soft)" : "var(--line)", "stroke-width": 0.7 + 7 * reach[child]});
    }
  });
  tree.nodes.forEach((node, i) => drawNode(svg, tree, i, reach[i], k, place(node), largest, width));
  showRow(row, k);
  // Begin where most goes: at the root for all rows, at its likeliest leaf for one.
  const ofLeaves = reach.map((share, i) => tree.nodes[i].end ? share : -1);
  const middle = row ? tree.nodes[ofLeaves.indexOf(Math.max(...ofLeaves))].x : 0.5;
  const frame = svg.parentElement;
  frame.scrollLeft = middle * frame.scrollWidth - frame.clientWidth / 2;
}

function drawNode(svg, tree, i, share, k, [x, y], largest, width) {
  const node = tree.nodes[i], value = node.values[k];
  const words = describe(node, i, share, k);
  const group = add(svg, "g", {class: "node", tabindex: 0, role: "button", "aria-label": words});
  const colour = node.end ? (value >= 0 ? "var(--up)" : "var(--down)") : "var(--split)";
  // An opaque disc below keeps edges from showing through pale leaves.
  add(group, "circle", {cx: x, cy: y, r: 5 + 13 * Math.sqrt(share), fill: "var(--card)"});
  add(group, "circle", {cx: x, cy: y, r: 5 + 13 * Math.sqrt(share), fill: share > 0 ? colour : "var(--line)",
    "fill-opacity": node.end && share > 0 ? 0.3 + 0.7 * Math.abs(value) / largest : 1});
  const room = width / 2 ** node.level, fits = Math.floor(room / 6.5);
  if (node.end && room > 26) add(group, "text", {x, y: y + 30, "text-anchor": "middle"}, leafText(value, room));
  if (!node.end && fits > 8 && node.columns.length) {
    const name = node.columns[0][0];
    add(group, "text", {x, y: y - 22, "text-anchor": "middle"}, name.length > fits ? name.slice(0, fits - 1) + "…" : name);
  }
  const show = () => {
    for (const other of svg.querySelectorAll(".chosen")) other.classList.remove("chosen");
    group.classList.add("chosen");
    byId("node-details").textContent = words;
  };
  for (const event of ["mouseenter", "focus", "click"]) group.addEventListener(event, show);
  group.addEventListener("keydown", (event) => {
    const next = {ArrowUp: Math.floor((i - 1) / 2), ArrowDown: 2 * i + 1, ArrowLeft: i - 1, ArrowRight: i + 1}[event.key];
    if (next === undefined) return;
    event.preventDefault();  // no scrolling besides
    if (next >= 0 && next < tree.nodes.length) svg.querySelectorAll(".node")[next].focus();
  });
}

function leafText(value, room) {
  if (Math.abs(value) < 0.0005) return "0";
  const text = (value > 0 ? "+" : "−") + Math.abs(value).toPrecision(room > 60 ? 3 : room > 44 ? 2 : 1);
  return room > 44 ? text : text.replace("0.", ".");
}

function describe(node, i, share, k) {
  const arrives = byId("row").value === "-1" ? `${percent(share)} of the rows arrive here.` : `The row arrives here with probability ${share.toFixed(3)}.`;
  if (node.end) {
    const what = node.leaves > 1 ? `Subtree of ${node.leaves} leaves, on average` : "Leaf";
    return `${what}: adds ${signed(node.values[k])} to the raw score. ${arrives}`;
  }
  const columns = node.columns.map(([name, weight]) => `${name} (${percent(weight)} of the weight)`).join(", ");
  return `Split ${i} looks at ${columns || "nothing"}. ${arrives} Below it, ${signed(node.values[k])} on average.`;
}

function showRow(row, k) {
  const place = byId("row-columns");
  place.replaceChildren();
  if (!row) return;
  add(place, "h2", {}, "What moves this row's raw score, in all trees");
  bars(place, row.columns.map(([name, value, moves]) => [`${name} = ${value}`, moves[k], signed(moves[k])]), "Contributions of columns");
}

// Choose a row and go to the picture; the table of errors calls it.
function exploreRow(number) {
  byId("row").value = data.rows.findIndex((row) => row.row === number);
  showTree();
  byId("trees").scrollIntoView();
  byId("row").focus({preventScroll: true});
}

fillChoices();
showTree();
