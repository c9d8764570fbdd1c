// Where the page is: the address after # names a run, a set, a trajectory, and all that was chosen. Each part of the
// page is a function from that and from the server's records to nodes. Fresh data is asked for while a run goes on.

const POLL_MS = 1500;

const place = () => new URLSearchParams(location.hash.slice(1));

// The address of `changes` upon `from`; what is null or empty is left out.
function address(changes, from = new URLSearchParams()) {
  const next = new URLSearchParams(from);
  for (const [key, value] of Object.entries(changes)) {
    next.delete(key);
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") next.append(key, one);
    }
  }
  return `#${next}`;
}

const anchor = (text, changes, more = {}) => el("a", { href: address(changes), ...more }, text);

// A change of what is chosen on the same page: no entry in the history for each letter.
function choose(changes) {
  history.replaceState(null, "", address(changes, place()));
  render();
}

async function ask(name, params = {}) {
  const answer = await fetch(`/api/${name}?${address(params).slice(1)}`);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

function crumbs(...parts) {
  const links = [anchor("Runs", {}, { rel: "up" }), ...parts].flatMap((part, index) => (index ? [" › ", part] : [part]));
  return el("nav", { class: "crumbs", "aria-label": "where this is" }, links);
}

const PAGES = [
  ["tokens", tokenPage],
  ["trajectory", trajectoryPage],
  ["group", groupPage],
  ["list", listPage],
  ["run", runPage],
];

// What the run of this page is called, by its model, environment and algorithm.
let shownName = "";

const runLink = (run) => anchor(shownName || shortRun(run), { run }, { title: run });

let turn = 0, shownStamp = null, shownAt = "";

async function render() {
  const at = place(), mine = ++turn;
  const [, page] = PAGES.find(([key]) => at.has(key)) || ["", overviewPage];
  let parts;
  try {
    const { stamp, name, job } = await ask("stamp", { run: at.get("run") });  // before the data: what comes later is news
    shownName = name;
    isEvaluation = job === "eval";
    parts = await page(at);
    if (mine === turn) shownStamp = stamp;
    say(null);
  } catch (error) {
    parts = [crumbs(), el("p", { class: "reason" }, error.message)];
  }
  if (mine !== turn) return;
  document.title = titleOf(at);
  replace(parts, String(at));
  showTurn(at.get("turn"));
}

// The title of the tab: what is shown first, because a narrow tab shows only the beginning.
function titleOf(at) {
  const run = at.get("run");
  if (!run) return "swe_rl runs";
  const parts = [at.get("trajectory"), at.get("group"), at.has("list") ? "trajectories" : null, shownName || shortRun(run)];
  return [...parts.filter(Boolean), "swe_rl"].join(" · ");
}

// An address that names a turn opens there. Fresh data does not scroll back to it.
let shownTurn = null;

function showTurn(index) {
  const wanted = index === null ? null : document.getElementById(`turn-${index}`);
  if (wanted && shownTurn !== location.hash) {
    wanted.classList.add("here");
    wanted.scrollIntoView({ block: "start" });
  }
  if (wanted || index === null) shownTurn = location.hash;
}

// What was typed, opened and scrolled to stays when fresh data is drawn.
function replace(parts, at) {
  const active = document.activeElement, id = active && active.id, from = active && active.selectionStart;
  const details = [...document.querySelectorAll("details")].map((one) => [one.textContent.split("\n")[0].slice(0, 80), one.open]);
  const top = window.scrollY, same = shownAt.split("&")[0] === at.split("&")[0];
  const picked = document.querySelector("[data-picked]");
  showPage(...parts.filter(Boolean));
  for (const one of document.querySelectorAll("details")) {
    const before = details.find(([text]) => text === one.textContent.split("\n")[0].slice(0, 80));
    if (before) one.open = before[1];
  }
  if (picked) pick([...items()].find((one) => one.dataset.item === picked.dataset.item));
  const again = id && document.getElementById(id);
  if (again) {
    again.focus({ preventScroll: true });
    if (typeof from === "number" && again.setSelectionRange && again.type !== "range") again.setSelectionRange(from, from);
  }
  window.scrollTo(0, same && shownAt ? top : 0);
  shownAt = at;
}

function say(text) {
  const news = document.getElementById("news");
  news.hidden = !text;
  news.textContent = text || "";
}

async function poll() {
  try {
    const { stamp } = await ask("stamp", { run: place().get("run") });
    if (shownStamp !== null && stamp !== shownStamp) await render();
    say(null);
  } catch (error) {
    say(error instanceof TypeError ? "job=view has ended: what is shown is no longer fresh." : error.message);
  }
  setTimeout(poll, POLL_MS);
}

// Keys: j and k go through what is listed, Enter opens it, Escape goes up, / searches.
const items = () => document.querySelectorAll("[data-item]");

function pick(item) {
  for (const one of items()) delete one.dataset.picked;
  if (!item) return;
  item.dataset.picked = "1";
  item.scrollIntoView({ block: "nearest" });
}

function step(by) {
  const beside = document.querySelector(by > 0 ? "a[rel=next]" : "a[rel=prev]");
  if (beside) { location.hash = beside.hash; return; }
  const all = [...items()], at = all.findIndex((one) => one.dataset.picked);
  pick(all[Math.max(0, Math.min(all.length - 1, at + by))]);
}

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (typing) { event.target.blur(); return; }
    const ups = [...document.querySelectorAll(".crumbs a")];
    if (ups.length) location.hash = ups[ups.length - 1].hash;
  } else if (!typing && event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  } else if (!typing && event.key === "j") step(1);
  else if (!typing && event.key === "k") step(-1);
  else if (!typing && event.key === "Enter" && event.target.tagName !== "A") {
    const link = document.querySelector("[data-picked] a");
    if (link) location.hash = link.hash;
  }
});

window.addEventListener("hashchange", () => { shownStamp = null; render(); });
render();
poll();
