// The report's sections, from its data.

const data = JSON.parse(byId("data").textContent);
const isRegression = data.task === "regression";
const unit = [0, 1];

function showSummary() {
  const line = data.metrics.lines.find(([name]) => name === (isRegression ? "mean absolute error" : "accuracy"));
  const [ours, linear, constant] = line[2].map((value) => isRegression ? short(value) : (100 * value).toFixed(1) + "%");
  let text = isRegression ? `Predictions are off by ${ours} on average` : `The model is right in ${ours} of ${thousands(data.n_rows)} rows`;
  if (linear) {
    text += isRegression ? `; those of a linear regression by ${linear}, and the mean of the target by ${constant}.`
      : `; a logistic regression in ${linear}, and the most frequent class in ${constant}.`;
  } else text += ".";
  byId("summary").textContent = text;
  byId("facts").textContent = `${data.task} of “${data.target}” · evaluated on ${thousands(data.n_rows)} rows · softwood ${data.softwood}`;
  for (const section of document.querySelectorAll("main section")) {
    add(document.querySelector("nav"), "a", {href: `#${section.id}`}, section.querySelector("h2").textContent);
  }
}

function showMetrics() {
  const table = byId("metrics"), head = add(add(table, "thead"), "tr");
  add(head, "th", {scope: "col"}, "metric");
  for (const learner of data.metrics.learners) add(head, "th", {scope: "col", class: "number"}, learner);
  const body = add(table, "tbody");
  for (const [name, isHigher, values] of data.metrics.lines) {
    const line = add(body, "tr"), best = isHigher ? Math.max(...values) : Math.min(...values);
    const label = add(line, "th", {scope: "row"}, name);
    add(label, "span", {class: "soft", title: isHigher ? "higher is better" : "lower is better"}, isHigher ? "\u00a0↑" : "\u00a0↓");
    for (const value of values) add(line, "td", {class: value === best ? "number best" : "number"}, isRegression ? short(value) : value.toFixed(4));
  }
  if (data.metrics.learners.length > 1) {
    const how = data.is_cross_validated ? "fitted to these rows by cross-validation in five parts" : "fitted to the rows that the model was trained on";
    add(byId("quality"), "p", {class: "soft"}, `↑ higher is better, ↓ lower is better; the best of a line is bold. The other two are baselines, ${how}: a linear model, and ${isRegression ? "the mean of the target" : "the shares of the classes"} as a constant answer.`);
  }
}

// Of two classes, the one that a row may be called; and its counts above a threshold t, in thousandths.
const called = () => Number(byId("called").value);

function countsAt(t) {
  const {own, others, n_own: nOwn, n_others: nOthers} = data.thresholds[called()];
  return {tp: own[t], fp: others[t], fn: nOwn - own[t], tn: nOthers - others[t]};
}

const ratio = (part, whole) => whole > 0 ? part / whole : NaN;

function scoresOf({tp, fp, tn, fn}) {
  const recall = ratio(tp, tp + fn), specificity = ratio(tn, tn + fp);
  return {accuracy: ratio(tp + tn, tp + fp + tn + fn), precision: ratio(tp, tp + fp), recall, specificity, F1: ratio(2 * tp, 2 * tp + fp + fn), "balanced accuracy": (recall + specificity) / 2};
}

function bestThreshold(name) {
  const values = Array.from({length: 1001}, (_, t) => scoresOf(countsAt(t))[name]).map((value) => Number.isNaN(value) ? -1 : value);
  const most = Math.max(...values), equal = values.flatMap((value, t) => value === most ? [t] : []);
  return equal.reduce((a, b) => Math.abs(b - 500) < Math.abs(a - 500) ? b : a);  // of equals, the nearest to one half
}

