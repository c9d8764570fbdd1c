// The page: header, figures, charts, tables, viewer, configuration.

let data, columns, steps;

function showRun(payload) {
  data = payload;
  columns = data.steps;
  steps = columns.step || [];
  isEvaluation = data.header.some(([label, value]) => label === "job" && value === "eval");
}

const note = (text) => el("p", { class: "note" }, text);
const section = (title, ...content) => el("section", { class: "block" }, el("h2", {}, title), ...content);

function table(kind, labels, rows) {
  const head = el("thead", {}, el("tr", {}, labels.map((label) => el("th", { title: meaningOf(label) }, label))));
  return scrolling(el("div", { class: "scroll", role: "group", "aria-label": `table of ${kind}` },
    el("table", { class: kind }, head, el("tbody", {}, rows))));
}

function heading() {
  const badge = el("span", { class: `badge ${data.status.kind}` }, data.status.label);
  return el("header", { class: "top" },
    el("h1", {}, data.title, " ", badge),
    el("p", { class: "note mono" }, data.folder),
    data.status.reason ? el("p", { class: "reason" }, data.status.reason) : null,
    facts("head", data.header));
}

function tiles() {
  return el("section", { class: "tiles" }, data.figures.map((one) => el("div", { class: "card tile", title: one.meaning || meaningOf(one.label) },
    el("p", { class: "label" }, one.label),
    el("p", { class: "value" }, one.value),
    el("p", { class: "note pre" }, one.detail))));
}

const PALETTE = ["--c1", "--c2", "--c3", "--c4", "--c5", "--held"];

// A colour belongs to a place in the list, so that it does not move when a column is missing.
function series(...pairs) {
  return pairs.map(([label, key], index) => ({ label, color: PALETTE[index], values: columns[key] }))
    .filter((one) => one.values && one.values.some(isNumber));
}

function learning() {
  const rewards = (columns.reward_mean || []).filter(isNumber);
  const same = (columns.reward_mean || []).every((value, index) => value === (columns.resolved_rate || [])[index]);
  const points = data.evals.filter((one) => isNumber(one.rate)).map((one) => ({ ...one, value: one.rate }));
  return {
    title: "Reward and resolved rate", note: "held-out points with their 95 % interval over instances", wide: true,
    series: same ? series(["resolved rate = mean reward (training)", "resolved_rate"])
      : series(["mean reward (training)", "reward_mean"], ["resolved rate (training)", "resolved_rate"]),
    points, pointsLabel: "resolved rate (held-out)", pointsColor: "--held",
    domain: [Math.min(0, ...rewards), Math.max(1, ...rewards) + 0.02],
  };
}

function outcomes() {
  const statuses = Object.keys(data.statuses).sort((a, b) => STATUS_ORDER.indexOf(a) - STATUS_ORDER.indexOf(b));
  return {
    title: "What became of the trajectories", note: "trajectories of each step by status", wide: true, stacked: true,
    series: statuses.map((status) =>
      ({ label: status.replaceAll("_", " "), color: statusColor(status), values: data.statuses[status] })),
  };
}

// Kinds keep their order of the alphabet, and with it their colours.
function tricks() {
  const kinds = Object.keys(data.cheating).sort();
  return {
    title: "Tricks tried", note: "attempts at a reward without a solution, by kind; none of them counts", wide: true,
    stacked: true, series: kinds.map((kind, index) =>
      ({ label: kind.replaceAll("_", " "), color: PALETTE[index % PALETTE.length], values: data.cheating[kind] })),
  };
}

function single(title, text, key, more = {}) {
  return { title, note: text, series: series([title.toLowerCase(), key]), fromZero: true, ...more };
}

