// The live page. Polls /api/live, draws what it says. All foreign text enters through textContent.
"use strict";

const POLL_MS = 2000;
const PATIENCE_MS = 8000;
const SVG = "http://www.w3.org/2000/svg";
const PHASES = {
  resolve: ["Resolve", "The name is looked up in DNS."],
  connect: ["Connect", "A TCP connection is opened: one round trip to the server or its edge."],
  tls: ["TLS", "The encryption is agreed on and the certificate checked."],
  send: ["Send", "The request is handed to the network."],
  wait: ["Wait", "From the request's end to the answer's first bytes: the road behind the edge, queues, often the model itself."],
  first_token: ["Until first token", "From the answer's headers to the first generated token."],
  generate: ["Generate", "From the first token to the end of the answer."],
};

const state = { etag: null, data: null, chosen: null, onlyTrouble: false, paused: false, skew: 0, lastGood: 0, trouble: null, page: null, timer: 0, turn: 0, probes: 1 };
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

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// ---- words ---------------------------------------------------------------------------------------------------------

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 0.0001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  for (const [unit, size, small, part] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
    if (whole < size) continue;
    const rest = Math.floor((whole % size) / part);
    return rest ? `${Math.floor(whole / size)} ${unit} ${rest} ${small}` : `${Math.floor(whole / size)} ${unit}`;
  }
  return `${whole} s`;
}

const serverNow = () => Date.now() + state.skew;

