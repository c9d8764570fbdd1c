// The table of runs, curves of the chosen ones side by side, and the options in which they differ.

const RUN_COLORS = [...PALETTE, "--s-resolved", "--s-step-limit", "--s-agent-timeout", "--s-agent-crashed"];
const FIRST_COLUMNS = ["reward_mean", "held_out_resolved_rate", "avg_response_length", "tokens_per_s"];
const CHOSEN_AT_FIRST = 4;

const when = (unixS) => (isNumber(unixS) ? new Date(1000 * unixS).toLocaleString("sv").slice(0, 16) : "–");
// What a run is: its model, environment and algorithm; the folder's name says only when it began.
const nameOfRun = (one) => [one.model, one.env, one.algo].filter(Boolean).join(" · ") || shortRun(one.run);

function ageOf(unixS) {
  if (!isNumber(unixS)) return "–";
  const ageS = Math.max(0, Date.now() / 1000 - unixS);
  const units = [["day", 86400], ["hour", 3600], ["minute", 60]];
  for (const [name, size] of units) {
    const count = Math.floor(ageS / size);
    if (count >= 1) return `${count} ${name}${count === 1 ? "" : "s"} ago`;
  }
  return "just now";
}

// Columns of steps.jsonl whose names say less than these words.
const COLUMN_WORDS = { reward_mean: "mean reward", held_out_resolved_rate: "held-out resolved rate",
  avg_response_length: "mean response, in tokens", tokens_per_s: "response tokens per second", sampled_tokens_per_s: "sampled tokens per second",
  superseded_replies: "replies that were asked for again", superseded_tokens: "tokens of replies that were asked for again",
  logprob_diff_mean: "log-probability, engine against trainer", staleness_mean: "age of the rows, in steps" };
const words = (name) => (Object.hasOwn(COLUMN_WORDS, name) && COLUMN_WORDS[name]) || String(name).replaceAll("_", " ").replaceAll("/", " · ");

async function overviewPage(at) {
  const { root, runs, left_out: leftOut } = await ask("runs");
  if (!runs.length) {
    return [el("h1", {}, "Runs"), note(root), el("p", { class: "reason" },
      "No run is here yet. This page shows one within seconds of its start.")];
  }
  const known = new Set(runs.map((one) => one.run));
  const asked = at.getAll("runs").filter((name) => known.has(name));
  const chosen = at.has("runs") || at.has("none") ? asked
    : runs.filter((one) => one.step > 0 || one.before).slice(0, CHOSEN_AT_FIRST).map((one) => one.run);
  const text = (at.get("text") || "").toLowerCase();
  const shown = runs.filter((one) => `${one.run} ${one.name} ${one.job} ${one.state.label} ${nameOfRun(one)}`.toLowerCase().includes(text));
  const labels = labelsOf(runs.filter((one) => chosen.includes(one.run)));
  const differing = chosen.length > 1 ? (await ask("options", { run: chosen })).options : [];
  return [
    el("h1", {}, "Runs"), note(root),
    leftOut ? note(`More runs are here than these ${runs.length}. For the others, give job=view a folder further down.`) : null,
    el("div", { class: "controls block" }, searchBox("text", at, "run, job or state contains …")),
    runTable(shown, chosen),
    chosen.length ? section("Curves", note("Choose runs in the table above. Drag over a chart to zoom in."),
      await curves(at, chosen, FIRST_COLUMNS, labels)) : note("Choose runs in the table to see their curves side by side."),
    differing.length ? section("Options that differ", optionTable(differing, chosen.map((run) => labels.get(run)))) : null,
  ];
}

function runTable(runs, chosen) {
  const colorOf = new Map(chosen.map((name, index) => [name, RUN_COLORS[index % RUN_COLORS.length]]));
  const rate = (point) => (point ? percent(point.rate).replace(" ", "\u00a0") : "–");
  const rows = runs.map((one) => {
    const box = el("input", { type: "checkbox", id: `choose ${one.run}`, checked: colorOf.has(one.run),
      "aria-label": `curves of ${one.run}`, onchange: (event) => {
        const left = event.target.checked ? [...chosen, one.run] : chosen.filter((name) => name !== one.run);
        choose({ runs: left, none: left.length ? null : "1" });
      } });
    const mark = el("i", { class: "box" });
    mark.style.background = colorOf.has(one.run) ? `var(${colorOf.get(one.run)})` : "transparent";
    return el("tr", { "data-item": one.run },
      el("td", {}, box, " ", mark, anchor(nameOfRun(one), { run: one.run }, { class: "run-name" }),
        el("span", { class: "run-place" }, one.run)),
      el("td", { class: "less" }, one.name === one.job ? one.job : `${one.job} ${one.name}`),
      el("td", {}, el("span", { class: `badge ${one.state.kind}`, title: one.state.reason || "" }, one.state.label),
        one.damaged ? el("span", { class: "badge failed", title: one.damaged }, `damaged: ${one.damaged}`) : null),
      el("td", { class: "less" }, one.steps ? `${one.step} of ${one.steps}` : one.step || "–"),
      el("td", {}, one.after ? `${rate(one.before)} → ${rate(one.after)}` : rate(one.before)),
      el("td", { class: "less", title: when(one.started) }, ageOf(one.started)));
  });
  const labels = ["run", ["job", "less"], "state", ["steps", "less"], "held-out resolved", ["began", "less"]];
  const head = labels.map((one) => (Array.isArray(one) ? el("th", { class: one[1], title: meaningOf(one[0]) }, one[0])
    : el("th", { title: meaningOf(one) }, one)));
  return el("div", { class: "card" }, scrolling(el("div", { class: "scroll", role: "group", "aria-label": "table of runs" },
    el("table", { class: "runs" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)))));
}