// Groups that flow: lines lie on one another over time unless slow groups starve.
function flowing() {
  const { staleness, trained, begun } = data.flow;
  if (!staleness) return [];
  const pair = (title, key) => ({ title, note: "means of a trajectory; all that is begun is trained, some of it later",
    fromZero: true, series: [["by the step that trained it", trained], ["by the step in whose order it began", begun]]
      .map(([label, values], index) => ({ label, color: PALETTE[index], values: values[key] })) });
  return [
    { title: "Staleness", note: "sampled tokens of each step, by how many steps older their weights were", wide: true,
      stacked: true, series: Object.keys(staleness).map((age, index) =>
        ({ label: age, color: PALETTE[index % PALETTE.length], values: staleness[age] })) },
    pair("Length, trained and begun", "length"),
    pair("Tool time, trained and begun", "tools_s"),
    { title: "Idle", note: "seconds of each step without groups to train, and without any request", fromZero: true,
      series: series(["trainer", "trainer_idle_s"], ["engines", "engines_idle_s"]) },
  ];
}

// A chart of nothing but zeros says so in fewer words. The first one stays: that nothing is resolved has to be seen.
function isFlatZero(spec) {
  if (spec.points) return false;
  return spec.series.every((one) => one.values.every((value) => !isNumber(value) || value === 0));
}

function charts() {
  const specs = [
    learning(),
    outcomes(),
    tricks(),
    { title: "Throughput", note: "while generating; a response has sampled tokens and what tools said", fromZero: true,
      series: series(["response tokens/s", "tokens_per_s"], ["sampled tokens/s", "sampled_tokens_per_s"]) },
    { title: "Time of a step", note: "seconds by phase", stacked: true,
      series: series(["generate", "generate_s"], ["train", "train_s"], ["weight sync", "weight_sync_s"],
        ["checkpoint", "checkpoint_s"], ["think (idle)", "think_s"]) },
    single("Response length", "mean tokens after the first prompt", "avg_response_length"),
    single("Entropy", "nats a token", "entropy"),
    single("Loss", "policy objective with its added terms", "loss", { fromZero: false }),
    single("Held-out loss", "nats a token, of conversations that are held out", "heldout_loss", { fromZero: false }),
    single("Gradient norm", "before clipping", "grad_norm"),
    single("KL of rollout to trainer", "nats a token, engine against trainer, k3 estimate", "kl_rollout"),
    single("Clipped tokens", "fraction of trained tokens", "clip_fraction"),
    single("Values explained", "share of the returns' variance that the critic knew before", "value_explained"),
    single("KL to the teacher", "nats a token, policy against teacher", "teacher_kl"),
    ...flowing(),
  ];
  const known = specs.filter((spec) => (steps.length && spec.series.length) || (spec.points && spec.points.length));
  const drawn = known.filter((spec) => !isFlatZero(spec));
  const left = known.filter(isFlatZero).map((spec) => spec.title.toLowerCase());
  if (!steps.length && data.scores.rows.length) return null;  // an evaluation of its own
  if (!drawn.length) return section("Training", note("No step is finished yet."));
  return section("Training", el("div", { class: "charts" }, drawn.map((spec) => chart({ steps, ...spec }))),
    left.length ? note(`0 in every step, and not drawn: ${left.join(", ")}.`) : null);
}

const fixed = (digits) => (value) => (isNumber(value) ? value.toFixed(digits) : "–");
const STEP_COLUMNS = [
  ["step", "step", fixed(0)], ["reward", "reward_mean", fixed(3)], ["resolved", "resolved_rate", percent],
  ["response tokens/s", "tokens_per_s", fixed(0)], ["response", "avg_response_length", fixed(0)],
  ["no signal", "degenerate_groups", fixed(0)], ["loss", "loss", fixed(4)], ["entropy", "entropy", fixed(3)],
  ["grad norm", "grad_norm", fixed(3)], ["KL rollout", "kl_rollout", short], ["generate", "generate_s", seconds],
  ["train", "train_s", seconds], ["step time", "step_s", seconds],
];

