// Below the lanes: how many programs each engine had a request of, how full its KV cache was, and where each status
// spent its time.

const RUNNING = new Set(["prefill", "decode"]), QUEUED = new Set(["queue"]), HELD = new Set(["hold"]);

// A step function of how many of `spans` are open: its integral makes the mean over any stretch exact.
function counter(spans) {
  const edges = spans.flatMap(([from, to]) => [[from, 1], [to, -1]]).sort((a, b) => a[0] - b[0]);
  const times = [], counts = [], area = [];
  let open = 0, sum = 0, most = 0;
  for (const [at, change] of edges) {
    const last = times.length - 1;
    if (last >= 0) sum += open * (at - times[last]);
    open += change;
    if (last >= 0 && times[last] === at) counts[last] = open;
    else { times.push(at); counts.push(open); area.push(sum); }
  }
  for (const count of counts) most = Math.max(most, count);
  function upTo(ms) {
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= ms) low = middle + 1; else high = middle;
    }
    return low ? area[low - 1] + counts[low - 1] * (ms - times[low - 1]) : 0;
  }
  return { most, mean: (from, to) => (upTo(to) - upTo(from)) / (to - from) };
}

function engineLoads(step) {
  if (!step.loads) {
    const spans = (engine, kinds) => step.lanes.flatMap((lane) =>
      lane.phases.filter((one) => one.engine === engine && kinds.has(one.kind)).map((one) => [one.from, one.to]));
    step.loads = step.engines.map((name, engine) => ({ name, running: counter(spans(engine, RUNNING)),
      queued: counter(spans(engine, QUEUED)), held: counter(spans(engine, HELD)),
      all: counter(spans(engine, new Set([...RUNNING, ...QUEUED, ...HELD]))) }));
  }
  return step.loads;
}

// Strips below the lanes, one an engine, on the lanes' own time axis. `source(step)` gives a strip's name, note,
// columns(from, to) -> [[share of the height, colour], ...] from the bottom up, facts(from, to) and marks [ms, ...].
function stripChart(title, legend, source) {
  const canvas = el("canvas", { role: "img" }), node = el("div", { class: "load" });
  const state = { step: null, view: null, strips: [] };
  const tall = () => (state.strips.length <= 2 ? 58 : state.strips.length <= 4 ? 46 : state.strips.length <= 8 ? 34 : 22);
  canvas.addEventListener("pointerleave", () => tip(null));
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), one = state.strips[Math.floor((event.clientY - box.top) / tall())];
    const ms = state.view.msAt(event.clientX - box.left), half = 0.5 / state.view.scale;
    if (!one || ms < 0 || ms > state.step.endMs) return tip(null);
    const away = awayAt(state.step, one.engine, ms);
    const rows = away ? [["lost, back after", timeText(away[2] - away[1]), "--bad"]] : [];
    return tip(event, `${one.name} at ${(ms / 1000).toFixed(2)} s`, [...one.facts(ms - half, ms + half), ...rows]);
  });
  function show(step) {
    state.step = step;
    state.strips = source(step);
    canvas.setAttribute("aria-label", `${title}. ${state.strips.map((one) => `${one.name}: ${one.note}`).join(", ")}`);
    node.replaceChildren(...(state.strips.length ? [el("h3", { class: "minor" }, title), boxLegend(legend(step)), canvas] : []));
  }
  function draw(view) {
    state.view = view;
    if (state.strips.length) drawStrips(canvas, view, state.strips, tall(), state.step);
  }
  return { node, show, draw };
}

const awayAt = (step, engine, ms) => (step.away || []).find((one) => one[0] === engine && ms >= one[1] && ms <= one[2]);

function boxLegend(entries) {
  return el("ul", { class: "legend" }, entries.map(([text, color]) => {
    const mark = el("i", { class: "box" });
    mark.style.background = `var(${color})`;
    return el("li", {}, mark, text);
  }));
}