// What a run is, and the last part of its folder's name; the folder's name alone where that would be said of two.
function labelsOf(runs) {
  // A job of a sweep has a folder that is only a number.
  const folderOf = (name) => (/\/\d+$/.test(name) ? shortRun(name) : name.split("/").at(-1));
  const said = runs.map((one) => `${nameOfRun(one)}, ${folderOf(one.run)}`);
  return new Map(runs.map((one, index) => [one.run, said.filter((other) => other === said[index]).length > 1 ? shortRun(one.run) : said[index]]));
}

function optionTable(options, labels) {
  const rows = options.map((one) => el("tr", {}, el("td", { class: "name mono" }, one.key),
    one.values.map((value) => el("td", { class: "value" }, value))));
  return el("div", { class: "card" }, table("options", ["option", ...labels], rows));
}

const shortRun = (name) => name.split("/").slice(-2).join("/");

function searchBox(key, at, placeholder) {
  let waiting = null;
  return el("input", { type: "search", id: `find ${key}`, value: at.get(key) || "", placeholder, "aria-label": placeholder,
    oninput: (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => choose({ [key]: event.target.value, offset: null }), 250);
    } });
}

function choice(key, at, label, entries) {
  const options = entries.map(([value, text]) =>
    el("option", { value, selected: (at.get(key) || "") === value }, text));
  return el("select", { id: `choose ${key}`, "aria-label": label,
    onchange: (event) => choose({ [key]: event.target.value, offset: null }) }, options);
}

// Any column of steps.jsonl, a chart each, a line a run; `names`: of runs.
async function curves(at, names, first = FIRST_COLUMNS, labels = new Map()) {
  const wanted = at.has("column") ? at.getAll("column").filter((key) => key !== "none") : first;
  const { columns: known, curves: runs } = await ask("curves", { run: names, column: [...wanted, "step"] });
  // Nobody chose the first ones: those of nothing but zeros are left out.
  const isZero = (key) => key !== "held_out_resolved_rate"
    && runs.every((one) => (one.values[key] || []).every((value) => !isNumber(value) || value === 0));
  const shown = wanted.filter((key) => known.includes(key) && (at.has("column") || !isZero(key)));
  const smooth = Number(at.get("smooth")) || 0;
  const from = at.has("from") ? Number(at.get("from")) : -Infinity, to = at.has("to") ? Number(at.get("to")) : Infinity;
  const keep = (keys) => choose({ column: keys.length ? keys : "none" });
  const add = el("select", { id: "add column", "aria-label": "add a quantity", onchange: (event) => keep([...shown, event.target.value]) },
    el("option", { value: "" }, `add a quantity (${known.length}) …`),
    known.filter((key) => key !== "step" && !shown.includes(key)).sort().map((key) => el("option", { value: key }, words(key))));
  const slider = el("input", { type: "range", id: "smooth", min: 0, max: 0.95, step: 0.05, value: smooth, "aria-label": "smoothing",
    onchange: (event) => choose({ smooth: event.target.value === "0" ? null : event.target.value }) });
  const zoomed = at.has("from") ? el("button", { onclick: () => choose({ from: null, to: null }) },
    `steps ${at.get("from")} to ${at.get("to")}: show all`) : null;
  const figures = shown.map((key) => {
    const figure = chart({ ...curveSpec(key, runs, labels, smooth, from, to), onzoom: (low, high) => choose({ from: low, to: high }) });
    figure.querySelector("figcaption").prepend(el("button", { class: "away", "aria-label": `remove ${words(key)}`,
      onclick: () => keep(shown.filter((other) => other !== key)) }, "×"));
    return figure;
  });
  return el("div", {}, el("div", { class: "controls" }, add, el("label", {}, "smoothing ", slider), zoomed),
    el("div", { class: "charts" }, figures));
}

function curveSpec(key, runs, labels, smooth, from, to) {
  const held = key === "held_out_resolved_rate";
  const pairs = runs.map((one) => (held ? one.points.map((point) => [point.step, point.rate])
    : one.steps.map((step, index) => [step, (one.values[key] || [])[index]])).filter(([step]) => step >= from && step <= to));
  const axis = [...new Set(pairs.flat().map(([step]) => step))].sort((a, b) => a - b);
  const series = runs.flatMap((one, index) => {
    const at = new Map(pairs[index]), values = axis.map((step) => at.get(step) ?? null);
    const line = { label: labels.get(one.run) || shortRun(one.run), color: RUN_COLORS[index % RUN_COLORS.length], values, connect: true };
    return smooth && !held ? [{ ...line, faint: true }, { ...line, values: smoothed(values, smooth) }] : [line];
  }).filter((one) => one.values.some(isNumber));
  return { title: words(key), steps: axis.length ? axis : [0], series, format: held || key.endsWith("_rate") ? percent : short };
}

// An exponential mean, corrected for its start: the first value is itself.
function smoothed(values, weight) {
  let sum = 0, mass = 0;
  return values.map((value) => {
    if (!isNumber(value)) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}
