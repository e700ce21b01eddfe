// Fetches the state every two seconds while the page is visible, and draws it.
"use strict";

const EVERY = 2000;
// Okabe and Ito's colours, lightened where dark words stand on them.
const COLOURS = ["#56B4E9", "#E69F00", "#4CC3A0", "#F0E442", "#E58E56", "#DDA3C4", "#A9B4BF", "#8FB7E8"];
let chosen = null;
let studies = [];

const byId = (id) => document.getElementById(id);

function make(tag, words, options = {}) {
  const element = document.createElement(tag);
  if (words !== undefined && words !== null) element.textContent = words;
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  return element;
}

function lasting(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = Math.max(0, units.findIndex(([, size]) => whole >= size));
  let rest = whole;
  const parts = units.slice(whole ? first : 3).slice(0, 2).map(([unit, size]) => {
    const count = Math.floor(rest / size);
    rest %= size;
    return count ? `${count} ${unit}` : "";
  });
  return parts.filter(Boolean).join(" ") || "0 s";
}

// Trials of one number differ by their study, as far as the colours go.
const colour = (trial) => COLOURS[(trial.number + 3 * (studies.indexOf(trial.study) + 1)) % COLOURS.length];
const slots = (count) => `${count} slot${count === 1 ? "" : "s"}`;
const figure = (value) =>
  value === null ? "" : typeof value === "number" ? Number(value.toPrecision(4)).toString() : value;

function tile(trial) {
  const element = make("span", trial.number, { class: "tile" });
  element.style.background = colour(trial);
  return element;
}

function card(study) {
  const element = make("article", null, { class: "card" });
  const link = make("a", study.name, { href: `dashboard/studies/${study.id}` });
  const heading = make("strong");
  heading.append(link);
  const list = make("dl");
  const states = Object.entries(study.states).filter(([, count]) => count);
  const rows = [
    ["deadline", study.left > 0 ? `in ${lasting(study.left)}` : "over"],
    ["best value", study.best === null ? "none yet" : `${figure(study.best.value)} (trial ${study.best.number})`],
    ["slots", `${study.used} of ${study.lent} in use`],
    ["could use", study.could_use === null ? "not said yet" : slots(study.could_use)],
    ["trials", states.map(([state, count]) => `${count} ${state}`).join(", ") || "none alive"],
    ["reports", study.reports],
  ];
  if (study.weight !== 1) rows.push(["weight", study.weight]);
  for (const [name, value] of rows) list.append(make("dt", name), make("dd", value));
  element.append(heading, list);
  return element;
}

function endedCard(study) {
  const element = make("article", null, { class: "card", "data-ended": study.name });
  const heading = make("strong");
  heading.append(make("a", study.name, { href: `allocation/report/${study.id}` }));
  const list = make("dl");
  const states = Object.entries(study.states);
  const best = study.best;
  const rows = [
    ["ended", `${lasting(study.ago)} ago`],
    ["best value", best === null ? "none" : `${figure(best.value)} (trial ${best.number})`],
    ...Object.entries(best === null ? {} : best.params).map(([name, value]) =>
      [name, typeof value === "number" ? figure(value) : String(value)]),
    ["trials", states.map(([state, count]) => `${count} ${state}`).join(", ") || "none"],
  ];
  for (const [name, value] of rows) list.append(make("dt", name), make("dd", value));
  const chart = make("img", null, { src: `allocation/report/${study.id}.svg`, alt: "Best value against time" });
  element.append(heading, list, chart);
  if (study.command !== null) element.append(make("pre", `${study.command}\n${study.loading}`));
  return element;
}

// Drawn again only if something has changed, so that a command can be selected.
let endedBefore = "";
function drawEnded(ended) {
  const known = JSON.stringify(ended.map((study) => ({ ...study, ago: Math.round(study.ago / 60) })));
  if (known === endedBefore) return;
  endedBefore = known;
  byId("ended-part").hidden = ended.length === 0;
  byId("ended").replaceChildren(...ended.map(endedCard));
}

function handover(row) {
  if (row.slot !== undefined) {
    return make("li", `${row.slot} goes to ${row.heir} once trial ${row.number} of ${row.study} has left it`);
  }
  const element = make("li");
  element.append(make("span", lasting(row.since), { class: "ago" }), tile(row));
  const change = row.desired === 0 ? `leaves ${slots(row.granted)}`
    : row.granted === 0 ? `waits for ${slots(row.desired)}`
    : row.granted === row.desired ? "moves to another worker"
    : `${row.granted} → ${slots(row.desired)}`;
  element.append(` of ${row.study}: ${change} — ${row.reason}`);
  return element;
}

function strip(slot, window_) {
  const element = make("div", null, { class: "strip" });
  for (const hold of slot.past) {
    const part = make("span", hold.number);
    part.style.left = `${100 * (1 - hold.from / window_)}%`;
    part.style.width = `${100 * (hold.from - hold.to) / window_}%`;
    part.style.background = colour(hold);
    part.title = `trial ${hold.number} of ${hold.study}, ${lasting(hold.from - hold.to)} shown, until ${hold.to > 0.5 ? `${lasting(hold.to)} ago` : "now"}`;
    element.append(part);
  }
  return element;
}

