// The page of coverage: asks /api/v1/coverage, draws a strip of hours for each target and vantage point.
// All foreign text enters through textContent.
"use strict";

const EVERY_MS = 60000;
const AGAIN_MS = 10000;
const PATIENCE_MS = 20000;
const HOUR_MS = 3600000;
const WORST_FIRST = 3; // causes that a row names

const state = { hours: 24, onlyGaps: false, data: null, chosen: null, focus: null, timer: 0, turn: 0, asking: 0 };
const $ = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// ---- words ---------------------------------------------------------------------------------------------------------

const whole = (count) => count.toLocaleString("en-US").replaceAll(",", " ");
const slots = (count) => `${whole(count)} ${count === 1 ? "slot" : "slots"}`;

function percent(tally) {
  if (!tally.owed) return "–";
  if (tally.measured === tally.owed) return "100 %";
  return `${Math.min(99.9, Math.floor((1000 * tally.measured) / tally.owed) / 10).toFixed(1)} %`; // never rounded up to all
}

function causes(tally) {
  return Object.entries(tally.missed).sort(([, one], [, other]) => other - one);
}

function causeWords(name) {
  return state.data.causes[name]?.short ?? name;
}

function missedWords(tally, most) {
  const all = causes(tally), told = all.slice(0, most).map(([name, count]) => `${whole(count)} (${causeWords(name)})`);
  const rest = all.slice(most).reduce((sum, [, count]) => sum + count, 0);
  return [...told, ...(rest ? [`${whole(rest)} (other causes)`] : [])].join(", ");
}

function hourWords(ms) {
  const begin = new Date(ms), end = new Date(ms + HOUR_MS), time = { hour: "2-digit", minute: "2-digit", hour12: false };
  const day = begin.toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" });
  return `${day}, ${begin.toLocaleTimeString([], time)}–${end.toLocaleTimeString([], time)}`;
}

const shortHour = (ms) => String(new Date(ms).getHours()).padStart(2, "0");

function level(tally) {
  if (!tally || !tally.owed) return ["empty-hour", "·"];
  const share = tally.measured / tally.owed;
  if (share === 1) return ["full", "✓"];
  const number = String(Math.floor(100 * share));
  return share >= 0.9 ? ["most", number] : share > 0 ? ["some", number] : ["zero", "0"];
}

function tallyWords(tally) {
  if (!tally || (!tally.owed && !tally.pending)) return "nothing was planned";
  const parts = [tally.owed ? `${whole(tally.measured)} of ${slots(tally.owed)} measured` : "nothing owed yet"];
  if (tally.owed > tally.measured) parts.push(`missed: ${missedWords(tally, 99)}`);
  if (tally.pending) parts.push(`${whole(tally.pending)} may still run`);
  return parts.join("; ");
}

// ---- asking --------------------------------------------------------------------------------------------------------