function showThreshold() {
  const section = byId("confusion"), labels = data.thresholds.map((one) => one.label);
  const controls = add(section, "div", {class: "controls"});
  const choice = add(add(controls, "label", {}, "Call a row"), "select", {id: "called"});
  labels.forEach((label, c) => add(choice, "option", {value: c}, clipped(label, 30)));
  choice.value = 1;
  const label = add(controls, "label", {for: "threshold"}, "if its probability is above");
  add(label, "output", {id: "threshold-value", for: "threshold"});
  const slider = add(controls, "input", {id: "threshold", type: "range", min: 0, max: 1000, step: 1, value: 500});
  const presets = add(section, "div", {class: "controls"});
  const choices = {"one half": () => 500, "best F1": () => bestThreshold("F1"), "best balanced accuracy": () => bestThreshold("balanced accuracy")};
  for (const [name, find] of Object.entries(choices)) {
    add(presets, "button", {type: "button"}, name).addEventListener("click", () => { slider.value = find(); showCounts(); });
  }
  drawMatrix(section, labels, data.confusion.counts, false);
  add(section, "p", {id: "threshold-scores", "aria-live": "polite"});
  add(section, "p", {class: "soft"}, "A threshold chosen on these rows looks better on them than on new rows.");
  slider.addEventListener("input", showCounts);
  choice.addEventListener("change", () => { showCurve(); showCounts(); });
}

function showCounts() {
  const t = Number(byId("threshold").value), counts = countsAt(t), {tp, fp, tn, fn} = counts;
  byId("threshold-value").textContent = (t / 1000).toFixed(3);
  fillMatrix(called() === 1 ? [[tn, fp], [fn, tp]] : [[tp, fn], [fp, tn]]);
  const words = Object.entries(scoresOf(counts)).map(([name, value]) => `${name} ${Number.isNaN(value) ? "–" : value.toFixed(3)}`);
  byId("threshold-scores").textContent = words.join(" · ");
  byId("threshold").setAttribute("aria-valuetext", `${(t / 1000).toFixed(3)}: ${tp} of ${tp + fn} found, ${fp} false alarms`);
  const dot = byId("threshold-dot");
  if (!dot) return;
  dot.setAttribute("cx", rocPlace.px(ratio(fp, fp + tn)));
  dot.setAttribute("cy", rocPlace.py(ratio(tp, tp + fn)));
}

function drawMatrix(section, labels, counts, isSmall) {
  add(section, "p", {class: "soft"}, "Rows: the true class. Columns: the predicted class.");
  const table = add(add(section, "div", {class: "scroll"}), "table", {id: "matrix", class: isSmall ? "matrix small" : "matrix"});
  const head = add(add(table, "thead"), "tr");
  add(head, "td");
  for (const label of labels) add(head, "th", {scope: "col", title: label}, clipped(label, 14));
  const body = add(table, "tbody");
  counts.forEach((line, i) => {
    const row = add(body, "tr");
    add(row, "th", {scope: "row", title: labels[i]}, clipped(labels[i], 18));
    for (const _ of line) add(row, "td");
  });
  fillMatrix(counts);
}

// Counts, and shares of the line; right answers in green, wrong ones in red, the more the darker.
function fillMatrix(counts) {
  const isSmall = byId("matrix").classList.contains("small");
  const lines = byId("matrix").tBodies[0].rows;
  counts.forEach((line, i) => {
    const whole = line.reduce((a, b) => a + b, 0);
    line.forEach((count, j) => {
      const cell = lines[i].cells[j + 1], share = ratio(count, whole) || 0;
      cell.replaceChildren();
      add(cell, "b", {}, thousands(count));
      if (!isSmall) add(cell, "span", {class: "soft"}, percent(share));
      const colour = i === j ? "var(--split)" : "var(--second)";
      cell.style.background = count ? `color-mix(in srgb, ${colour} ${Math.round(12 + 40 * share)}%, transparent)` : "none";
    });
  });
}

let rocPlace = null;  // places of points in the ROC curve