function slotRow(slot, window_, several) {
  const row = make("div", null, { class: slot.offered ? "slot" : "slot gone", "data-slot": slot.id });
  const owner = several && slot.lent_to !== null ? `, for ${slot.lent_to}` : "";
  const name = make("span", slot.device, { class: "name", title: `${slot.device} on ${slot.host}${owner}` });
  if (several && slot.lent_to !== null) name.append(" ", make("small", `for ${slot.lent_to}`));
  const who = make("span", null, { class: "who" });
  if (slot.number === null) who.append(slot.offered ? "free" : slot.drained ? "drained" : "not offered");
  else who.append(tile(slot), several ? ` ${slot.study}` : "");
  const late = slot.lease !== null && slot.lease < 0;
  const words = slot.lease === null ? "" : late ? `silent for ${lasting(-slot.lease)}` : `lease ${lasting(slot.lease)}`;
  row.append(name, who, strip(slot, window_), make("span", words, { class: late ? "lease late" : "lease" }));
  return row;
}

function slotRows(pool, window_) {
  const several = pool.studies.length > 1;
  const rows = [];
  let host = null;
  for (const slot of [...pool.slots].sort((a, b) => a.host.localeCompare(b.host) || a.id - b.id)) {
    if (slot.host !== host) {
      host = slot.host;
      rows.push(make("div", slot.drained ? `${host}, drained` : host, { class: "host" }));
    }
    rows.push(slotRow(slot, window_, several));
  }
  return rows;
}

// A trial's state, with what a person asks of it.
function stateOf(trial) {
  if (trial.held) return `${trial.state}, held`;
  return trial.pinned === null ? trial.state : `${trial.state}, pinned to ${trial.pinned}`;
}

function trialRow(trial) {
  const row = make("tr", null, { "data-trial": trial.number });
  const number = make("td");
  number.append(tile(trial));
  const size = make("td", null, { class: "number", "data-label": "slots" });
  size.append(String(trial.granted));
  if (trial.granted !== trial.desired) size.append(make("span", ` → ${trial.desired}`, { class: "moving" }));
  row.append(
    number, make("td", trial.study), make("td", stateOf(trial)), size,
    make("td", trial.step, { class: "number", "data-label": "step" }),
    make("td", figure(trial.value), { class: "number", "data-label": "value" }),
    make("td", trial.reason, { class: "why" }),
  );
  return row;
}

function event(row) {
  const element = make("li");
  element.append(make("span", `${lasting(row.ago)} ago`, { class: "ago" }), ` ${row.words}`);
  return element;
}

function choose(pools) {
  if (!pools.some((pool) => pool.name === chosen)) chosen = pools.length ? pools[0].name : null;
  const buttons = pools.length < 2 ? [] : pools.map((pool) => {
    const button = make("button", pool.name, { type: "button", "aria-current": pool.name === chosen });
    button.addEventListener("click", () => { chosen = pool.name; refresh(); });
    return button;
  });
  byId("pools").replaceChildren(...buttons);
  return pools.find((pool) => pool.name === chosen);
}

function draw(state) {
  drawEnded(state.ended);
  const pool = choose(state.pools);
  // Where nothing trains and no worker is, the finished studies are the page.
  const idle = pool !== undefined && !pool.studies.length && !pool.workers && state.ended.length > 0;
  byId("main").hidden = pool === undefined || idle;
  studies = pool === undefined ? [] : pool.studies.map((study) => study.name);
  if (pool === undefined) return state.ended.length ? "nothing trains now" : "no worker has come yet: optuna-deadline worker brings slots";
  const offered = pool.slots.filter((slot) => slot.offered);
  const held = pool.slots.filter((slot) => slot.number !== null).length;
  byId("summary").textContent =
    `Pool ${pool.name}: ${held} of ${slots(offered.length)} in use, ` +
    `${pool.workers} worker${pool.workers === 1 ? "" : "s"}, ` +
    `${pool.studies.length || "no"} stud${pool.studies.length === 1 ? "y" : "ies"} in training.`;
  const fill = (id, rows, otherwise) =>
    byId(id).replaceChildren(...(rows.length ? rows : [make("li", otherwise, { class: "hint" })]));
  byId("studies").replaceChildren(
    ...(pool.studies.length ? pool.studies.map(card) : [make("p", "No study is training in this pool.", { class: "hint" })]));
  fill("handovers", pool.handovers.map(handover), "None: the plan is carried out.");
  byId("slots-hint").textContent =
    `Each strip is the last ${lasting(pool.window)}, now at its right end; the numbers are trials'.`;
  byId("slots").replaceChildren(...slotRows(pool, pool.window));
  byId("trials").replaceChildren(...pool.trials.map(trialRow));
  byId("more").textContent = pool.more_trials ? `and ${pool.more_trials} more` : "";
  fill("events", pool.events.map(event), "Nothing yet.");
  return `${idle ? "nothing trains now, " : ""}as of ${new Date().toLocaleTimeString()}`;
}

function say(words, bad) {
  byId("status").textContent = words;
  byId("status").className = bad ? "bad" : "";
}

async function refresh() {
  try {
    const answer = await fetch("allocation/api/state", { cache: "no-store" });
    const state = await answer.json();
    if (answer.ok) say(draw(state), false);
    else say(state.error || "The server has a problem.", true);
  } catch (error) {
    say("The server does not answer; trying again.", true);
  }
}

async function loop() {
  if (!document.hidden) await refresh();
  setTimeout(loop, EVERY);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
loop();
