"use strict";
// Small SVG charts. Data reaches the document through textContent and numeric attributes only.

const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}

// What each figure is: the words that a pointer on its name or value shows.
const MEANINGS = {
  "reward": "what the attempt, or the mean attempt of the step, was paid",
  "resolved": "share of attempts whose change passes the tests",
  "advantage": "how much better the attempt did than those that it is compared with",
  "trained": "whether the policy learned from this attempt",
  "in baseline": "whether the attempt counts in the mean that others are compared with",
  "prompt": "tokens that the model read before its first reply",
  "sampled": "tokens that the model wrote",
  "sampled tokens": "tokens that the model wrote",
  "response": "tokens after the first prompt: what the model wrote and what commands printed",
  "calls": "requests of the agent to the model",
  "turns": "replies of the model, each with at most one command",
  "prefix breaks": "how often the agent changed what the model had read before, so that it was read anew",
  "boot": "seconds until the sandbox was there",
  "agent": "seconds that the agent worked",
  "waited": "seconds that the attempt waited for its turn",
  "grade": "seconds of the tests",
  "response tokens/s": "tokens of all responses of a step by the seconds of their generation",
  "no signal": "groups in which no attempt has an advantage, so that nothing is learned from them",
  "loss": "the policy's objective, with its added terms",
  "entropy": "how undecided the model is, in nats a token",
  "grad norm": "length of the gradient before clipping",
  "KL rollout": "how far the engine's probabilities are from the trainer's, in nats a token",
  "generate": "seconds of sampling",
  "train": "seconds of training",
  "step time": "seconds of the whole step",
  "before": "resolved attempts of all attempts, before the training",
  "after": "resolved attempts of all attempts, by the latest evaluation",
  "points": "the difference in percentage points",
  "solved": "resolved attempts of all attempts",
  "status": "how the attempt ended",
  "held-out resolved": "share of attempts at instances that were never trained on whose change passes the tests",
  "steps": "steps that are done, of those that the run shall have",
  "began": "when the run began",
  "seed": "of the order of instances, of sampling and of the trainer",
  "layout": "which part uses which GPU",
  "router": "what chooses the engine of a request",
  "at": "since the run began",
  "away for": "until the engine answered again",
  "work lost": "seconds of sampling that were done again",
  "attempts": "attempts that infrastructure did not break",
  "solved once": "instances that at least one attempt resolved",
};
const meaningOf = (label) => (Object.hasOwn(MEANINGS, label) ? MEANINGS[label] : null);

