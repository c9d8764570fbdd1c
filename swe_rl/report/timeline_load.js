// Below the lanes: how many programs each engine had a request of, and where each status spent its time.

const RUNNING = new Set(["prefill", "decode"]), WAITING = new Set(["hold", "queue"]);

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
    const both = new Set([...RUNNING, ...WAITING]);
    step.loads = step.engines.map((name, engine) => ({ name, running: counter(spans(engine, RUNNING)),
      waiting: counter(spans(engine, WAITING)), both: counter(spans(engine, both)) }));
  }
  return step.loads;
}

function loadChart() {
  const canvas = el("canvas", { role: "img" }), node = el("div", { class: "load" }), state = { step: null, view: null };
  const strip = (count) => (count <= 2 ? 58 : count <= 4 ? 46 : count <= 8 ? 34 : 22);
  canvas.addEventListener("pointerleave", () => tip(null));
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), loads = engineLoads(state.step);
    const one = loads[Math.floor((event.clientY - box.top) / strip(loads.length))];
    const ms = state.view.msAt(event.clientX - box.left), half = 0.5 / state.view.scale;
    if (!one || ms < 0 || ms > state.step.endMs) return tip(null);
    const mean = (which) => Number(which.mean(ms - half, ms + half).toFixed(1));
    return tip(event, `${one.name} at ${(ms / 1000).toFixed(2)} s`,
      [["request running", mean(one.running), "--p-decode"], ["request waiting", mean(one.waiting), "--p-queue"]]);
  });
  function show(step) {
    state.step = step;
    const most = engineLoads(step).map((one) => `${one.name}: at most ${one.running.most} running`).join(", ");
    canvas.setAttribute("aria-label", `Programs with a request, by engine. ${most}`);
    node.replaceChildren(...(step.engines.length ? [el("h4", {}, "Programs with a request, by engine"), loadLegend(), canvas] : []));
  }
  function draw(view) {
    state.view = view;
    if (state.step.engines.length) drawLoad(canvas, view, engineLoads(state.step), strip(state.step.engines.length), state.step.endMs);
  }
  return { node, show, draw };
}

function loadLegend() {
  const entries = [["running (prefill or decode)", "--p-decode"], ["waiting (held or queued)", "--p-queue"]];
  return el("ul", { class: "legend" }, entries.map(([text, color]) => {
    const mark = el("i", { class: "box" });
    mark.style.background = `var(${color})`;
    return el("li", {}, mark, text);
  }));
}

function drawLoad(canvas, view, loads, tall, endMs) {
  const context = surface(canvas, view.width, tall * loads.length + 22);
  const soft = cssValue("--soft"), line = cssValue("--line"), grid = cssValue("--grid"), right = view.gutter + view.plot;
  const blue = cssValue("--p-decode"), amber = cssValue("--p-queue");
  const most = Math.max(1, ...loads.map((one) => one.both.most)), marks = timeTicks(view);
  context.fillStyle = grid;
  for (const mark of marks) if (mark.x >= view.gutter) context.fillRect(Math.round(mark.x), 0, 1, tall * loads.length);
  loads.forEach((one, place) => {
    const bottom = (place + 1) * tall - 2, high = tall - 6;
    for (let x = view.gutter; x < right; x += 1) {
      const from = view.msAt(x), to = Math.min(endMs, view.msAt(x + 1));
      if (from >= endMs) break;
      const running = one.running.mean(from, to) / most * high, waiting = one.waiting.mean(from, to) / most * high;
      context.fillStyle = blue;
      if (running > 0) context.fillRect(x, bottom - running, 1, running);
      context.fillStyle = amber;
      if (waiting > 0) context.fillRect(x, bottom - running - waiting, 1, waiting);
    }
    context.fillStyle = line;
    context.fillRect(view.gutter, bottom, view.plot, 1);
    context.fillStyle = soft;
    const two = tall >= 30;
    context.fillText(fitted(context, one.name, view.gutter - 16), 0, bottom - (two ? high / 2 + 7 : high / 2));
    const peak = view.gutter < 100 ? `max ${one.running.most}` : `at most ${one.running.most} running`;
    if (two) context.fillText(peak, 0, bottom - high / 2 + 7);
  });
  context.fillStyle = soft;
  context.textAlign = "center";
  for (const mark of marks) {
    if (mark.x >= view.gutter - 1 && mark.x < right + 6) context.fillText(mark.text, Math.min(mark.x, right - 12), tall * loads.length + 11);
  }
  context.textAlign = "left";
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