async function ask(parameters) {
  const answer = await fetch(`/api/v1/coverage?${new URLSearchParams(parameters)}`, {
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(said.error ?? `The server answers with status ${answer.status}.`);
  return said;
}

async function refresh() {
  clearTimeout(state.timer);
  const turn = ++state.turn;
  if (document.hidden) return;
  let pause = EVERY_MS;
  try {
    const data = await ask({ since: `${state.hours - 1}h`, by: "target,vantage,hour" });
    if (turn !== state.turn) return;
    take(data);
    notice(null);
  } catch (error) {
    if (turn !== state.turn) return;
    pause = AGAIN_MS;
    const why = error instanceof TypeError ? "The server cannot be reached." : error.name === "TimeoutError" ? "The server does not answer in time." : error.message;
    notice(`${why} ${state.data ? "The page shows what was known before." : "Nothing is shown until it is back."}`);
    if (!state.data) tell("none", "Coverage is not known now.");
  }
  state.timer = setTimeout(refresh, pause);
}

function take(data) {
  state.data = data;
  const now = Date.parse(data.until);
  $("updated").replaceChildren("as of ", make("time", { datetime: data.until, text: new Date(now).toLocaleTimeString([], { hour12: false }) }));
  $("simulated").textContent = data.total.simulated ? "What is marked simulated is measured on simulated providers or over simulated distances." : "";
  showSentence(data);
  showLegend();
  showHours();
  if (state.chosen) choose(state.chosen, false);
}

// ---- drawing -------------------------------------------------------------------------------------------------------

function notice(text) {
  $("notices").replaceChildren(...(text ? [make("p", { class: "notice", text })] : []));
}

function tell(kind, text) {
  $("state").className = `state ${kind}`;
  if ($("sentence").textContent !== text) $("sentence").textContent = text;
}

function showSentence(data) {
  const { total } = data;
  if (!total.owed) return tell("none", data.rows.length ? "Nothing is owed yet: the first slots may still run." : "No plan is known yet.");
  const share = total.measured / total.owed;
  const missed = total.owed - total.measured;
  const rest = missed ? ` ${whole(missed)} missed: ${missedWords(total, WORST_FIRST)}.` : " Nothing was missed.";
  const kind = share >= 0.99 ? "good" : share >= 0.9 ? "warn" : "bad";
  tell(kind, `${percent(total)} of ${slots(total.owed)} were measured in the last ${state.hours} hours.${rest}`);
}

function strips() {
  const found = new Map();
  for (const row of state.data.rows) {
    const key = JSON.stringify([row.target, row.vantage]);
    if (!found.has(key)) found.set(key, { target: row.target, vantage: row.vantage, simulated: row.simulated, hours: new Map() });
    found.get(key).hours.set(Date.parse(row.hour), row);
  }
  const all = [...found.values()].map((strip) => ({ ...strip, sum: add([...strip.hours.values()]) }));
  return state.onlyGaps ? all.filter(({ sum }) => sum.measured < sum.owed) : all;
}

function add(tallies) {
  const sum = { owed: 0, measured: 0, pending: 0, missed: {} };
  for (const one of tallies) {
    sum.owed += one.owed;
    sum.measured += one.measured;
    sum.pending += one.pending;
    for (const [name, count] of Object.entries(one.missed)) sum.missed[name] = (sum.missed[name] ?? 0) + count;
  }
  return sum;
}

function showHours() {
  const running = Math.floor((Date.parse(state.data.until) - 1) / HOUR_MS) * HOUR_MS;
  const hours = Array.from({ length: state.hours }, (_, place) => running - (state.hours - 1 - place) * HOUR_MS);
  const all = strips(), table = $("hours"), had = document.activeElement?.dataset?.key;
  const many = state.data.rows.length > 0;
  $("scroll").hidden = !all.length;
  $("empty").hidden = all.length > 0;
  $("empty").textContent = many
    ? `No gaps in the last ${state.hours} hours: every slot owed was measured.`
    : "No plan is known yet. Coverage begins when an agent, or this process, has said what it will measure; nothing before that is owed.";
  table.setAttribute("aria-label", `Coverage of the last ${state.hours} hours`);
  const head = make("tr", {}, make("th", { scope: "col", text: "Target, vantage point" }), make("th", { scope: "col", text: "Measured" }));
  for (const hour of hours) head.append(make("th", { scope: "col", title: hourWords(hour) }, dayOf(hour), shortHour(hour)));
  const rows = all.map((strip) => stripRow(strip, hours, running));
  table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
  const cells = [...table.querySelectorAll(".slot")];
  const first = cells.find((cell) => cell.dataset.key === state.focus) ?? cells[0];
  if (first) first.tabIndex = 0;
  if (had) cells.find((cell) => cell.dataset.key === had)?.focus();
  $("scroll").scrollLeft = $("scroll").scrollWidth;
}

function dayOf(hour) {
  return new Date(hour).getHours() ? null : make("span", { class: "day", text: new Date(hour).toLocaleDateString([], { weekday: "short" }) });
}

function stripRow(strip, hours, running) {
  const name = make("th", { scope: "row" }, document.createTextNode(strip.target), make("span", { class: "quiet", text: `from ${strip.vantage}` }), strip.simulated ? make("span", { class: "pill simulated", text: "simulated" }) : null);
  const words = strip.sum.owed > strip.sum.measured ? missedWords(strip.sum, WORST_FIRST) : strip.sum.owed ? `all ${slots(strip.sum.owed)}` : "nothing owed yet";
  const sum = make("td", { class: "sum" }, make("b", { text: percent(strip.sum) }), make("span", { class: "quiet", text: words }));
  return make("tr", {}, name, sum, ...hours.map((hour) => hourCell(strip, hour, hour === running)));
}

function hourCell(strip, hour, isRunning) {
  const tally = strip.hours.get(hour), [kind, sign] = level(tally), key = JSON.stringify([strip.target, strip.vantage, hour]);
  const words = `${strip.target} from ${strip.vantage}, ${hourWords(hour)}: ${tallyWords(tally)}${isRunning ? "; this hour still runs" : ""}`;
  const pressed = state.chosen?.key === key;
  const button = make("button", { type: "button", class: `slot ${kind}${isRunning ? " running" : ""}`, "data-key": key, title: words, "aria-label": words, "aria-pressed": String(pressed), tabindex: "-1" });
  button.append(make("span", { class: "at", text: shortHour(hour) }), sign);
  button.addEventListener("click", () => choose({ key, target: strip.target, vantage: strip.vantage, hour }, true));
  return make("td", { class: "hour" }, button);
}

function showLegend() {
  const signs = [
    ["full", "✓", "Every slot owed was measured, whether the target answered well or not."],
    ["most", "97", "At least 90 % were measured; the number is per cent."],
    ["some", "42", "Less than 90 %."],
    ["zero", "0", "None was measured."],
    ["empty-hour", "·", "Nothing was planned."],
    ["full running", "✓", "The hour still runs: slots up to now."],
  ];
  if ($("legend").childElementCount) return;
  $("legend").replaceChildren(...signs.map(([kind, sign, words]) => make("div", {}, make("dt", {}, make("span", { class: `slot ${kind}`, text: sign })), make("dd", { text: words }))));
}

// ---- one hour ------------------------------------------------------------------------------------------------------

async function choose(chosen, byHand) {
  state.chosen = chosen;
  state.focus = chosen.key;
  for (const cell of document.querySelectorAll(".slot[data-key]")) {
    cell.setAttribute("aria-pressed", String(cell.dataset.key === chosen.key));
    cell.tabIndex = cell.dataset.key === chosen.key ? 0 : -1;
  }
  const turn = ++state.asking;
  const range = { since: new Date(chosen.hour).toISOString(), until: new Date(chosen.hour + HOUR_MS).toISOString(), vantage: chosen.vantage, target: chosen.target };
  $("detail").hidden = false;
  $("chosen").textContent = `${chosen.target} from ${chosen.vantage}, ${hourWords(chosen.hour)}`;
  if (byHand) $("told").replaceChildren(make("p", { class: "quiet", text: "Loading this hour." }));
  try {
    const data = await ask({ ...range, by: "probe" });
    if (turn === state.asking) showDetail(data, range);
  } catch (error) {
    if (turn === state.asking) $("told").replaceChildren(make("p", { text: `This hour cannot be shown: ${error.message}` }));
  }
  if (byHand) $("detail").scrollIntoView({ block: "nearest" });
}

function showDetail(data, range) {
  const { total } = data;
  const list = causes(total).map(([name, count]) =>
    make("li", {}, make("b", { text: whole(count) }), make("span", { text: data.causes[name]?.short ?? name }), make("span", { class: "quiet", text: data.causes[name]?.advice ?? "" })),
  );
  const first = total.owed ? `${whole(total.measured)} of ${slots(total.owed)} measured (${percent(total)}).` : total.pending ? "Nothing is owed yet." : "Nothing was planned.";
  const further = [
    total.pending ? `${whole(total.pending)} may still run.` : "",
    total.repeated ? `${whole(total.repeated)} rows repeat a slot, after the agent's clock went back.` : "",
    total.unplanned ? `${whole(total.unplanned)} rows were not planned.` : "",
  ].filter(Boolean).join(" ");
  $("told").replaceChildren(
    make("p", { text: [first, further].filter(Boolean).join(" ") }),
    ...(list.length ? [make("ul", {}, ...list)] : []),
    ...(data.rows.length > 1 ? [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "By probe" }, probeTable(data.rows))] : []),
    make("p", { class: "quiet" }, make("a", { href: `/api/v1/coverage?${new URLSearchParams({ ...range, by: "probe", format: "csv" })}`, text: "this hour as CSV" })),
  );
}

