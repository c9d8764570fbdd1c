// The page: header, figures, charts, tables, viewer, configuration.

const data = JSON.parse(document.getElementById("data").textContent);
const columns = data.steps;
const steps = columns.step || [];

function section(title, ...content) {
  return el("section", { class: "block" }, el("h2", {}, title), ...content);
}

function heading() {
  const parts = [el("h1", {}, data.title, " ", el("span", { class: `badge ${data.status.kind}` }, data.status.label)),
    el("p", { class: "note mono" }, data.folder)];
  if (data.status.reason) parts.push(el("p", { class: "reason" }, data.status.reason));
  parts.push(el("dl", { class: "head" }, data.header.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value)))));
  return el("header", { class: "top" }, parts);
}

function tiles() {
  return el("section", { class: "tiles" }, data.figures.map((one) => el("div", { class: "card tile" },
    el("p", { class: "label" }, one.label), el("p", { class: "value" }, one.value), el("p", { class: "note pre" }, one.detail))));
}

const PALETTE = ["--c1", "--c2", "--c3", "--c4", "--c5"];
function series(...pairs) {
  return pairs.filter(([, key]) => columns[key]).map(([label, key], index) => ({ label, color: PALETTE[index], values: columns[key] }));
}

function add(charts, spec) {
  if (steps.length + (spec.points || []).length && spec.series.length + (spec.points || []).length) charts.push(chart({ steps, ...spec }));
}

function charts() {
  const found = [];
  const points = data.evals.filter((one) => isNumber(one.rate)).map((one) => ({ ...one, value: one.rate }));
  const same = (columns.reward_mean || []).every((value, index) => value === (columns.resolved_rate || [])[index]);
  const learning = same ? series(["resolved rate = mean reward (training)", "resolved_rate"])
    : series(["mean reward (training)", "reward_mean"], ["resolved rate (training)", "resolved_rate"]);
  const lowest = Math.min(0, ...(columns.reward_mean || []).filter(isNumber));
  const highest = Math.max(1, ...(columns.reward_mean || []).filter(isNumber));
  add(found, { title: "Reward and resolved rate", note: "held-out points with their 95 % Wilson interval", wide: true, series: learning,
    points, pointsLabel: "resolved rate (held-out)", pointsColor: "--held", domain: [lowest, highest + 0.02] });
  const statuses = Object.keys(data.statuses).sort((a, b) => STATUS_ORDER.indexOf(a) - STATUS_ORDER.indexOf(b));
  add(found, { title: "What became of the trajectories", note: "trajectories of each step by status", wide: true, stacked: true,
    series: statuses.map((status) => ({ label: status.replaceAll("_", " "), color: statusColor(status), values: data.statuses[status] })) });
  add(found, { title: "Throughput", note: "tokens/s while generating", fromZero: true, series: series(["all tokens", "tokens_per_s"], ["sampled by the policy", "sampled_tokens_per_s"]) });
  add(found, { title: "Time of a step", note: "seconds by phase", stacked: true, format: (value) => short(value),
    series: series(["generate", "generate_s"], ["grade", "grade_s"], ["train", "train_s"], ["weight sync", "weight_sync_s"], ["checkpoint", "checkpoint_s"]) });
  add(found, { title: "Response length", note: "mean tokens after the first prompt", fromZero: true, series: series(["tokens", "avg_response_length"]) });
  add(found, { title: "Entropy", note: "nats a token", fromZero: true, series: series(["entropy", "entropy"]) });
  add(found, { title: "Loss", note: "policy objective with its added terms", series: series(["loss", "loss"]) });
  add(found, { title: "Gradient norm", note: "before clipping", fromZero: true, series: series(["gradient norm", "grad_norm"]) });
  add(found, { title: "KL of rollout to trainer", note: "nats a token, engine against trainer, k3 estimate", fromZero: true, series: series(["KL", "kl_rollout"]) });
  add(found, { title: "Clipped tokens", note: "fraction of trained tokens", fromZero: true, series: series(["fraction", "clip_fraction"]) });
  if (!found.length) return section("Training", el("p", { class: "note" }, "No step is finished yet."));
  return section("Training", el("div", { class: "charts" }, found));
}

