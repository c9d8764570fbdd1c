// The trajectory viewer: choose a set, filter, read one attempt as a conversation. Everything that an agent wrote
// is shown through textContent.

const STATUS_ORDER = ["resolved", "unresolved", "empty_patch", "step_limit", "context_overflow", "agent_timeout",
  "format_errors", "agent_crashed", "request_refused", "infra_error", "grade_error", "engine_error"];
const statusColor = (status) => (STATUS_ORDER.includes(status) ? `--s-${status.replaceAll("_", "-")}` : "--s-other");

function chip(status) {
  const mark = el("i", { class: "box" });
  mark.style.background = `var(${statusColor(status)})`;
  return el("span", { class: "chip" }, mark, String(status ?? "unknown").replaceAll("_", " "));
}

const signed = (value) => (isNumber(value) ? (value > 0 ? "+" : "") + short(value) : "–");
const seconds = (value) => (isNumber(value) ? (value < 10 ? value.toFixed(2) : value.toFixed(0)) + " s" : "–");

// The evaluation of step 0 is that before the training.
// An evaluation of its own is before no step.
let isEvaluation = false;

const evalTime = (step) => (step > 0 ? `after step ${step}` : "before step 1");

function setLabel(one, sets) {
  const evals = sets.filter((other) => other.kind === "eval");
  const which = evals.length > 1 ? (one === evals[0] ? ", first" : ", last") : "";
  const name = isEvaluation ? "Evaluation" : one.kind === "eval" ? `Held-out${which} (${evalTime(one.step)})` : `Training step ${one.step}`;
  const shown = one.trajectories.length;
  return `${name}: ${shown < one.total ? `${shown} of ${one.total} shown` : shown}`;
}

function viewer(sets) {
  const state = { set: 0, status: "", text: "", chosen: null, most: 100 };
  const options = el("div", { role: "listbox", "aria-label": "trajectories" }), rest = el("div");
  const list = el("div", { class: "list" }, options, rest);
  const detail = el("article", { class: "detail" });
  const statusChoice = el("select", { "aria-label": "status",
    onchange: (event) => restart({ status: event.target.value }) });
  const setChoice = el("select", { "aria-label": "step or evaluation",
    onchange: (event) => openSet(Number(event.target.value)) },
    sets.map((one, index) => el("option", { value: index }, setLabel(one, sets))));
  const search = el("input", { type: "search", placeholder: "instance contains …", "aria-label": "instance",
    oninput: (event) => restart({ text: event.target.value }) });

  function openSet(index) {
    state.set = index;
    const seen = new Map();
    for (const one of sets[state.set].trajectories) seen.set(one.status, (seen.get(one.status) || 0) + 1);
    statusChoice.replaceChildren(el("option", { value: "" }, "every status"),
      ...[...seen].map(([status, count]) => el("option", { value: status }, `${status} (${count})`)));
    restart({ status: "" });
  }
  function matching() {
    return sets[state.set].trajectories.filter((one) => (!state.status || one.status === state.status)
      && String(one.instance_id).toLowerCase().includes(state.text.toLowerCase()));
  }
  function restart(change) {
    Object.assign(state, change, { most: 100 });
    state.chosen = matching()[0] || null;
    show();
  }
  function choose(one) {
    state.chosen = one;
    show();
    if (detail.offsetTop > list.offsetTop + 40) detail.scrollIntoView({ behavior: "smooth" });
  }
  function more() {
    state.most += 200;
    show();
  }
  function show() {
    const found = matching();
    const rows = found.slice(0, state.most).map((one) => row(one, one === state.chosen, () => choose(one)));
    const left = found.length - state.most;
    const top = list.scrollTop;
    options.replaceChildren(...rows);
    rest.replaceChildren(...(left > 0 ? [el("button", { class: "more", onclick: more }, `show more (${left} left)`)] : []),
      ...(rows.length ? [] : [el("p", { class: "note" }, "No trajectory matches.")]));
    list.scrollTop = top;
    detail.replaceChildren(...(state.chosen ? conversation(state.chosen) : []));
  }
  openSet(0);
  const controls = el("div", { class: "controls" }, setChoice, statusChoice, search);
  return el("div", { class: "viewer" }, controls, list, detail);
}

