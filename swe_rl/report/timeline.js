// The timeline: one lane a program, one colour a phase. A canvas as large as what can be seen of it is drawn anew
// whenever the reader scrolls, so any number of lanes at any zoom costs the same.

const PHASE_TEXT = {
  boot: "booting a sandbox", hold: "held by the router", queue: "in the engine's queue", prefill: "prefill",
  decode: "decode", tool: "command running", grade: "grading",
};
const phaseColor = (kind) => (PHASE_TEXT[kind] ? `--p-${kind}` : "--c5");
const cssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const timeText = (ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : ms < 60000 ? `${(ms / 1000).toFixed(2)} s`
  : `${Math.floor(ms / 60000)} min ${((ms % 60000) / 1000).toFixed(1)} s`);
const AXIS = 20, HEADER = 20, ZOOMS = [1, 2, 4, 8, 16, 32, 64];

// What a packed program says, see timeline_program.py: three numbers a phase, three a turn.
function unpack(packed, step, kinds) {
  const [label, group, status, start, end, flat, tokens] = packed;
  const phases = [], requestMs = step.engines.map(() => 0);
  let at = start, turn = 0;
  for (let place = 0; place + 2 < flat.length; place += 3) {
    const code = flat[place + 2], rest = Math.floor(code / kinds.length);
    const kind = kinds[code % kinds.length], engine = rest % (1 + step.engines.length) - 1;
    const from = at + flat[place];
    turn += Math.floor(rest / (1 + step.engines.length));
    at = from + flat[place + 1];
    phases.push({ kind, engine, from, to: at, turn: kind === "boot" || kind === "grade" ? -1 : turn });
    if (engine >= 0) requestMs[engine] += at - from;
  }
  const most = Math.max(...requestMs, 0);
  const turns = [];
  for (let place = 0; place + 2 < tokens.length; place += 3) turns.push(tokens.slice(place, place + 3));
  const instance = step.groups[group];
  return { name: `${instance} ${label}`, instance, group, status: step.statuses[status], start, end, phases, turns,
    engine: most > 0 ? requestMs.indexOf(most) : -1 };
}

function unpackStep(step, kinds) {
  if (!step.lanes) {
    step.lanes = step.programs.map((packed) => unpack(packed, step, kinds));
    step.endMs = Math.max(1, ...step.lanes.map((one) => one.end));
  }
  return step;
}

// Rows from top to bottom: {top, height, lane} or {top, height, title}.
function layout(step, order) {
  const tall = step.lanes.length <= 32 ? 15 : step.lanes.length <= 96 ? 9 : step.lanes.length <= 200 ? 7 : 5;
  const byStart = (a, b) => a.start - b.start;
  const keyOf = { engine: (one) => one.engine, group: (one) => one.group, start: () => 0 }[order];
  const lanes = [...step.lanes].sort((a, b) => keyOf(a) - keyOf(b) || byStart(a, b));
  const rows = [];
  let top = AXIS + 3, previous = null, group = null;
  for (const lane of lanes) {
    const key = keyOf(lane);
    if (key !== previous && order === "engine") {
      const count = lanes.filter((one) => keyOf(one) === key).length;
      const title = `${key < 0 ? "no engine" : step.engines[key]} · ${count} program${count === 1 ? "" : "s"}`;
      rows.push({ top, height: HEADER, title });
      top += HEADER;
    } else if (key !== previous && previous !== null) top += 4;
    rows.push({ top, height: tall, lane, first: key !== previous || lane.group !== group });
    top += tall;
    previous = key;
    group = lane.group;
  }
  return { rows, height: top + 4, tall, order };
}