function loadChart() {
  const parts = [["running", "running (prefill or decode)", "--p-decode"], ["queued", "in the engine's queue", "--p-queue"],
    ["held", "held by the router", "--p-hold"]];
  const met = (step) => parts.filter(([key]) => key === "running" || engineLoads(step).some((one) => one[key].most));
  const legend = (step) => [...met(step).map(([, text, color]) => [text, color]), ...awayLegend(step)];
  return stripChart("Programs with a request, by engine", legend, (step) => {
    const most = Math.max(1, ...engineLoads(step).map((one) => one.all.most));
    return engineLoads(step).map((one, engine) => ({ engine, name: one.name, note: `at most ${one.running.most} running`,
      brief: `max ${one.running.most}`, marks: [],
      columns: (from, to) => met(step).map(([key, , color]) => [one[key].mean(from, to) / most, color]),
      facts: (from, to) => met(step).map(([key, text, color]) => [text, Number(one[key].mean(from, to).toFixed(1)), color]) }));
  });
}

const awayLegend = (step) => ((step.away || []).length ? [["engine lost", "--bad"]] : []);

// Samples hold until the next one; of a stretch the fullest counts, so that no peak is lost at any zoom.
function engineSamples(step) {
  if (!step.samples) return [];
  const { at, loads } = step.samples;
  return step.engines.map((name, engine) => {
    const field = (place, which) => loads[engine][4 * place + which];
    const known = at.map((_, place) => place).filter((place) => field(place, 0) >= 0);
    function placeAt(ms) {
      let low = 0, high = known.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (at[known[middle]] <= ms) low = middle + 1; else high = middle;
      }
      return low - 1;
    }
    function fullest(from, to) {
      let best = null;
      for (let place = Math.max(0, placeAt(from)); place < known.length && at[known[place]] <= to; place += 1) {
        const one = known[place];
        if (best === null || field(one, 2) > field(best, 2)) best = one;
      }
      return best === null ? null : { running: field(best, 0), waiting: field(best, 1), kv: field(best, 2) / 1000,
        preemptions: field(best, 3) - field(known[0], 3) };
    }
    const marks = known.filter((place, index) => index && field(place, 3) > field(known[index - 1], 3)).map((place) => at[place]);
    const last = known.length ? known[known.length - 1] : 0, first = known.length ? known[0] : 0;
    return { name, engine, fullest, marks, most: Math.max(0, ...known.map((place) => field(place, 2))) / 1000,
      preemptions: known.length ? Math.max(0, field(last, 3) - field(first, 3)) : 0 };
  });
}

function kvChart() {
  const legend = (step) => [["held by requests that run; a strip's height is the whole cache", "--c3"],
    ...(engineSamples(step).some((one) => one.preemptions) ? [["a request was preempted", "--s-infra-error"]] : []), ...awayLegend(step)];
  return stripChart("KV cache in use, by engine", legend, (step) => engineSamples(step).map((one) => ({
    engine: one.engine, name: one.name, marks: one.marks, frame: true, brief: `max ${(100 * one.most).toFixed(0)} %`,
    note: `at most ${(100 * one.most).toFixed(0)} %${one.preemptions ? `, ${one.preemptions} preempted` : ""}`,
    columns: (from, to) => [[(one.fullest(from, to) || { kv: 0 }).kv, "--c3"]],
    facts: (from, to) => {
      const found = one.fullest(from, to);
      return found ? [["KV cache in use", percent(found.kv), "--c3"], ["requests running", found.running, "--p-decode"],
        ["in its queue", found.waiting, "--p-queue"], ["preempted so far", found.preemptions, "--s-infra-error"]] : [];
    } })));
}