function row(one, chosen, onclick) {
  return el("button", { class: "row", role: "option", "aria-selected": chosen ? "true" : "false", onclick },
    el("span", { class: "who" }, `${one.instance_id} #${one.sample}${one.attempt ? ` try ${one.attempt + 1}` : ""}`),
    chip(one.status),
    el("span", { class: "facts" }, factsOf(one)));
}

function factsOf(one) {
  const advantage = isNumber(one.advantage) ? ` · advantage ${signed(one.advantage)}` : "";
  return `reward ${short(one.reward)}${advantage} · ${one.num_turns} turn${one.num_turns === 1 ? "" : "s"}`;
}

// `level`: of its heading; patch and tests are one below.
function conversation(one, level = 3) {
  const learning = isNumber(one.advantage)
    ? [["advantage", signed(one.advantage)], ["trained", one.trained ? "yes" : "no"],
      ["in baseline", one.in_baseline ? "yes" : "no"]]
    : [];
  const tokens = (value) => `${short(value)} tokens`;
  const numbers = [["reward", short(one.reward)], ...learning, ["prompt", tokens(one.prompt_tokens)],
    ["sampled", tokens(one.sampled_tokens)], ["response", tokens(one.response_tokens)], ["calls", short(one.num_calls)],
    ["prefix breaks", short(one.prefix_breaks)],
    ...((one.segments || []).length > 1 ? [["segments", one.segments.join(", ")]] : []),
    ...(one.rejected_summaries ? [["rejected summaries", short(one.rejected_summaries)]] : []),
    ...Object.entries(one.times_s).map(([name, value]) => [name, seconds(value)])];
  const parts = [
    el(`h${level}`, {}, `${one.instance_id} #${one.sample} `, chip(one.status)),
    el("p", { class: "note mono" }, one.trajectory_id),
    facts("facts", numbers),
  ];
  if (viewerPlace) parts.push(el("p", { class: "note" }, "Prompt, tokens and known fix: in job=view, at ", el("code", {}, viewerPlace(one))));
  if (one.error) parts.push(el("pre", { class: "error" }, one.error));
  const words = (name) => String(name).replaceAll("_", " ");
  const tried = Object.entries(one.cheating || {}).map(([kind, count]) => `${words(kind)} × ${count}`);
  if (tried.length) parts.push(el("p", { class: "bad" }, `tricks tried: ${tried.join(", ")}`));
  const found = (one.findings || []).map(words);
  if (found.length) parts.push(el("p", { class: "bad" }, `found while grading: ${found.join(", ")}`));
  let previous = -1;
  one.turns.forEach((turn, place) => {
    const index = isNumber(turn.index) ? turn.index : previous + 1;
    const missing = place > 0 ? index - previous - 1 : 0;
    if (missing > 0) parts.push(el("p", { class: "gap" }, `${missing} turns left out to keep this page small`));
    previous = index;
    parts.push(turnView(turn, previous));
  });
  if (!one.turns.length) parts.push(el("p", { class: "note" }, "No turns."));
  parts.push(...failureView(one, level + 1), ...patchesView(one, level + 1), ...testsView(one, level + 1), ...gradeLogView(one));
  return parts;
}

// In the report, this is a function from a trajectory to its address in `job=view`.
let viewerPlace = null;

// Where the page can open at a turn, this is a function from its number to its address.
let turnAddress = null;

// A message that is nothing but a fenced command would be read twice.
function saysOnlyItsCommand(turn) {
  if (!turn.command || !turn.message) return false;
  return turn.message.trim().replace(/^```\w*\n([^]*?)\n?```$/, "$1").trim() === turn.command.trim();
}