function stepTable() {
  const shown = STEP_COLUMNS.filter(([, key]) => columns[key]);
  const rows = steps.map((_, index) =>
    el("tr", {}, shown.map(([label, key, format]) => el("td", { title: meaningOf(label) }, format(columns[key][index])))));
  return el("details", { class: "card", open: steps.length <= 30 },
    el("summary", {}, steps.length === 1 ? "Table of the step" : `Table of ${steps.length} steps`),
    table("steps", shown.map(([label]) => label), rows));
}

const rateOf = (pair) => (pair && pair[1] ? pair[0] / pair[1] : null);

function gainOf(one) {
  const before = rateOf(one.before), after = rateOf(one.after);
  return before === null || after === null ? null : after - before;
}

function meter(pair) {
  if (!pair) return el("td", {}, "–");
  const bar = el("i", { class: "fill" });
  bar.style.width = `${100 * (rateOf(pair) || 0)}%`;
  return el("td", {}, el("span", { class: "meter" }, bar), ` ${pair[0]} of ${pair[1]}`);
}

function gainCell(gain) {
  if (gain === null) return el("td", {}, "–");
  const kind = gain > 0 ? "good" : gain < 0 ? "bad" : "";
  return el("td", { class: kind }, (gain > 0 ? "+" : "") + (100 * gain).toFixed(0));
}

function scoreTable() {
  const { ks, rows } = data.scores;
  const cells = ([name, ...numbers]) => [el("td", { class: "name" }, name), ...numbers.map((value, place) =>
    el("td", {}, place < 3 ? short(value) : isNumber(value) ? percent(value) : "–"))];
  return section("Repositories", el("div", { class: "card" }, table("steps scores",
    ["repository", "instances", "solved once", "attempts", ...ks.map((k) => `pass@${k}`)],
    rows.map((row) => el("tr", {}, cells(row))))));
}

// One evaluation only: nothing to compare it with.
function solvedTable() {
  const ordered = [...data.instances].sort((a, b) => (rateOf(b.before) ?? 0) - (rateOf(a.before) ?? 0));
  const rows = ordered.map((one) => el("tr", {}, el("td", { class: "name mono" }, one.id), meter(one.before)));
  return section("Instances", el("div", { class: "card" }, table("instances", ["instance", "solved"], rows)));
}

function instanceTable() {
  if (data.scores.rows.length) return solvedTable();
  const ordered = [...data.instances].sort((a, b) =>
    (gainOf(b) ?? -9) - (gainOf(a) ?? -9) || (rateOf(b.before) ?? 0) - (rateOf(a.before) ?? 0));
  const rows = ordered.map((one) =>
    el("tr", {}, el("td", { class: "name mono" }, one.id), meter(one.before), meter(one.after), gainCell(gainOf(one))));
  const gains = ordered.map(gainOf).filter(isNumber);
  const better = gains.filter((gain) => gain > 0).length, worse = gains.filter((gain) => gain < 0).length;
  const counted = gains.length ? `${better} of ${ordered.length} instances better, ${worse} worse. ` : "";
  return section("Held-out instances",
    note(`${counted}The intervals above are over instances; the gain's pairs each instance with itself.`),
    el("div", { class: "card" }, table("instances", ["instance", "before", "after", "points"], rows)));
}

function lossTable() {
  const rows = data.losses.map((one) => el("tr", {}, el("td", {}, one.engine), el("td", {}, seconds(one.at_s)),
    el("td", {}, isNumber(one.away_s) ? seconds(one.away_s) : "not back"), el("td", {}, one.requests),
    el("td", {}, seconds(one.work_s)), el("td", { class: "name why" }, one.reason)));
  return section("Lost engines",
    note("What an engine leaves undone begins anew, on another engine or on the same once it is back."),
    el("div", { class: "card" }, table("losses",
      ["engine", "at", "away for", "requests begun anew", "work lost", "reason"], rows)));
}