function ago(at) {
  const seconds = Math.max(0, Math.round((serverNow() - Date.parse(at)) / 1000));
  if (seconds < 2) return "just now";
  const [, size, unit] = [[0, 1, "s"], [60, 60, "min"], [3600, 3600, "h"], [86400, 86400, "d"]].findLast(([from]) => seconds >= from);
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

function until(at) {
  return duration(Math.max(0, Math.round((Date.parse(at) - serverNow()) / 1000))).replace(/^0(\.0)? ms$/, "0 s").replace(/\.\d+ s$/, " s");
}

function clockTime(at) {
  const moment = new Date(at), today = new Date(serverNow()).toDateString() === moment.toDateString();
  const time = moment.toLocaleTimeString([], { hour12: false });
  return today ? time : `${moment.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

function timeNode(at, kind) {
  const words = { at: clockTime, ago, until }[kind];
  return make("time", { datetime: at, title: `${new Date(at).toLocaleString()} (${at})`, "data-kind": kind, text: words(at) });
}

function sentence(parts) {
  return parts.map((part) => {
    if (typeof part === "string") return document.createTextNode(part);
    return part.at ? timeNode(part.at, "at") : timeNode(part.until, "until");
  });
}

function tick() {
  for (const node of document.querySelectorAll("time[data-kind=ago]")) node.textContent = ago(node.dateTime);
  for (const node of document.querySelectorAll("time[data-kind=until]")) node.textContent = until(node.dateTime);
  showFreshness();
}

// ---- asking --------------------------------------------------------------------------------------------------------

async function poll() {
  clearTimeout(state.timer);
  const turn = ++state.turn; // an answer to an earlier choice that comes late is dropped
  if (state.paused || document.hidden) return;
  const query = `?${new URLSearchParams({ ...state.chosen, ...(state.onlyTrouble ? { trouble: "true" } : {}) })}`;
  try {
    const answer = await fetch(`/api/live${query}`, {
      headers: state.etag ? { "If-None-Match": state.etag } : {},
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const data = answer.status === 200 ? await answer.json() : null;
    if (turn !== state.turn) return;
    if (answer.status !== 304 && !answer.ok) throw new Error(`it answers with status ${answer.status}`);
    const date = Date.parse(answer.headers.get("date"));
    if (!Number.isNaN(date) && Math.abs(date - serverNow()) > 2500) state.skew = date - Date.now();
    if (data) take(data, answer.headers.get("etag"));
    state.lastGood = Date.now();
    state.trouble = null;
  } catch (error) {
    if (turn !== state.turn) return;
    state.trouble = error instanceof TypeError ? "it cannot be reached" : error.name === "TimeoutError" ? "it does not answer in time" : error.message;
  }
  showFreshness();
  showNotices();
  state.timer = setTimeout(poll, POLL_MS);
}

function take(data, etag) {
  state.page ??= data.page;
  state.data = data;
  state.etag = etag;
  state.probes = new Set(data.cells.map((cell) => cell.probe)).size;
  showState(data);
  showMatrix(data);
  showRows(data);
  showFooter(data);
}

// ---- state and notices -----------------------------------------------------------------------------------------------

function showState(data) {
  $("state").className = `state ${data.level}`;
  const text = JSON.stringify(data.sentence);
  if ($("sentence").dataset.shown !== text) {
    $("sentence").dataset.shown = text;
    $("sentence").replaceChildren(...sentence(data.sentence));
  }
  const mark = { good: "✓", warn: "▲", bad: "✕", none: "…" }[data.level];
  document.title = `${mark} First Token`;
}

function showNotices() {
  const notices = [...(state.data ? state.data.notices : [])];
  if (state.trouble) {
    const seen = state.lastGood ? [" What you see is from ", { at: new Date(state.lastGood + state.skew).toISOString() }, "."] : [];
    notices.unshift([`The server of this page is lost: ${state.trouble}. Trying again every ${POLL_MS / 1000} s.`, ...seen]);
  }
  const outdated = state.data && state.page !== state.data.page;
  const shown = JSON.stringify([notices, outdated]);
  if ($("notices").dataset.shown === shown) return;
  $("notices").dataset.shown = shown;
  $("notices").replaceChildren(...notices.map((parts) => make("p", { class: "notice" }, ...sentence(parts))));
  if (outdated) $("notices").append(reloadNotice());
  document.body.classList.toggle("stale", Boolean(state.trouble || state.data?.stale));
}

function reloadNotice() {
  const button = make("button", { type: "button", text: "Load it" });
  button.addEventListener("click", () => location.reload());
  return make("p", { class: "notice" }, "The server has a newer version of this page. ", button);
}

function showFreshness() {
  if (state.paused) $("updated").textContent = "paused";
  else if (state.lastGood) $("updated").textContent = state.trouble ? "not updated" : "updates every 2 s";
}

// ---- matrix ----------------------------------------------------------------------------------------------------------

const cellButtons = new Map();

function showMatrix(data) {
  const cells = Map.groupBy ? Map.groupBy(data.cells, (cell) => JSON.stringify([cell.target, cell.vantage])) : grouped(data.cells);
  const layout = JSON.stringify([data.vantages, data.targets, [...cells.keys()], data.cells.map((cell) => cell.probe)]);
  if ($("matrix").dataset.layout !== layout) {
    $("matrix").dataset.layout = layout;
    cellButtons.clear();
    $("matrix").replaceChildren(matrixHead(data), make("tbody", { role: "rowgroup" }, ...data.targets.map((target) => matrixRow(data, target, cells))));
  }
  for (const cell of data.cells) fillCell(cellButtons.get(keyOf(cell)), cell);
  $("matrix").hidden = data.cells.length === 0;
}

function grouped(cells) {
  const groups = new Map();
  for (const cell of cells) {
    const key = JSON.stringify([cell.target, cell.vantage]);
    groups.set(key, [...(groups.get(key) || []), cell]);
  }
  return groups;
}

const keyOf = (one) => JSON.stringify([one.vantage, one.target, one.probe]);

function matrixHead(data) {
  const heads = data.vantages.map((vantage) =>
    make("th", { scope: "col", role: "columnheader" }, make("span", { text: vantage.name }), " ", simulatedBadge(vantage.simulated),
      make("span", { class: "quiet", text: [vantage.where, vantage.network].filter(Boolean).join(" · ") }), lineNode(vantage.line)));
  return make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, make("th", { scope: "col", role: "columnheader", text: "Target" }), ...heads));
}

function lineNode(line) {
  if (!line) return null;
  const words = { up: "line ok", degraded: "line degraded", down: "line down" }[line.state] || line.state;
  const since = line.since ? [" since ", timeNode(line.since, "at")] : [];
  const title = "What this vantage point sees of neutral endpoints, which have nothing to do with any provider";
  return make("span", { class: `line ${line.state}`, title }, words, ...since, line.why ? `: ${line.why}` : "");
}

function matrixRow(data, target, cells) {
  const from = target.served_from ? ` · served from ${target.served_from}` : "";
  const head = make("th", { scope: "row", role: "rowheader" }, make("span", { text: target.name }), " ", simulatedBadge(target.simulated),
    make("span", { class: "quiet", text: `${target.provider} · ${target.model}${from}` }));
  const places = data.vantages.map((vantage) => {
    const several = cells.get(JSON.stringify([target.name, vantage.name])) || [];
    if (!several.length) return make("td", { role: "cell" }, make("div", { class: "nothing", text: `not probed from ${vantage.name}` }));
    return make("td", { role: "cell" }, ...several.map((cell) => cellButton(cell)));
  });
  return make("tr", { role: "row" }, head, ...places);
}

function cellButton(cell) {
  const button = make("button", { type: "button", class: "cell", "aria-pressed": "false" });
  button.addEventListener("click", () => choose(cell));
  cellButtons.set(keyOf(cell), button);
  return button;
}

function fillCell(button, cell) {
  const pressed = String(isChosen(cell)), shown = JSON.stringify(cell) + pressed;
  if (button.dataset.shown === shown) return;
  button.dataset.shown = shown;
  button.setAttribute("aria-pressed", pressed);
  const median = cell.median_ttft === null ? "" : `median ${duration(cell.median_ttft)}`;
  const old = ["failed", "silent"].includes(cell.state) ? "value old" : "value";
  button.replaceChildren(...[
    make("span", { class: "where" }, cell.vantage, " ", simulatedBadge(state.data.vantages.some((one) => one.name === cell.vantage && one.simulated))),
    make("span", { class: "top" },
      make("span", {}, make("span", { class: old, text: duration(cell.last_ttft) }), make("span", { class: "quiet", text: median })),
      sparkline(cell)),
    make("span", { class: "words quiet" }, make("span", { class: `pill ${cell.state}`, text: cell.words }), " ",
      cell.doubt ? make("span", { class: "pill small doubt", text: cell.doubt }) : "", " ", ...cellTimes(cell)),
    button.parentElement.children.length > 1 ? make("span", { class: "quiet", text: `probe ${cell.probe}` }) : null].filter(Boolean));
}

function cellTimes(cell) {
  if (cell.state === "waiting") return cell.next_at ? ["first slot in ", timeNode(cell.next_at, "until")] : [];
  if (cell.state === "ok") return [timeNode(cell.last_at, "ago")];
  return [cell.since === cell.last_at ? "at " : cell.since_at_least ? "since at least " : "since ", timeNode(cell.since, "at")];
}

function sparkline(cell) {
  const width = 112, height = 34, values = cell.points.map(([ttft]) => ttft).filter((ttft) => ttft !== null);
  const top = Math.max(...values, (cell.median_ttft || 0) * 1.6, 0.001), step = width / (Math.max(cell.points.length, 12) - 1);
  const x = (i) => width - (cell.points.length - 1 - i) * step, y = (ttft) => height - 3 - (ttft / top) * (height - 6);
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": sparkWords(cell, values) });
  if (cell.median_ttft) picture.append(draw("line", { class: "median", x1: 0, x2: width, y1: y(cell.median_ttft), y2: y(cell.median_ttft) }));
  let path = "", pen = "M";
  cell.points.forEach(([ttft], i) => { if (ttft === null) { pen = "M"; } else { path += `${pen}${x(i).toFixed(1)} ${y(ttft).toFixed(1)}`; pen = "L"; } });
  picture.append(draw("path", { d: path || "M0 0" }));
  cell.points.forEach(([ttft, mood], i) => picture.append(...sparkMark(mood, x(i), ttft === null ? null : y(ttft), height, i === cell.points.length - 1)));
  return picture;
}

function sparkMark(mood, x, y, height, last) {
  if (mood === "failed") return [draw("path", { class: "failed", d: `M${x - 2.5} ${height - 6}l5 5m0 -5l-5 5` })];
  if (mood === "missed") return [draw("line", { class: "missed", x1: x - 2, x2: x + 2, y1: height - 3, y2: height - 3 })];
  if (y === null) return [];
  if (mood === "slow") return [draw("path", { class: "slow", d: `M${x} ${y - 4}l4 7h-8z` })];
  if (mood === "cold") return [draw("path", { class: "cold", d: `M${x} ${y - 5}l4 5l-4 5l-4 -5z` })];
  if (mood === "doubt") return [draw("circle", { class: "doubt", cx: x, cy: y, r: 2 })];
  return last ? [draw("circle", { class: "dot", cx: x, cy: y, r: 2.4 })] : [];
}

function sparkWords(cell, values) {
  const count = (mood) => cell.points.filter(([, one]) => one === mood).length;
  if (!cell.points.length) return "no attempts yet";
  const range = values.length ? `first token between ${duration(Math.min(...values))} and ${duration(Math.max(...values))}` : "no first token";
  const odd = ["failed", "cold", "slow", "missed", "doubt"].filter(count).map((mood) => `${count(mood)} ${mood}`);
  return [`last ${cell.points.length} attempts: ${range}`, ...odd].join(", ");
}

function simulatedBadge(simulated) {
  return simulated ? make("span", { class: "pill simulated", text: "simulated" }) : null;
}

// ---- choosing a series -------------------------------------------------------------------------------------------------

const isChosen = (cell) => state.chosen !== null && keyOf(cell) === keyOf(state.chosen);

function choose(cell) {
  state.chosen = cell === null || isChosen(cell) ? null : { vantage: cell.vantage, target: cell.target, probe: cell.probe };
  state.etag = null;
  showNarrowed();
  if (state.data) showMatrix(state.data);
  poll();
}

function showNarrowed() {
  if (state.chosen === null) {
    $("narrowed").textContent = "Newest first, all series.";
    return;
  }
  const button = make("button", { type: "button", text: "Show all" });
  button.addEventListener("click", () => choose(null));
  $("narrowed").replaceChildren(`Newest first, only ${state.chosen.target} from ${state.chosen.vantage}, probe ${state.chosen.probe}. `, button);
}

// ---- attempts ------------------------------------------------------------------------------------------------------------

const rows = new Map();

function showRows(data) {
  const list = $("rows"), known = new Set(data.attempts.map((one) => one.id)), first = rows.size === 0;
  for (const [id, item] of rows) if (!known.has(id)) { item.remove(); rows.delete(id); }
  let before = list.firstChild;
  for (const one of data.attempts) {
    const text = JSON.stringify(one);
    let item = rows.get(one.id);
    if (!item || item.dataset.shown !== text) {
      const old = item;
      item = replaceRow(old, one, text, first);
      if (old && old === before) before = item; // a verdict came: the row has changed in its place
    }
    if (item === before) before = before.nextSibling;
    else list.insertBefore(item, before);
  }
  showScale(data.attempts);
  showEmpty(data);
}

function replaceRow(old, one, text, first) {
  const item = make("li", { class: first || old ? null : "fresh", "data-shown": text }, attempt(one, old ? old.firstChild.open : false));
  rows.set(one.id, item);
  if (old) old.replaceWith(item);
  return item;
}

function attempt(one, open) {
  const details = make("details", { class: "attempt", open }, summary(one));
  const fill = () => { if (details.open && details.children.length === 1) details.append(more(one)); };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

function summary(one) {
  return make("summary", {},
    make("span", { class: "when" }, timeNode(one.at, "at"), make("span", { class: "quiet" }, timeNode(one.at, "ago"))),
    make("span", { class: "who" }, make("b", { text: one.target }), " from ", one.vantage, make("span", { class: "quiet" }, simulatedBadge(one.simulated), asked(one))),
    track(one),
    make("span", { class: "number main" }, make("span", { class: "unit", text: "first token " }), duration(one.ttft)),
    make("span", { class: "number" }, make("span", { class: "unit", text: one.total === null ? "" : "total " }), lasted(one)),
    badges(one),
    trouble(one));
}

function lasted(one) {
  if (one.total !== null || !one.lasted) return duration(one.total);
  return make("span", { class: "quiet", text: `ended at ${duration(one.lasted)}` });
}

function asked(one) {
  const idle = one.idle === null || one.idle < 1 ? "" : `after ${duration(one.idle)} idle`;
  return [one.simulated ? " " : "", [state.probes > 1 ? one.probe : "", idle].filter(Boolean).join(" · ")].join("");
}

function track(one) {
  const line = make("span", { class: "track", role: "img", "aria-label": trackWords(one) });
  for (const bar of one.bars) {
    const piece = make("i", { class: bar.died ? `${bar.name} died` : bar.name, title: `${PHASES[bar.name][0]}: ${duration(bar.seconds)}${bar.died ? ", ended here" : ""}` });
    piece.style.setProperty("--s", bar.start);
    piece.style.setProperty("--d", bar.seconds);
    line.append(piece);
  }
  if (one.median !== null && ["slow", "cold"].includes(one.state)) {
    const usual = make("i", { class: "usual", title: `recent median: ${duration(one.median)}` });
    usual.style.setProperty("--s", one.median);
    line.append(usual);
  }
  line.append(make("i", { class: "cut", hidden: true, title: "longer than the scale", text: "»" }));
  return line;
}

const trackWords = (one) => one.bars.map((bar) => `${PHASES[bar.name][0]} ${duration(bar.seconds)}${bar.died ? " and ended there" : ""}`).join(", ") || "nothing was measured";

function badges(one) {
  const list = make("span", { class: "badges" });
  const add = (kind, text, title) => list.append(make("span", { class: `pill ${kind}`, text, title }));
  if (one.state === "slow") add("slow", `slow first token: usually ${duration(one.median)}`, "more than three times the recent median of this series");
  const verdict = one.verdict;
  if (verdict && verdict.kind === "cold") add("cold", coldWords(one), verdict.why);
  else if (verdict && one.state === "slow") add("plain", `${verdict.kind === "warm" ? "no cold start" : "cold start unclear"}: ${verdict.why}`);
  if (one.confirming) add("plain", "second try, to compare");
  for (const doubt of one.doubts) add("doubt", doubt.name.replaceAll("_", " "), doubt.text);
  return list;
}

function coldWords(one) {
  const idle = one.idle === null ? "" : ` after ${duration(one.idle)} idle`;
  return one.verdict.penalty === null ? `cold start${idle}` : `cold start${idle}: ${duration(one.verdict.penalty)} more than warm`;
}

function trouble(one) {
  if (one.missed) return make("span", { class: "trouble" }, make("span", { class: "pill missed", text: "not measured" }), ` ${one.missed}`);
  if (!one.failure) return null;
  const advice = one.failure.advice ? make("span", { class: "advice", text: ` ${one.failure.advice}` }) : null;
  const name = one.failure.kind.replaceAll("_", " "), phase = one.failure.phase;
  const kind = name.startsWith(phase) ? name : `${name} in ${phase}`;
  return make("span", { class: "trouble" }, make("span", { class: "pill failed", text: kind }), " ", make("span", { text: one.failure.text }), advice);
}

function more(one) {
  const phases = one.bars.map((bar) => make("tr", {},
    make("th", { scope: "row" }, make("span", { class: `swatch ${bar.name}` }), PHASES[bar.name][0]),
    make("td", { text: duration(bar.seconds) + (bar.died ? " (ended here)" : "") })));
  const idle = one.confirming ? [["Sent", "confirming attempt, sent at once after the first"]] : one.idle === null ? [] : [["Idle before", one.idle ? `${duration(one.idle)}: nobody had asked this target for that long` : "not idle: another attempt was still running"]];
  const verdict = one.verdict ? [["Model", `${one.verdict.kind}: ${one.verdict.why}`]] : [];
  const told = one.facts.filter(([label]) => !(one.confirming && label === "Planned for"));
  const facts = [...idle, ...verdict, ...told].map(([label, text]) => make("tr", {}, make("th", { scope: "row", text: label }), make("td", label === "Planned for" ? {} : { text }, label === "Planned for" ? timeNode(text, "at") : null)));
  const doubts = one.doubts.map((doubt) => make("li", { text: `${doubt.name.replaceAll("_", " ")}: ${doubt.text}` }));
  return make("div", { class: "more" },
    make("table", {}, make("tbody", {}, ...phases)),
    make("table", {}, make("tbody", {}, ...facts)),
    doubts.length ? make("div", {}, make("p", { text: "Doubts about this measurement:" }), make("ul", {}, ...doubts)) : null);
}

function showScale(attempts) {
  const ended = attempts.filter((one) => one.ttft !== null && !one.failure), measured = ended.length ? ended : attempts;
  const lengths = measured.map((one) => one.lasted).filter((lasted) => lasted > 0).sort((a, b) => a - b);
  const usual = lengths.length ? lengths[Math.floor((lengths.length - 1) * 0.85)] : 1;
  const longest = lengths.at(-1) || 1, scale = niceScale(longest <= usual * 2 ? longest : usual * 1.15);
  $("rows").style.setProperty("--scale", scale);
  for (const one of attempts) rows.get(one.id).querySelector(".cut").hidden = one.lasted <= scale;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const label = make("span", { text: share ? duration(scale * share).replace(/(\.\d*?)0+ s$/, "$1 s").replace(/\. s$/, " s") : "0" });
    label.style.left = `${share * 100}%`;
    return label;
  });
  $("axis").replaceChildren(make("span"), make("span"), make("span", { class: "ticks" }, ...ticks), make("span", { class: "number", text: "first token" }), make("span", { class: "number", text: "total" }));
  $("axis").hidden = attempts.length === 0;
}

function niceScale(seconds) {
  const size = 10 ** Math.floor(Math.log10(seconds));
  return size * [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10].find((step) => step * size >= seconds * 0.999);
}

function showEmpty(data) {
  $("empty").hidden = data.attempts.length > 0;
  if (data.attempts.length) return;
  if (data.cells.some((cell) => cell.last_at)) {
    $("empty").textContent = state.onlyTrouble ? "Nothing was cold, slow, failed, missed or doubtful lately." : "No attempt lately.";
    return;
  }
  const due = data.cells.map((cell) => cell.next_at).filter(Boolean).sort()[0];
  $("empty").replaceChildren("No attempt yet", ...(due ? ["; the first slots are due in ", timeNode(due, "until")] : []), ".");
}

// ---- the rest --------------------------------------------------------------------------------------------------------------

function showFooter(data) {
  const names = (list) => list.filter((one) => one.simulated).map((one) => one.name);
  const vantages = names(data.vantages), targets = names(data.targets), told = [];
  if (vantages.length) told.push(`the distance of ${listed(vantages)} is simulated on this machine`);
  if (targets.length) told.push(`${listed(targets)} ${targets.length === 1 ? "is a simulated provider" : "are simulated providers"}`);
  $("simulated").textContent = told.length ? `~ Simulated: ${told.join("; ")}. Nothing so marked is a measurement of the real thing.` : "";
  $("version").textContent = `First Token ${data.version}`;
}

const listed = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);

function showLegend() {
  const entries = Object.entries(PHASES).map(([name, [title, text]]) => [`swatch ${name}`, title, text]);
  entries.push(["swatch wait died", "Hatched", "The attempt failed in this phase."]);
  entries.push(["swatch chart", "Small charts", "First tokens over the recent median (dotted). ◆ cold start, ▲ slow, ✕ failed, – not measured, ○ measurement in doubt."]);
  entries.push(["swatch cold", "Cold start", "The model had to be loaded: far slower than warm attempts, while a second try straight after it was warm, or the server says so. “More than warm” is what the loading cost; “idle” is how long nobody had asked, from any vantage point."]);
  $("legend").replaceChildren(...entries.map(([kind, title, text]) =>
    make("div", {}, make("dt", {}, make("span", { class: kind, "aria-hidden": "true" }), make("span", { text: title })), make("dd", { text }))));
}

function firstVisit() {
  try {
    const known = localStorage.getItem("seen") !== null;
    localStorage.setItem("seen", "yes");
    return !known;
  } catch {
    return false; // no storage allowed: the legend opens when asked for
  }
}

$("trouble").addEventListener("click", () => {
  state.onlyTrouble = !state.onlyTrouble;
  state.etag = null;
  $("trouble").setAttribute("aria-pressed", String(state.onlyTrouble));
  poll();
});
$("key").open = innerWidth > 760 && firstVisit();
$("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  $("pause").textContent = state.paused ? "Continue" : "Pause";
  tick();
  poll();
});
document.addEventListener("visibilitychange", poll);
showLegend();
setInterval(tick, 1000);
poll();