function facts(kind, pairs) {
  const rows = pairs.map(([label, value]) =>
    el("div", { title: meaningOf(label) }, el("dt", {}, label), el("dd", {}, value)));
  return el("dl", { class: kind }, rows);
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toFixed(size >= 1e7 ? 0 : 1) + "M";
  if (size >= 1e4) return (value / 1e3).toFixed(size >= 1e5 ? 0 : 1) + "k";
  if (size >= 100) return value.toFixed(0);
  if (size === 0) return "0";
  if (size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

const percent = (value) => (isNumber(value) ? (100 * value).toFixed(1) + " %" : "–");

function ticks(low, high, most = 5) {
  const raw = (high - low) / most;
  if (!(raw > 0)) return [low];
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * magnitude).find((size) => size >= raw * 0.999);
  const marks = [];
  for (let mark = Math.ceil(low / step - 1e-9) * step; mark <= high + step * 1e-6; mark += step) {
    marks.push(Math.abs(mark) < step * 1e-6 ? 0 : mark);
  }
  return marks;
}

function range(values, fromZero) {
  const known = values.filter(isNumber);
  if (!known.length) return [0, 1];
  let low = Math.min(...known), high = Math.max(...known);
  if (fromZero) { low = Math.min(0, low); high = Math.max(0, high); }
  if (low === high) { high += Math.abs(high) * 0.1 || 1; if (!fromZero) low -= Math.abs(low) * 0.1 || 1; }
  if (fromZero) return [low, high + (high - low) * 0.04];
  const margin = (high - low) * 0.08;
  return [low - margin, high + margin];
}

// `draw` takes its size from `node`, so it needs the page: once when the page is there, and whenever the size changes.
// Not by the observer alone: its first call waits for a frame, which a page that nobody looks at may never have.
const firstDraws = [];

function drawnToSize(node, draw) {
  firstDraws.push(draw);
  new ResizeObserver(draw).observe(node);
}

// What has more in it than it shows can be scrolled with keys.
const overflowing = new ResizeObserver((entries) => {
  for (const { target: node } of entries) {
    const more = node.scrollHeight > node.clientHeight || node.scrollWidth > node.clientWidth;
    if (more) node.tabIndex = 0; else node.removeAttribute("tabindex");
  }
});

function scrolling(node) {
  overflowing.observe(node);
  return node;
}

// spec: title, note, steps, series [{label, color, values, connect: over gaps, faint: without a legend}], stacked,
// points [{step, value, low, high}], domain, format, onzoom(first, last): steps that were dragged over
function chart(spec) {
  const body = el("div", { class: "plot" });
  const figure = el("figure", { class: "card chart" + (spec.wide ? " wide" : "") },
    el("figcaption", {}, el("h3", {}, spec.title), spec.note ? el("p", { class: "note" }, spec.note) : null),
    legend(spec), body);
  let drawn = 0;
  drawnToSize(body, () => {
    const width = body.clientWidth;
    if (width > 0 && width !== drawn) body.replaceChildren(plot(spec, width));
    drawn = width;
  });
  return figure;
}

function legend(spec) {
  const entries = spec.series.filter((one) => !one.faint).map((one) => [one.label, one.color, "line"]);
  if (spec.points && spec.points.length) entries.push([spec.pointsLabel, spec.pointsColor, "dot"]);
  if (entries.length < 2) return null;
  return el("ul", { class: "legend" }, entries.map(([label, color, kind]) => {
    const mark = el("i", { class: spec.stacked ? "box" : kind });
    mark.style.background = `var(${color})`;
    return el("li", {}, mark, label);
  }));
}

function plot(spec, width) {
  const height = spec.wide ? 260 : 210;
  const steps = spec.steps, points = (spec.points || []).filter((point) => isNumber(point.value));
  const allSteps = steps.concat(points.map((point) => point.step));
  const values = spec.stacked
    ? steps.map((_, index) => spec.series.reduce((sum, one) => sum + (one.values[index] || 0), 0))
    : spec.series.flatMap((one) => one.values).concat(points.flatMap((point) => [point.value, point.low, point.high]));
  const [low, high] = spec.domain || range(values, spec.stacked || spec.fromZero);
  const format = spec.format || short;
  const marks = ticks(low, high, 4);
  const left = 10 + 7 * Math.max(...marks.map((mark) => format(mark).length));
  const box = { left, right: width - 10, top: 8, bottom: height - 24 };
  const bar = (box.right - box.left) / Math.max(1, steps.length);
  const inset = spec.stacked ? bar / 2 : 4;
  const first = Math.min(...allSteps), last = Math.max(...allSteps);
  const x = (step) => last === first ? (box.left + box.right) / 2
    : box.left + inset + ((step - first) / (last - first)) * (box.right - box.left - 2 * inset);
  const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": spec.title });
  axes(root, box, marks, format, x, y, first, last, width);
  if (spec.stacked) bars(root, spec, steps, x, y, bar);
  else for (const one of spec.series) line(root, one, steps, x, y);
  whiskers(root, points, spec.pointsColor, x, y);
  hover(root, spec, box, allSteps, x, format, points);
  return root;
}

function axes(root, box, marks, format, x, y, first, last, width) {
  for (const mark of marks) {
    const kind = mark === 0 ? "zero" : "grid";
    root.append(svg("line", { class: kind, x1: box.left, x2: box.right, y1: y(mark), y2: y(mark) }));
    root.append(svg("text", { class: "tick", x: box.left - 6, y: y(mark) + 4, "text-anchor": "end" }, format(mark)));
  }
  for (const step of ticks(first, last, Math.max(2, Math.floor(width / 80))).filter(Number.isInteger)) {
    root.append(svg("text", { class: "tick", x: x(step), y: box.bottom + 17, "text-anchor": "middle" }, step));
  }
}

function line(root, one, steps, x, y) {
  let path = "", open = false;
  const known = one.values.map((value, index) => [steps[index], value]).filter(([, value]) => isNumber(value));
  one.values.forEach((value, index) => {
    if (!isNumber(value)) { open = open && one.connect; return; }
    path += `${open ? "L" : "M"}${x(steps[index]).toFixed(1)},${y(value).toFixed(1)}`;
    open = true;
  });
  const drawn = svg("path", { d: path, class: one.faint ? "line faint" : "line" });
  drawn.style.stroke = `var(${one.color})`;
  root.append(drawn);
  if (known.length > 40 || one.faint) return;
  for (const [step, value] of known) {
    const dot = svg("circle", { cx: x(step), cy: y(value), r: 2 });
    dot.style.fill = `var(${one.color})`;
    root.append(dot);
  }
}

function bars(root, spec, steps, x, y, bar) {
  const width = Math.max(1, Math.min(28, bar - (bar > 6 ? 2 : 0)));
  steps.forEach((step, index) => {
    let base = 0;
    for (const one of spec.series) {
      const value = one.values[index];
      if (!isNumber(value) || value <= 0) continue;
      const tall = y(base) - y(base + value);
      const height = Math.max(0.5, tall - (tall > 3 ? 1 : 0));
      const rect = svg("rect", { x: x(step) - width / 2, y: y(base + value), width, height });
      rect.style.fill = `var(${one.color})`;
      root.append(rect);
      base += value;
    }
  });
}

function whiskers(root, points, color, x, y) {
  for (const point of points) {
    const at = x(point.step);
    const stem = svg("line", { class: "whisker", x1: at, x2: at, y1: y(point.low), y2: y(point.high) });
    const dot = svg("circle", { class: "eval", cx: at, cy: y(point.value), r: 5 });
    stem.style.stroke = `var(${color})`;
    dot.style.fill = `var(${color})`;
    root.append(stem, dot);
  }
}

function hover(root, spec, box, allSteps, x, format, points) {
  const cross = svg("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
  root.append(cross);
  const distinct = [...new Set(allSteps)].sort((a, b) => a - b);
  const hide = () => { cross.setAttribute("visibility", "hidden"); tip(null); };
  root.addEventListener("pointerleave", hide);
  const nearest = (event) => {
    const at = event.clientX - root.getBoundingClientRect().left;
    const far = (one) => Math.abs(x(one) - at);
    return distinct.reduce((best, one) => (far(one) < far(best) ? one : best), distinct[0]);
  };
  if (spec.onzoom) {
    let begun = null;
    root.addEventListener("pointerdown", (event) => { begun = nearest(event); });
    root.addEventListener("pointerup", (event) => {
      const ended = nearest(event);
      if (begun !== null && begun !== ended) spec.onzoom(Math.min(begun, ended), Math.max(begun, ended));
      begun = null;
    });
  }
  root.addEventListener("pointermove", (event) => {
    const step = nearest(event);
    const index = spec.steps.indexOf(step);
    cross.setAttribute("x1", x(step));
    cross.setAttribute("x2", x(step));
    cross.setAttribute("visibility", "visible");
    const rows = index < 0 ? [] : spec.series
      .filter((one) => !one.faint && (!spec.stacked || one.values[index]))
      .map((one) => [one.label, format(one.values[index]), one.color]);
    for (const point of points.filter((one) => one.step === step)) {
      const over = point.instances ? `, ${point.instances} instances` : "";
      const interval = `${percent(point.low)} to ${percent(point.high)}, n = ${point.samples}${over}`;
      rows.push([spec.pointsLabel, `${percent(point.value)} (${interval})`, spec.pointsColor]);
    }
    tip(event, `step ${step}`, spec.stacked ? rows.reverse() : rows);
  });
}

function tip(event, title = "", rows = []) {
  const box = document.getElementById("tip");
  box.hidden = !event;
  if (!event) return;
  box.replaceChildren(el("b", {}, title), ...rows.map(([label, value, color]) => {
    const mark = el("i", { class: "box" });
    mark.style.background = `var(${color})`;
    return el("div", {}, mark, `${label}: `, el("span", {}, value));
  }));
  const wide = box.offsetWidth, tall = box.offsetHeight, room = document.documentElement.clientWidth;
  const below = event.clientY + 16;
  box.style.left = Math.max(4, Math.min(event.clientX + 14, room - wide - 8)) + "px";
  box.style.top = (below + tall > window.innerHeight ? event.clientY - tall - 12 : below) + "px";
}