function healthTable() {
  const rows = data.health.map((one) => el("tr", {}, el("td", { class: "name" }, one.about),
    el("td", { class: "name why" }, one.value), el("td", { class: "name why" }, one.threshold),
    el("td", { class: "name why" }, one.reason), el("td", { class: "name mono why" }, one.keys.join(", "))));
  return section("Health",
    note("What the figures of the training speak against, the most serious first, and the keys that change it."),
    el("div", { class: "card" }, table("health", ["what", "value", "threshold", "why it matters", "change"], rows)));
}

function trajectories() {
  if (!data.sets.length) return section("Trajectories", note("None recorded yet."));
  const shown = data.sets.reduce((sum, one) => sum + one.trajectories.length, 0);
  const total = data.sets.reduce((sum, one) => sum + one.total, 0);
  const left = steps.length - data.sets.filter((one) => one.kind === "step").length;
  const count = shown.toLocaleString("en");
  const sampled = `A sample of ${count} trajectories, so that this page stays small`
    + `${left > 0 ? `; ${left} steps are left out` : ""}. The run's folder has them all.`;
  const all = `All ${count} trajectories of training and of the held-out evaluations listed.`;
  return section("Trajectories",
    note(`${shown < total || left > 0 ? sampled : all} Long texts are cut where it says so.`),
    el("p", { class: "note" }, "All of them with their prompts, tokens and known fixes: ",
      el("code", {}, `python -m swe_rl job=view job.runs=${data.path || data.folder}`)), viewer(data.sets));
}

// What the agent was asked to do. The link opens while job=view runs at that port of this machine.
function taskCards() {
  if (!(data.tasks || []).length) return null;
  const command = `python -m swe_rl job=view job.runs=${data.path || data.folder} job.port=${data.viewer_port}`;
  const cards = data.tasks.map((one, place) => el("details", { class: "card task", open: place === 0 },
    el("summary", {}, el("span", { class: "mono" }, one.instance_id), " ", chip(one.status),
      el("span", { class: "note" }, ` reward ${short(one.reward)} · ${isEvaluation ? "evaluation" : one.kind === "eval" ? `held-out, ${evalTime(one.step)}` : `training step ${one.step}`}`)),
    el("pre", { class: "config" }, one.text),
    el("p", { class: "note" }, el("a", { href: one.address }, "Open this attempt in the viewer"))));
  return section("Tasks", note("What the agent was asked to do, of a few instances, and what came of an attempt."),
    ...cards, el("p", { class: "note" }, "The links open once you have opened the address that the viewer prints on this machine: ", el("code", {}, command)));
}

function configuration() {
  return section("Configuration", el("details", { class: "card" },
    el("summary", {}, "config.yaml"), scrolling(el("pre", { class: "config" }, data.config))));
}

// `parts`: what comes between the tables and the configuration.
function runParts(...parts) {
  return [heading(), tiles(), (data.health || []).length ? healthTable() : null, charts(),
    data.scores.rows.length ? scoreTable() : null,
    steps.length ? stepTable() : null,
    data.instances.length ? instanceTable() : null,
    data.losses.length ? lossTable() : null,
    ...parts,
    data.config ? configuration() : null].filter(Boolean);
}

// Paper shows what a click would open.
window.addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details:not([open]):has(table)")) {
    one.open = true;
    window.addEventListener("afterprint", () => { one.open = false; }, { once: true });
  }
});

// Whatever was drawn before is gone.
function showPage(...parts) {
  document.getElementById("page").replaceChildren(...parts);
  for (const draw of firstDraws.splice(0)) draw();
}

const embedded = document.getElementById("data");
if (embedded) {
  showRun(JSON.parse(embedded.textContent));
  const kindOf = new Map(data.sets.flatMap((set) => set.trajectories.map((one) => [one, `${set.kind}_${String(set.step).padStart(6, "0")}`])));
  viewerPlace = (one) => `#${new URLSearchParams({ run: data.folder, set: kindOf.get(one), trajectory: one.trajectory_id })}`;
  showPage(...runParts(taskCards(), trajectories()));
}
