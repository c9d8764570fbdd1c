// One trajectory: its prompt and conversation, its tokens, and its group side by side.

const MANY_TURNS = 60;

async function neighbours(run, set, id) {
  if (!listed.rows.some((one) => one.trajectory_id === id && one.set === set)) {
    listed = { key: "", rows: (await ask("trajectories", { run, set })).rows };
  }
  const at = listed.rows.findIndex((one) => one.trajectory_id === id && one.set === set);
  const beside = (by, rel, text) => (at >= 0 && listed.rows[at + by]
    ? anchor(text, placeOf(run, listed.rows[at + by]), { class: "door", rel }) : null);
  return [beside(-1, "prev", "← k"), beside(1, "next", "j →")];
}

const listAddress = (run, set) => (listed.key ? Object.fromEntries(new URLSearchParams(listed.key)) : { run, list: "1", set });

async function trajectoryPage(at) {
  const run = at.get("run"), set = at.get("set"), id = at.get("trajectory");
  const one = await ask("trajectory", { run, set, id });
  const beside = await neighbours(run, set, id);
  const prompt = await ask("prompt", { run, set, id }).catch((error) => ({ error: error.message }));
  turnAddress = (index) => address({ run, set, trajectory: id, turn: String(index) });
  const log = one.has_grade_file ? el("a", { class: "door", href: `/grade_log?${address({ run, set, id }).slice(1)}` }, "log of the tests") : null;
  return [
    crumbs(runLink(run), anchor(setText(set), listAddress(run, set))),
    el("p", { class: "doors" }, ...beside, anchor("tokens", { run, set, trajectory: id, tokens: "0" }, { class: "door" }),
      anchor("its group side by side", { run, set, group: one.group_id }, { class: "door" }),
      set.startsWith("step") ? traceLink("timeline of the step", run, Number(set.slice(5))) : null, log),
    el("article", { class: "detail" }, ...conversationWith(promptView(prompt), one)),
  ];
}

// The prompt stands between the facts and the first turn.
function conversationWith(prompt, one) {
  const [title, id, numbers, ...rest] = conversation(one, 1);
  return [title, id, numbers, prompt, ...rest];
}

function promptView(prompt) {
  if (prompt.error) return el("p", { class: "note" }, `What the model read first is not to be shown: ${prompt.error}`);
  const parts = prompt.messages.flatMap((one) => [el("p", { class: "minor" }, el("b", {}, one.role || "text")), el("pre", { class: "said" }, one.text)]);
  const left = prompt.left_out ? note(`${prompt.left_out} more tokens are in the token view.`) : null;
  return el("details", { class: "prompt", open: prompt.tokens < 3000 },
    el("summary", {}, `The issue and the prompt, as the model read them (${short(prompt.tokens)} tokens)`),
    prompt.note ? note(prompt.note) : null, parts, left);
}

// Of sampled tokens: what their colour says.
const TOKEN_COLORS = {
  logprob: { text: "log-probability", legend: () => [["likely", "t0"], ["unlikely", "t4"]],
    kind: (page, index) => `t${isNumber(page.logprobs[index]) ? Math.min(4, Math.floor(-page.logprobs[index] * 1.5)) : 0}` },
  advantage: { text: "advantage", legend: () => [["positive", "t0"], ["none", "t-none"], ["negative", "t4"]],
    kind: (page, index) => (page.advantages[index] > 0 ? "t0" : page.advantages[index] < 0 ? "t4" : "t-none") },
  version: { text: "weight version", kind: (page, index) => `v${page.versions[index] % 4}`,
    legend: (page) => [...new Set(page.versions.filter(isNumber))].map((version) => [`version ${version}`, `v${version % 4}`]) },
};