function showCurve() {
  const section = byId("curve");
  section.replaceChildren();
  add(section, "h2", {}, isRegression ? "Predicted and true values" : "ROC curve");
  if (isRegression) {
    const range = rangeOf(data.points.flat(), 0.03);
    chart(section, [{points: data.points, colour: "var(--split)", dots: true}], {xLabel: "prediction", yLabel: "truth", xRange: range, yRange: range, diagonal: true});
    add(section, "p", {class: "soft"}, `${data.points.length < data.n_rows ? `${data.points.length} of the rows. ` : ""}On the dashed line, predictions are right.`);
    return;
  }
  const curves = data.thresholds ? data.roc.slice(called(), called() + 1) : data.roc;
  if (!curves.length) {
    add(section, "p", {}, "All rows are of one class: there is no curve.");
    return;
  }
  const shades = colours(curves.length);
  const series = curves.map(([label, points], i) => ({label: curves.length > 1 ? label : "", points, colour: shades[i]}));
  rocPlace = chart(section, series, {xLabel: "false positive rate", yLabel: "true positive rate", xRange: unit, yRange: unit, diagonal: true});
  if (!data.thresholds) return;
  add(rocPlace.svg, "circle", {id: "threshold-dot", r: 5, fill: "var(--focus)"});
  add(section, "p", {class: "soft"}, "The dot is the threshold chosen above.");
}

function showCalibration() {
  const section = byId("calibration"), points = data.calibration.map((bin) => bin.slice(0, 4));
  const range = isRegression ? rangeOf(points.flat(), 0.03) : unit;
  const labels = isRegression ? ["mean prediction", "mean of the target"]
    : data.thresholds ? [`predicted probability of “${clipped(data.thresholds[1].label, 16)}”`, "share in the rows"]
    : ["probability of the predicted class", "share that is right"];
  chart(section, [{points, colour: "var(--split)", dots: true, line: true}], {xLabel: labels[0], yLabel: labels[1], xRange: range, yRange: range, diagonal: true});
  const fewest = Math.min(...data.calibration.map((bin) => bin[4]));
  add(section, "p", {class: "soft"}, `Each dot is a group of at least ${thousands(fewest)} rows with similar predictions, with its interval of 95%. On the dashed line, predictions hold on average.`);
  numbersOf(section, ["rows", "predicted", "found", "from", "to"], data.calibration.map(([x, y, low, high, rows]) => [thousands(rows), short(x), short(y), short(low), short(high)]));
}

function showImportances() {
  bars(byId("importances"), data.importances.map(([name, share]) => [name, share, share.toFixed(3)]), "Importance of columns");
  byId("importances").classList.toggle("tall", data.importances.length > 9);
  const more = data.n_columns > data.importances.length ? ` The first ${data.importances.length} of ${data.n_columns} columns.` : "";
  add(byId("importances"), "p", {class: "soft"}, "Shares of 1: how far raw scores move if the splits on a column are decided by a coin." + more);
}

function showSize() {
  const {size} = data, table = byId("size-table");
  const twoDigits = (value) => value < 100 ? value.toPrecision(2) : thousands(value);
  const bytes = size.file_bytes < 1e6 ? `${(size.file_bytes / 1e3).toFixed(0)} kB` : `${(size.file_bytes / 1e6).toFixed(1)} MB`;
  const lines = [
    ["trees", `${thousands(size.members * size.trees)} of depth ${size.depth}, in ${size.members} ${size.members > 1 ? "members" : "member"}`],
    ["numbers stored", thousands(size.stored)],
    ...(size.read === null ? [] : [["numbers that a row needs", thousands(size.read)]]),
    ["file", bytes],
    ["one row", `${twoDigits(size.row_us)} µs`],
    ["many rows", `${twoDigits(size.bulk_us)} µs per row, ${thousands(1e6 / size.bulk_us)} rows per second`],
  ];
  for (const [name, value] of lines) {
    const line = add(table, "tr");
    add(line, "th", {scope: "row"}, name);
    add(line, "td", {}, value);
  }
  add(byId("size"), "p", {class: "soft"}, "CPU times of one thread, measured when this page was written, with Predictor.predict_row and Predictor.predict.");
}