// `at`: the step that is shown first, where it is drawn; `open(step, lane)`: what a click on a lane does.
function programs(all, at = null, open = null) {
  const asked = all.steps.findIndex((one) => one.step === at);
  const state = { step: asked < 0 ? all.steps.length - 1 : asked, order: "engine", zoom: 1 };
  const canvas = el("canvas", { role: "img" }), spacer = el("div", {}, canvas);
  const lanes = el("div", { class: "lanes", tabindex: "0", role: "group", "aria-label": "lanes of the programs" }, spacer);
  const load = loadChart(), kv = kvChart(), legendBox = el("div"), shareBox = el("div"), noteBox = note("");
  const stepChoice = el("select", { "aria-label": "step of the timeline",
    onchange: (event) => change({ step: Number(event.target.value) }) },
    all.steps.map((one, index) => el("option", { value: index }, `Training step ${one.step}`)));
  const orderChoice = el("select", { "aria-label": "order of the lanes",
    onchange: (event) => change({ order: event.target.value }) },
    [["engine", "by engine"], ["group", "by group"], ["start", "by start"]].map(([value, text]) =>
      el("option", { value }, text)));
  const button = (text, label, onclick) => el("button", { type: "button", "aria-label": label, onclick }, text);
  const earlier = button("‹", "earlier step", () => change({ step: state.step - 1 }));
  const later = button("›", "later step", () => change({ step: state.step + 1 }));
  const out = button("−", "zoom out", () => zoomTo(state.zoom / 2));
  const closer = button("+", "zoom in", () => zoomTo(state.zoom * 2));
  const zoomText = el("span", { class: "label" }, "zoom 1×");
  let step = null, plan = null, view = null, queued = false;

  function change(what) {
    Object.assign(state, what);
    step = unpackStep(all.steps[state.step], all.kinds);
    plan = layout(step, state.order);
    stepChoice.value = state.step;
    earlier.disabled = state.step === 0;
    later.disabled = state.step === all.steps.length - 1;
    canvas.setAttribute("aria-label", `Timeline of ${step.lanes.length} programs over ${timeText(step.endMs)};`
      + " the table below has the shares of time.");
    noteBox.textContent = noteOf(step, all);
    load.show(step);
    kv.show(step);
    legendBox.replaceChildren(phaseLegend(all.kinds, step));
    shareBox.replaceChildren(shareTable(step, all.kinds));
    if (what.step !== undefined) lanes.scrollTop = 0;
    draw();
  }
  function zoomTo(zoom, clientX = null) {
    const limited = Math.max(ZOOMS[0], Math.min(ZOOMS[ZOOMS.length - 1], zoom));
    if (!view || limited === state.zoom) return;
    const middle = clientX === null ? view.plot / 2 : clientX - lanes.getBoundingClientRect().left - view.gutter;
    const ms = view.msAt(view.gutter + middle);
    state.zoom = limited;
    draw();
    lanes.scrollLeft = (ms / step.endMs) * view.plot * state.zoom - middle;
    draw();
  }
  // The part of the step that is in view; the charts below use the same.
  function draw() {
    const width = lanes.clientWidth;
    if (!width) return;
    const gutter = width < 560 ? 74 : 150, plot = width - gutter - 12;
    spacer.style.width = `${gutter + 12 + plot * state.zoom}px`;
    spacer.style.height = `${plan.height}px`;
    const scale = plot * state.zoom / step.endMs, from = lanes.scrollLeft / scale;
    view = { width, gutter, plot, from, to: from + plot / scale, scale,
      x: (ms) => gutter + (ms - from) * scale, msAt: (x) => from + (x - gutter) / scale };
    if (matchMedia("print").matches) drawLanes(canvas, view, plan, 0, plan.height);
    else drawLanes(canvas, view, plan, lanes.scrollTop, Math.min(plan.height, lanes.clientHeight));
    load.draw(view);
    kv.draw(view);
    zoomText.textContent = `zoom ${state.zoom}×`;
    out.disabled = state.zoom === ZOOMS[0];
    closer.disabled = state.zoom === ZOOMS[ZOOMS.length - 1];
  }
  function soon() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; draw(); });
  }
  lanes.addEventListener("scroll", soon);
  lanes.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoomTo(event.deltaY < 0 ? state.zoom * 2 : state.zoom / 2, event.clientX);
  }, { passive: false });
  drawnToSize(lanes, draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
  matchMedia("print").addEventListener("change", draw);  // at once: a page that is printed has no further frame
  hoverLanes(canvas, () => ({ view, plan, step, top: lanes.scrollTop }), open);
  change({ step: state.step });
  const label = (text) => el("span", { class: "label" }, text);
  const controls = el("div", { class: "controls" }, earlier, stepChoice, later, label("lanes"), orderChoice, out, closer, zoomText);
  return section("Programs", noteBox, el("div", { class: "programs" }, controls,
    el("div", { class: "card" }, legendBox, lanes, load.node, kv.node),
    el("div", { class: "card shares" }, shareBox)));
}

function noteOf(step, all) {
  const drawn = step.lanes.length;
  const some = drawn < step.total ? ` ${drawn} of ${step.total} programs are drawn, evenly taken;`
    + " the table is about all, the requests below the lanes about those drawn." : "";
  const left = all.left_out ? ` ${all.left_out} earlier step${all.left_out === 1 ? " is" : "s are"} left out to keep this`
    + " page small; programs/ has all." : "";
  return `Each lane is one trajectory of the step, from its boot to its end.${some}${left}`
    + " Blank is what belongs to no phase: parsing, waiting for a place to run a command, taking the patch.";
}

function phaseLegend(kinds, step) {
  const met = new Set(step.lanes.flatMap((one) => one.phases.map((phase) => phase.kind)));
  return el("ul", { class: "legend" }, kinds.filter((kind) => met.has(kind)).map((kind) => {
    const mark = el("i", { class: "box" });
    mark.style.background = `var(${phaseColor(kind)})`;
    return el("li", {}, mark, PHASE_TEXT[kind] || kind);
  }));
}

// A canvas of that many CSS pixels, sharp on any screen.
function surface(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "11.5px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  context.textBaseline = "middle";
  return context;
}

// The end of a name tells it from its neighbours, so its beginning goes.
function fitted(context, text, width) {
  let kept = text, dots = "";
  while (kept.length > 1 && context.measureText(dots + kept).width > width) [kept, dots] = [kept.slice(1), "…"];
  return dots + kept;
}

function timeTicks(view) {
  return ticks(view.from / 1000, view.to / 1000, Math.max(2, Math.floor(view.plot / 110)))
    .map((mark) => ({ x: view.x(mark * 1000), text: `${Number(mark.toFixed(3))} s` }));
}