async function tokenPage(at) {
  const run = at.get("run"), set = at.get("set"), id = at.get("trajectory");
  const by = at.get("by") in TOKEN_COLORS ? at.get("by") : "logprob";
  const page = await ask("tokens", { run, set, id, row: at.get("tokens"), start: at.get("start") });
  const here = { run, set, trajectory: id, tokens: page.row, by: at.get("by") };
  const end = page.start + page.ids.length;
  const rows = page.rows.map((one, index) => anchor(`row ${index}: ${short(one.tokens)} tokens, ${short(one.sampled)} sampled${one.in_loss ? "" : ", not in the loss"}`,
    { ...here, tokens: index }, { class: index === page.row ? "door here" : "door" }));
  const inLoss = page.rows[page.row].in_loss;
  return [
    crumbs(runLink(run), anchor(setText(set), listAddress(run, set)), anchor(id, { run, set, trajectory: id })),
    el("h1", {}, "Tokens"),
    note(`From ${page.source}. ${inLoss ? "Sampled tokens are in the loss." : "This row is not in the loss: it is masked, or nothing in it has an advantage."}`),
    page.note ? note(page.note) : null,
    el("p", { class: "doors" }, rows),
    el("div", { class: "controls" }, choice("by", at, "colour of sampled tokens", Object.entries(TOKEN_COLORS).map(([key, one]) => [key === "logprob" ? "" : key, `colour by ${one.text}`]))),
    el("ul", { class: "legend" }, [["read: the prompt, or what a command said", "t-read"], ...TOKEN_COLORS[by].legend(page)]
      .map(([text, kind]) => el("li", {}, el("span", { class: `token ${kind}` }, "token"), ` ${text}`))),
    el("pre", { class: "card tokens" }, page.ids.map((_, index) => token(page, index, by))),
    el("p", { class: "doors" },
      page.start > 0 ? anchor("← k", { ...here, start: Math.max(0, page.start - page.ids.length) }, { class: "door", rel: "prev" }) : null,
      `tokens ${page.start} to ${end - 1} of ${page.total}`,
      end < page.total ? anchor("j →", { ...here, start: end }, { class: "door", rel: "next" }) : null),
  ];
}

function token(page, index, by) {
  const sampled = page.sampled[index], logprob = page.logprobs[index];
  const kind = sampled ? TOKEN_COLORS[by].kind(page, index) : "t-read";
  const rows = [["id", page.ids[index]], ["place", page.start + index], ["in the loss", sampled && page.rows[page.row].in_loss ? "yes" : "no"]];
  if (sampled) {
    rows.push(["log-probability", isNumber(logprob) ? logprob.toFixed(4) : "–"],
      ["probability", isNumber(logprob) ? percent(Math.exp(logprob)) : "–"],
      ["advantage", signed(page.advantages[index])], ["weight version", page.versions[index] ?? "–"]);
  }
  const shown = page.texts[index];
  const show = (event) => tip(event, JSON.stringify(shown), rows.map(([label, value]) => [label, String(value), "--line"]));
  return el("span", { class: `token ${kind}`, onpointerenter: show, onpointerleave: () => tip(null) }, shown);
}

async function groupPage(at) {
  const run = at.get("run"), set = at.get("set"), id = at.get("group");
  const { trajectories: all } = await ask("group", { run, set, id });
  const rewards = all.map((one) => one.reward).filter(isNumber);
  const mean = rewards.length ? rewards.reduce((sum, value) => sum + value, 0) / rewards.length : null;
  return [
    crumbs(runLink(run), anchor(setText(set), listAddress(run, set))),
    el("h1", {}, all[0].instance_id), note(`${all.length} trajectories of one group, ${setText(set)}; mean reward ${short(mean)}`),
    el("div", { class: "side-by-side" }, all.map((one) => groupColumn(run, set, one))),
  ];
}

function groupColumn(run, set, one) {
  const name = `#${one.sample}${one.attempt ? ` try ${one.attempt + 1}` : ""}`;
  const turns = one.turns.slice(0, MANY_TURNS).map((turn) => {
    const code = isNumber(turn.exit_code) ? el("span", { class: turn.exit_code === 0 ? "exit good" : "exit bad" }, `exit ${turn.exit_code}`) : null;
    return el("li", {}, code, scrolling(el("pre", {}, turn.command ?? turn.message ?? "(empty message)")));
  });
  const left = one.turns.length - turns.length;
  return el("section", { class: "card", "data-item": one.trajectory_id },
    el("h2", {}, anchor(name, placeOf(run, { ...one, set })), " ", chip(one.status)),
    el("p", { class: "note" }, factsOf(one)),
    one.error ? el("pre", { class: "error" }, one.error) : null,
    el("ol", { class: "commands" }, turns), left > 0 ? note(`and ${left} more turns`) : null,
    ...patchView(one, 3), ...testsView(one, 3));
}