function showEffects() {
  const {series, columns} = data.effects, place = byId("effects").querySelector(".columns"), shades = colours(series.length);
  const what = isRegression ? "mean prediction" : series.length > 1 ? "mean probability" : `mean probability of “${clipped(series[0], 16)}”`;
  if (columns.length) byId("effects-note").textContent = `${series.length > 1 ? "Lines and dots" : "Green"}: the mean prediction if every row had this value in the column, and its own values in all others. `
    + (series.length > 1 ? "" : "Red: the mean of the target in rows with similar values, with its interval of 95%; it differs where other columns move along. ") + "Grey: how many rows have such values.";
  columns.forEach((effect, i) => {
    const box = add(place, "div"), truth = effect.truth.map((group) => group.slice(0, 4));
    const yRange = rangeOf([...effect.predictions.flat(), ...truth.flatMap((group) => effect.kind === "level" ? group[1] : group.slice(1))], 0.06);
    if (!isRegression) { yRange[0] = Math.max(0, yRange[0]); yRange[1] = Math.min(1, yRange[1]); }
    add(box, "h3", {}, effect.column);
    const isNamed = series.length > 1 && i === 0;  // one legend serves all
    const filled = series.map((label, k) => ({label: isNamed ? label : "", points: effect.values.map((x, g) => [x, effect.predictions[k][g]]), colour: shades[k]}));
    const found = {colour: "var(--second)", hollow: true, dots: true, points: truth};
    if (effect.kind === "level") levelChart(box, effect.labels, effect.rows, [...filled, found], {xLabel: what, xRange: yRange});
    else chart(box, [...filled, found], {xLabel: effect.column, yLabel: what, xRange: rangeOf(effect.edges), yRange, histogram: effect, xText: effect.kind === "date" ? day : null});
    if (effect.missing) add(box, "p", {class: "soft"}, `The cell is missing in ${thousands(effect.missing)} rows.`);
  });
}

function showWorst() {
  const {columns, rows} = data.worst, table = byId("worst-rows");
  byId("worst-note").textContent = isRegression ? "Sorted by the distance between prediction and truth. The columns on the right are those that matter most."
    : "Sorted by the probability of the true class, the smallest first. The columns on the right are those that matter most.";
  const head = add(add(table, "thead"), "tr");
  for (const name of ["row", "truth", "prediction", isRegression ? "off by" : "probability of truth", ...columns, "look"]) add(head, "th", {scope: "col", title: name}, clipped(name, 20));
  const body = add(table, "tbody");
  for (const row of rows) {
    const line = add(body, "tr"), error = isRegression ? short(row.error) : percent(1 - row.error);
    add(line, "th", {scope: "row"}, row.row);
    for (const cell of [row.truth, row.prediction, error, ...row.cells]) add(line, "td", {title: cell}, clipped(String(cell), 24));
    const button = add(add(line, "td"), "button", {type: "button", "aria-label": `Show row ${row.row} in the trees`}, "in the trees");
    button.addEventListener("click", () => exploreRow(row.row));
  }
}

function showHistory() {
  const history = data.history, place = byId("history").querySelector(".columns");
  const points = (name) => history.epoch.map((epoch, i) => [epoch, history[name][i]]).filter((p) => p[1] !== null);
  const draw = (series, yLabel, least, greatest) => {
    const values = series.flatMap((one) => one.points.map((p) => p[1]));
    const yRange = [Math.min(least, ...values), Math.max(greatest, ...values)];
    chart(add(place, "div"), series, {xLabel: "epoch", yLabel, yRange, whole: true});
  };
  const losses = [{label: "training loss", points: points("train_loss"), colour: "var(--split)"}];
  if (points("validation_loss").length) losses.push({label: "validation loss", points: points("validation_loss"), colour: "var(--second)"});
  draw(losses, "loss", 0, 0);
  const metric = points("validation_metric"), label = `validation ${history.metric[0]}`;
  if (metric.length) draw([{label, points: metric, colour: "var(--second)"}], label, 0, 1);
  const leaves = points("mean_reachable_leaves");
  draw([{label: "mean reachable leaves per tree", points: leaves, colour: "var(--soft)"}], "leaves", 0, 1);
}

showMetrics();
if (data.thresholds) showThreshold();
else if (data.confusion) drawMatrix(byId("confusion"), data.confusion.labels, data.confusion.counts, true);
else byId("confusion").replaceWith(byId("size"));  // a regression has no classes to confuse
showCurve();
if (data.thresholds) showCounts();
showCalibration();
showImportances();
showSize();
showEffects();
showWorst();
showHistory();
showSummary();