function probeTable(rows) {
  const head = ["Probe", "Owed", "Measured", "Missed"].map((text) => make("th", { scope: "col", text }));
  const body = rows.map((row) => make("tr", {}, make("th", { scope: "row", text: row.probe }), ...[row.owed, row.measured].map((count) => make("td", { text: whole(count) })), make("td", { text: missedWords(row, 99) || "–" })));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

// ---- hands ---------------------------------------------------------------------------------------------------------

function range(hours) {
  state.hours = hours;
  $("day").setAttribute("aria-pressed", String(hours === 24));
  $("two-days").setAttribute("aria-pressed", String(hours === 48));
  refresh();
}

function move(event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest(".slot");
  if (!steps || !cell) return;
  event.preventDefault();
  const rows = [...$("hours").tBodies[0].rows], row = rows.indexOf(cell.closest("tr"));
  const next = rows[row + steps[0]]?.querySelectorAll(".slot")[[...rows[row].querySelectorAll(".slot")].indexOf(cell) + steps[1]];
  if (!next) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  state.focus = next.dataset.key;
  next.focus();
}

$("day").addEventListener("click", () => range(24));
$("two-days").addEventListener("click", () => range(48));
$("gaps").addEventListener("click", () => {
  state.onlyGaps = !state.onlyGaps;
  $("gaps").setAttribute("aria-pressed", String(state.onlyGaps));
  if (state.data) showHours();
});
$("hours").addEventListener("keydown", move);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
