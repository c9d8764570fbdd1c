// A run: what the report shows, any quantity, and all its trajectories in a table.

const NOT_DRAWN = ["superseded_replies", "superseded_tokens", "logprob_diff_mean", "staleness_mean"];

async function runPage(at) {
  const run = at.get("run"), payload = await ask("run", { run });
  showRun(payload);
  const written = steps.length ? section("Any quantity", note("Every number of steps.jsonl. Drag over a chart to zoom in."),
    await curves(at, [run], NOT_DRAWN)) : null;
  const parts = runParts(written);
  const doors = [...setLinks(run, payload.sets), traceLink("timeline for ui.perfetto.dev", run)];
  return [crumbs(), parts[0], section("Trajectories", el("p", { class: "doors" }, doors)), ...parts.slice(1)];
}

function setLinks(run, sets) {
  if (!sets.length) return [note("None recorded yet.")];
  const newest = sets.filter((name) => name.startsWith("step")).slice(0, 3);
  const evals = sets.filter((name) => name.startsWith("eval"));
  const some = [...newest, ...evals.slice(0, 1), ...evals.slice(1).slice(-1)];
  return [anchor("all steps and evaluations", { run, list: "1" }, { class: "door" }),
    ...some.map((name) => anchor(setText(name), { run, list: "1", set: name }, { class: "door" }))];
}

function setText(name) {
  const step = Number(name.split("_")[1]);
  if (isEvaluation && name.startsWith("eval")) return "the evaluation";
  return name.startsWith("eval") ? `held-out ${evalTime(step)}` : `step ${step}`;
}

// A file that ui.perfetto.dev draws: of one step, or of all steps where `step` is null.
const traceLink = (text, run, step = null) =>
  el("a", { class: "door", href: `/trace?${address({ run, step }).slice(1)}`, download: true }, text);

const nameOf = (one) => `${one.instance_id} #${one.sample}${one.attempt ? ` try ${one.attempt + 1}` : ""}`;

const LIST_COLUMNS = [
  ["trajectory", "instance_id"], ["status", "status"], ["reward", "reward"], ["advantage", "advantage", "less"],
  ["turns", "num_turns", "less"], ["sampled tokens", "sampled_tokens", "less"], ["agent", "agent_s", "less"],
];
const FILTERS = ["set", "status", "instance", "reward", "text", "sort", "order", "offset"];

let listed = { key: "", rows: [] };  // the last page of the list: j and k go through it from a trajectory as well

const placeOf = (run, one) => ({ run, set: one.set, trajectory: one.trajectory_id });

async function listPage(at) {
  const run = at.get("run");
  const filters = Object.fromEntries(FILTERS.map((key) => [key, at.get(key)]));
  const page = await ask("trajectories", { run, ...filters });
  const set = at.get("set"), offset = Number(at.get("offset")) || 0;
  listed = { key: String(at), rows: [...page.rows] };
  const body = el("tbody", {}, page.rows.map((one) => listRow(run, one, Boolean(set))));
  const head = LIST_COLUMNS.map(([label, key, kind]) => el("th", { class: kind, title: meaningOf(label) }, set ? sortButton(at, label, key) : label));
  const count = set ? `${page.total} of ${page.of} trajectories` : "all steps, the newest first; choose one to sort";
  return [
    crumbs(runLink(run)),
    el("h1", {}, "Trajectories"),
    el("div", { class: "controls block" },
      choice("set", at, "step or evaluation", [["", "all steps and evaluations"], ...page.sets.map((name) => [name, setText(name)])]),
      choice("status", at, "status", [["", "every status"], ...STATUS_ORDER.map((name) =>
        [name, words(name) + (page.statuses ? ` (${page.statuses[name] || 0})` : "")])]),
      choice("reward", at, "reward", [["", "every reward"], ["positive", "reward above 0"], ["zero", "reward 0 or less"], ["none", "no reward"]]),
      searchBox("instance", at, "instance contains …"),
      searchBox("text", at, "anything said contains …")),
    el("p", { class: "note" }, `${count}. Keys: j and k choose, Enter opens, Escape goes up, / searches.`),
    page.rows.length ? el("div", { class: "card" }, el("table", { class: "list-of-all" },
      el("thead", {}, el("tr", {}, head)), body)) : el("p", { class: "reason" }, "No trajectory matches so far."),
    pager(at, page, offset, body, run),
  ];
}

function sortButton(at, label, key) {
  const down = at.get("sort") === key && at.get("order") === "down", up = at.get("sort") === key && !down;
  return el("button", { class: "sort", id: `sort ${key}`, onclick: () => choose({ sort: up ? null : key, order: !up && !down ? "down" : null, offset: null }) },
    label + (down ? " ↓" : up ? " ↑" : ""));
}

// `ofSet`: all rows are of the set that is chosen above the table.
function listRow(run, one, ofSet) {
  return el("tr", { "data-item": `${one.set} ${one.trajectory_id}` },
    el("td", { class: "name" }, anchor(nameOf(one), placeOf(run, one)), ofSet ? null : el("span", { class: "note" }, ` ${setText(one.set)}`)),
    el("td", {}, chip(one.status)), el("td", {}, short(one.reward)), el("td", { class: "less" }, signed(one.advantage)),
    el("td", { class: "less" }, one.num_turns), el("td", { class: "less" }, short(one.sampled_tokens)),
    el("td", { class: "less" }, seconds(one.agent_s)));
}

function pager(at, page, offset, body, run) {
  if (at.get("set")) {
    const links = [];
    if (offset > 0) links.push(el("button", { onclick: () => choose({ offset: Math.max(0, offset - 100) || null }) }, "before"));
    if (offset + page.rows.length < page.total) links.push(el("button", { onclick: () => choose({ offset: offset + page.rows.length }) }, "more"));
    return el("p", { class: "controls" }, links);
  }
  if (!page.cursor) return null;
  let cursor = page.cursor;
  const more = el("button", { onclick: async () => {
    const filters = Object.fromEntries(FILTERS.map((key) => [key, at.get(key)]));
    const next = await ask("trajectories", { run, ...filters, cursor });
    body.append(...next.rows.map((one) => listRow(run, one, false)));
    listed.rows.push(...next.rows);
    cursor = next.cursor;
    if (!cursor) more.remove();
  } }, page.rows.length ? "more" : "look at older steps");
  return el("p", { class: "controls" }, more);
}