const fixed = (digits) => (value) => (isNumber(value) ? value.toFixed(digits) : "–");
const STEP_COLUMNS = [["step", "step", fixed(0)], ["reward", "reward_mean", fixed(3)], ["resolved", "resolved_rate", percent], ["tokens/s", "tokens_per_s", fixed(0)],
  ["response", "avg_response_length", fixed(0)], ["no signal", "degenerate_groups", fixed(0)], ["loss", "loss", fixed(4)], ["entropy", "entropy", fixed(3)],
  ["grad norm", "grad_norm", fixed(3)], ["KL rollout", "kl_rollout"], ["generate", "generate_s", seconds], ["train", "train_s", seconds], ["step time", "step_s", seconds]];

function stepTable() {
  const shown = STEP_COLUMNS.filter(([, key]) => columns[key]);
  const rows = steps.map((_, index) => el("tr", {}, shown.map(([, key, format]) => el("td", {}, (format || short)(columns[key][index])))));
  return el("details", { class: "card", open: steps.length <= 30 }, el("summary", {}, `Table of ${steps.length} steps`),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, shown.map(([label]) => el("th", {}, label)))), el("tbody", {}, rows))));
}

const rateOf = (pair) => (pair && pair[1] ? pair[0] / pair[1] : null);
function meter(pair) {
  if (!pair) return el("td", {}, "–");
  const bar = el("i", { class: "fill" });
  bar.style.width = `${100 * (rateOf(pair) || 0)}%`;
  return el("td", {}, el("span", { class: "meter" }, bar), ` ${pair[0]} of ${pair[1]}`);
}

function instanceTable() {
  const gain = (one) => { const [a, b] = [rateOf(one.before), rateOf(one.after)]; return a === null || b === null ? null : b - a; };
  const ordered = [...data.instances].sort((a, b) => (gain(b) ?? -9) - (gain(a) ?? -9) || (rateOf(b.before) ?? 0) - (rateOf(a.before) ?? 0));
  const rows = ordered.map((one) => el("tr", {}, el("td", { class: "name mono" }, one.id), meter(one.before), meter(one.after),
    el("td", { class: gain(one) > 0 ? "good" : gain(one) < 0 ? "bad" : "" }, gain(one) === null ? "–" : `${gain(one) > 0 ? "+" : ""}${(100 * gain(one)).toFixed(0)}`)));
  const better = ordered.filter((one) => gain(one) > 0).length, worse = ordered.filter((one) => gain(one) < 0).length;
  const note = ordered.some((one) => gain(one) !== null) ? `${better} of ${ordered.length} instances better, ${worse} worse` : `${ordered.length} instances`;
  return section("Held-out instances", el("p", { class: "note" }, `${note}. Samples of one instance are not independent, so the intervals above are a little too narrow.`),
    el("div", { class: "card" }, el("div", { class: "scroll" }, el("table", { class: "instances" },
      el("thead", {}, el("tr", {}, ["instance", "before", "after", "points"].map((label) => el("th", {}, label)))), el("tbody", {}, rows)))));
}

function trajectories() {
  if (!data.sets.length) return section("Trajectories", el("p", { class: "note" }, "None recorded yet."));
  const shown = data.sets.reduce((sum, one) => sum + one.trajectories.length, 0), total = data.sets.reduce((sum, one) => sum + one.total, 0);
  const left = steps.length - data.sets.filter((one) => one.kind === "step").length;
  const sample = shown < total || left > 0
    ? `A sample: ${shown.toLocaleString("en")} trajectories, so that this page stays small; ${left > 0 ? `${left} steps are left out, ` : ""}long texts are cut where it says so. The run's folder has them all.`
    : `All ${shown.toLocaleString("en")} trajectories of these sets; long texts are cut where it says so.`;
  return section("Trajectories", el("p", { class: "note" }, sample), viewer(data.sets));
}

const page = document.getElementById("page");
page.replaceChildren(...[heading(), tiles(), charts(), steps.length ? stepTable() : null, data.instances.length ? instanceTable() : null, trajectories(),
  data.config ? section("Configuration", el("details", { class: "card" }, el("summary", {}, "config.yaml"), el("pre", { class: "config" }, data.config))) : null]
  .filter((part) => part !== null));