function turnView(turn, index) {
  const times = `model ${seconds(turn.completion_s)} · command ${seconds(turn.command_s)}`;
  const name = turnAddress ? el("a", { href: turnAddress(index), title: "a link that opens at this turn" }, `Turn ${index + 1}`) : `Turn ${index + 1}`;
  const parts = [el("header", {}, el("b", {}, name), el("span", { title: "seconds until the reply was there, and until its command had ended" }, times)),
    saysOnlyItsCommand(turn) ? null : el("pre", { class: "said" }, turn.message || "(empty message)")];
  if (turn.summary) parts.push(el("p", { class: "note" }, `a summary for itself, in place of older messages: ${turn.summary.replaceAll("_", " ")}`));
  if (turn.sub_agent) parts.push(el("p", { class: "note" }, `a turn of sub-agent ${turn.sub_agent}, in a conversation of its own`));
  if (turn.format_error) parts.push(el("p", { class: "bad" }, "format error: no command could be read"));
  if (turn.command !== null) parts.push(el("pre", { class: "command" }, turn.command));
  if (turn.observation !== null || isNumber(turn.exit_code)) {
    const kind = turn.exit_code === 0 ? "exit good" : "exit bad";
    const exit = isNumber(turn.exit_code) ? el("span", { class: kind }, `exit ${turn.exit_code}`) : null;
    const shown = (turn.observation || "").trimEnd() || "(no output)";
    parts.push(scrolling(el("div", { class: "answer" }, exit, el("pre", {}, shown))));
  }
  return el("section", { class: "turn", id: `turn-${index}` }, parts);
}

function gradeLogView(one) {
  const whole = one.grade_file ? [el("a", { href: encodeURI(one.grade_file) }, "The log of the tests")] : [];
  if (!one.grade_log) return whole;
  return [el("details", {}, el("summary", {}, "End of the tests' output"), el("pre", {}, one.grade_log)), ...whole];
}

function failureView(one, level) {
  if (!one.failure || one.status === "resolved") return [];
  return [el(`h${level}`, { class: "minor" }, "First failing assertion"), scrolling(el("pre", { class: "error" }, one.failure))];
}

// The known fix stands beside the agent's patch, where it is known.
function patchesView(one, level) {
  if (!one.known_fix) return patchView(one, level);
  return [el("div", { class: "patches" }, el("div", {}, ...patchView(one, level)),
    el("div", {}, el(`h${level}`, { class: "minor" }, "Known fix"), diffView(one.known_fix)))];
}

function patchView(one, level) {
  const title = el(`h${level}`, { class: "minor" }, one.known_fix ? "The agent's patch" : "Patch");
  if (!one.patch) return [title, el("p", { class: "note" }, "Empty: nothing was changed.")];
  return [title, diffView(one.patch)];
}

function diffView(patch) {
  const lines = patch.trimEnd().split("\n").map((text) => {
    const kind = /^(\+\+\+|---|diff |index )/.test(text) ? "file" : text.startsWith("@@") ? "hunk"
      : text.startsWith("+") ? "added" : text.startsWith("-") ? "removed" : "";
    return el("span", { class: kind }, text + "\n");
  });
  return scrolling(el("pre", { class: "diff" }, lines));
}

function testsView(one, level) {
  if (!one.num_tests) return [];
  const rows = one.tests.map(([name, passed]) =>
    el("li", { class: passed ? "good" : "bad" }, el("b", {}, passed ? "pass" : "FAIL"), " ", name));
  const more = one.num_tests - one.tests.length;
  if (more > 0) rows.push(el("li", { class: "note" }, `and ${more} more`));
  return [el(`h${level}`, { class: "minor" }, `Tests: ${one.num_passed} of ${one.num_tests} passed`),
    el("ul", { class: "tests mono" }, rows)];
}