function drawStrips(canvas, view, strips, tall, step) {
  const context = surface(canvas, view.width, tall * strips.length + 22), colors = {};
  const color = (name) => (colors[name] ||= cssValue(name));
  const right = view.gutter + view.plot, marks = timeTicks(view), endMs = step.endMs;
  context.fillStyle = color("--grid");
  for (const mark of marks) if (mark.x >= view.gutter) context.fillRect(Math.round(mark.x), 0, 1, tall * strips.length);
  strips.forEach((one, place) => {
    const bottom = (place + 1) * tall - 2, high = tall - 6;
    drawAway(context, view, step, one.engine, bottom - high, high, color("--bad"));
    for (let x = view.gutter; x < right; x += 1) {
      const from = view.msAt(x), to = Math.min(endMs, view.msAt(x + 1));
      if (from >= endMs) break;
      let level = bottom;
      for (const [share, name] of one.columns(from, to)) {
        if (share <= 0) continue;
        context.fillStyle = color(name);
        context.fillRect(x, level - share * high, 1.5, share * high);  // no seams between columns at any scale
        level -= share * high;
      }
    }
    context.fillStyle = color("--line");
    context.fillRect(view.gutter, bottom, view.plot, 1);
    if (one.frame) context.fillRect(view.gutter, bottom - high, view.plot, 1);
    context.fillStyle = color("--s-infra-error");
    for (const ms of one.marks) {
      const x = view.x(ms);
      if (x >= view.gutter && x <= right) context.fillRect(Math.round(x) - 1, bottom - high, 2, Math.min(high, 9));
    }
    context.fillStyle = color("--soft");
    const two = tall >= 30;
    context.fillText(fitted(context, one.name, view.gutter - 16), 0, bottom - (two ? high / 2 + 7 : high / 2));
    if (two) context.fillText(fitted(context, view.gutter < 100 ? one.brief : one.note, view.gutter - 10), 0, bottom - high / 2 + 7);
  });
  context.fillStyle = color("--soft");
  context.textAlign = "center";
  for (const mark of marks) {
    if (mark.x >= view.gutter - 1 && mark.x < right + 6) context.fillText(mark.text, Math.min(mark.x, right - 12), tall * strips.length + 11);
  }
  context.textAlign = "left";
}

function drawAway(context, view, step, engine, top, high, color) {
  const clamp = (x) => Math.max(view.gutter, Math.min(view.gutter + view.plot, x));
  for (const [place, fromMs, toMs] of step.away || []) {
    const from = clamp(view.x(fromMs)), to = clamp(view.x(toMs));
    if (place !== engine || to <= from) continue;
    context.save();
    context.fillStyle = color;
    context.globalAlpha = 0.16;
    context.fillRect(from, top, Math.max(1, to - from), high);
    context.globalAlpha = 1;
    context.fillRect(from, top, 1, high);
    const text = `lost for ${timeText(toMs - fromMs)}`;
    if (high >= 14 && context.measureText(text).width + 10 < to - from) context.fillText(text, from + 6, top + 9);
    context.restore();
  }
}

function shareTable(step, kinds) {
  const met = kinds.filter((_, place) => step.shares.some((row) => row.by_kind[place]));
  const rows = [...step.shares].sort((a, b) => STATUS_ORDER.indexOf(a.status) - STATUS_ORDER.indexOf(b.status));
  const sum = (key) => rows.reduce((total, row) => total + row[key], 0);
  const all = { status: null, programs: sum("programs"), ms: sum("ms"), prompt: sum("prompt"), cached: sum("cached"),
    by_kind: kinds.map((_, place) => rows.reduce((total, row) => total + row.by_kind[place], 0)) };
  const labels = ["status", "programs", "mean time", "share of time", ...met, "other", "prompt cached"];
  const drawn = (rows.length > 1 ? [...rows, all] : rows).map((row) => shareRow(row, kinds, met));
  return el("div", {}, el("h3", {}, `Where the time of step ${step.step} went`), table("shares", labels, drawn));
}

function shareRow(row, kinds, met) {
  const share = (ms) => (row.ms ? ms / row.ms : null);
  const mix = el("span", { class: "mix" }, kinds.map((kind, place) => {
    const part = el("i");
    part.style.width = `${100 * (share(row.by_kind[place]) || 0)}%`;
    part.style.background = `var(${phaseColor(kind)})`;
    return part;
  }));
  const other = row.ms - row.by_kind.reduce((total, ms) => total + ms, 0);
  return el("tr", { class: row.status === null ? "total" : "" },
    el("td", {}, row.status === null ? "all" : chip(row.status)), el("td", {}, row.programs),
    el("td", {}, timeText(row.ms / Math.max(1, row.programs))), el("td", {}, mix),
    met.map((kind) => el("td", {}, percent(share(row.by_kind[kinds.indexOf(kind)])))),
    el("td", {}, percent(share(other))), el("td", {}, percent(row.prompt ? row.cached / row.prompt : null)));
}