function drawLanes(canvas, view, plan, top, height) {
  const context = surface(canvas, view.width, height);
  const soft = cssValue("--soft"), grid = cssValue("--grid"), ink = cssValue("--ink"), colors = {};
  const right = view.gutter + view.plot;
  context.fillStyle = cssValue("--card");
  context.fillRect(0, 0, view.width, height);
  const marks = timeTicks(view);
  context.fillStyle = grid;
  for (const mark of marks) context.fillRect(Math.round(mark.x), AXIS - 4, 1, height);
  context.save();
  context.beginPath();
  context.rect(0, AXIS, view.width, height - AXIS);
  context.clip();
  let labelled = -99;
  for (const row of plan.rows) {
    const y = row.top - top;
    if (y + row.height < AXIS || y > height) continue;
    if (row.title) {
      context.fillStyle = ink;
      context.fillText(fitted(context, row.title, view.width - 12), 0, y + row.height / 2);
      labelled = y + 5;
      continue;
    }
    // Thin lanes: the instance beside its first lane, where there is room for a line of text.
    if ((row.height >= 13 || row.first) && y - labelled >= 13) {
      context.fillStyle = soft;
      context.fillText(fitted(context, row.height >= 13 ? row.lane.name : row.lane.instance, view.gutter - 16), 0,
        y + Math.min(row.height / 2, 6) + 0.5);
      labelled = y;
    }
    const gap = row.height > 6 ? 2 : 1;
    context.fillStyle = cssValue(statusColor(row.lane.status));
    context.fillRect(view.gutter - 9, y, 5, row.height - gap);
    drawLane(context, row.lane, view, right, y, row.height - gap, colors, grid);
  }
  context.restore();
  context.fillStyle = soft;
  context.textAlign = "center";
  for (const mark of marks) {
    if (mark.x >= view.gutter - 1 && mark.x < right + 6) context.fillText(mark.text, Math.min(mark.x, right - 12), AXIS / 2 - 1);
  }
  context.textAlign = "left";
}

function drawLane(context, lane, view, right, y, height, colors, grid) {
  const clamp = (x) => Math.max(view.gutter, Math.min(right, x));
  const from = clamp(view.x(lane.start)), to = clamp(view.x(lane.end));
  context.fillStyle = grid;
  if (to > from) context.fillRect(from, y + height / 2 - 0.5, to - from, 1);
  for (const phase of lane.phases) {
    if (phase.to < view.from || phase.from > view.to) continue;
    const left = clamp(view.x(phase.from)), end = clamp(view.x(phase.to));
    context.fillStyle = colors[phase.kind] ||= cssValue(phaseColor(phase.kind));
    context.fillRect(left, y, Math.max(0.6, end - left), height);
  }
}

function hoverLanes(canvas, current, open) {
  const rowAt = (event) => {
    const { plan, top } = current(), y = event.clientY - canvas.getBoundingClientRect().top + top;
    return y < top + AXIS ? null : plan.rows.find((one) => one.lane && y >= one.top && y < one.top + one.height);
  };
  canvas.addEventListener("pointerleave", () => tip(null));
  canvas.addEventListener("click", (event) => {
    const row = rowAt(event);
    if (row && open) open(current().step.step, row.lane);
  });
  canvas.addEventListener("pointermove", (event) => {
    const { view, step } = current(), box = canvas.getBoundingClientRect();
    const row = rowAt(event), ms = view.msAt(event.clientX - box.left);
    if (!row) return tip(null);
    return tip(event, row.lane.name, laneFacts(row.lane, step, ms, 1.5 / view.scale));
  });
}

// What is under the pointer; of phases narrower than a pixel the nearest.
function laneFacts(lane, step, ms, near) {
  const far = (one) => Math.max(one.from - ms, ms - one.to, 0);
  const inside = lane.phases.filter((one) => far(one) <= near).sort((a, b) => far(a) - far(b))[0];
  const rows = [[lane.status.replaceAll("_", " "), `${timeText(lane.end - lane.start)}, ${lane.turns.length} turns`,
    statusColor(lane.status)]];
  if (!inside) return rows;
  rows.push([PHASE_TEXT[inside.kind] || inside.kind, timeText(inside.to - inside.from), phaseColor(inside.kind)]);
  rows.push(["from", `${(inside.from / 1000).toFixed(3)} s`, "--card"]);
  if (inside.turn >= 0) {
    const [prompt, cached, sampled] = lane.turns[inside.turn] || [];
    rows.push(["turn", `${inside.turn + 1} of ${lane.turns.length}`, "--card"]);
    if (isNumber(prompt)) rows.push(["prompt", `${prompt.toLocaleString("en")} tokens, ${cached.toLocaleString("en")} cached`, "--card"]);
    if (isNumber(sampled)) rows.push(["sampled", `${sampled.toLocaleString("en")} tokens`, "--card"]);
  }
  if (inside.engine >= 0) rows.push(["engine", step.engines[inside.engine], "--card"]);
  return rows;
}
