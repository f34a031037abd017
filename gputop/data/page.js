"use strict";
// Draws a recording: all texts go in by textContent, for they come from other people's processes. `data` is what export_html.py wrote.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const cells = data.cells, perSecond = 1 / data.cell_s;
const WINDOWS_S = [10, 20, 30, 60, 120, 300, 600];
const STEPS = "steps.per_s", SERVED = ["serving.tokens_per_s", "serving.waiting"];
const EFFECT = [...SERVED, STEPS, "gpu.util_pct", "gpu.gr_active_pct"]; // what is felt, and what is paid for
const TALL = [...SERVED, STEPS, "gpu.util_pct", "gpu.power_w", "sync.p99_ms", data.lanes.some((lane) => lane.id === "runq.p99_ms") ? "runq.p99_ms" : "runq.pct"];
const MOST_BYSTANDERS = 8, LEAST_CPU_PCT = 1, MOST_INCIDENTS = 10;
const STARVING = 64, INFERRED = 128;
// word -> [colour, height as a share, hatched]: never told by colour alone
const LOOKS = {
  running: ["running", .55, 0], computing: ["running", .55, 0], runnable: ["starving", .8, 1], disk: ["disk", .6, 1],
  memory: ["memory", .8, 1], throttled: ["throttled", .8, 1], blocked: ["blocked", .2, 0], ahead: ["ahead", .12, 0],
  stopped: ["stopped", 1, 0], "waiting-data": ["waiting-data", .4, 1], "waiting-gpu": ["waiting-gpu", .25, 0],
  transfer: ["transfer", .4, 0], sleeping: ["ahead", .08, 0], dead: ["stopped", .3, 1], starving: ["starving", 1, 0],
};

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) node.setAttribute(name, value);
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const canvasOf = (className) => el("canvas", { class: className, "aria-hidden": "true" });

// a column: differences, null for nothing, [n] for the same n times more
function column(packed, scale) {
  const out = [];
  let last = 0, shown = NaN;
  for (const item of packed || []) {
    if (Array.isArray(item)) for (let left = item[0]; left > 0; left--) out.push(shown);
    else if (item === null) out.push(shown = NaN);
    else out.push(shown = (last += item) / (scale || 1));
  }
  return out;
}
const pad = (number) => String(number).padStart(2, "0");
function clock(cell, tenths) {
  const s = data.start_unix_s + data.utc_offset_s + cell * data.cell_s, day = new Date(Math.floor(s * 10) * 100);
  return day.toISOString().slice(11, tenths ? 21 : 19);
}
function since(cell) {
  const s = Math.round(cell * data.cell_s), m = Math.floor(s / 60), h = Math.floor(m / 60);
  return h ? `${h}:${pad(m % 60)}:${pad(s % 60)}` : `${m}:${pad(s % 60)}`;
}
function short(value, digits) {
  if (!Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (Math.abs(value) >= 1e5) return `${(value / 1e3).toFixed(0)}k`;
  return value.toFixed(Math.abs(value) < 1000 ? digits : 0);
}
function bytes(mib) {
  if (!Number.isFinite(mib)) return "–";
  return mib >= 1024 * 1000 ? `${(mib / 1048576).toFixed(1)}T` : mib >= 1000 ? `${(mib / 1024).toFixed(mib >= 10240 ? 0 : 1)}G` : `${mib.toFixed(0)}M`;
}
function niceTop(value) {
  if (!(value > 0)) return 1;
  const magnitude = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((m) => m * magnitude).find((top) => top >= value * .999);
}
const last = (pairs, at) => { // of [[from, what], ...] what holds at `at`
  let low = 0, high = pairs.length;
  while (low < high) { const middle = (low + high) >> 1; if (pairs[middle][0] <= at) low = middle + 1; else high = middle; }
  return low ? pairs[low - 1][1] : null;
};

// what is shown
let cursor = 0, first = 0, shown = cells, timer = 0;
const everyLane = data.lanes.map((lane) => ({ ...lane, read: column(lane.values, 10 ** lane.digits) }));
const lanes = everyLane.filter((lane) => lane.gpu !== null || lane.read.some((value) => value > 0));
for (const lane of lanes) { // a reading stands until the driver's pace is over
  lane.held = lane.read.slice();
  let since = Infinity, value = NaN;
  for (let i = 0; i < cells; i++) {
    if (lane.read[i] === lane.read[i]) { value = lane.read[i]; since = 0; }
    else if (++since <= lane.hold) lane.held[i] = value;
  }
}
const procs = data.procs.map((proc) => ({ ...proc, code: column(proc.codes) }));
for (const proc of procs) for (const name of ["cpu_pct", "runq_pct", "disk_pct", "switches_per_s", "invol_per_s", "rss_bytes", "gpu_bytes"]) proc[name] = column(proc[name]);
const GPU_NUMBERS = ["util_pct", "sm_active_pct", "tensor_active_pct", "mem_used_bytes", "power_w", "temp_c", "sm_clock_mhz", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"];
const gpus = data.gpus.map((gpu) => { const own = { ...gpu }; for (const name of GPU_NUMBERS) own[name] = column(gpu[name]); return own; });
const incidents = data.incidents.map((one) => ({ ...one, from: cellAt(one.start_s), to: one.end_s === null ? cells - 1 : cellAt(one.end_s) }));
function cellAt(seconds) { return Math.min(cells - 1, Math.max(0, Math.round(seconds * perSecond))); }
const stepAt = (cell) => Math.min(data.steps - 1, Math.floor(cell / data.step_cells));

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = new Proxy({}, { get: (known, name) => known[name] || (known[name] = style.getPropertyValue(`--${String(name)}`).trim()) });
}
function prepare(canvas) { // a context in CSS pixels, cleared
  const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, box.width, box.height);
  return [context, box.width, box.height];
}
function hatch(context, colour, x, y, width, height) {
  context.save();
  context.globalAlpha = .45;
  context.fillStyle = colour;
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1.2;
  for (let at = Math.floor((x - height) / 4) * 4; at < x + width; at += 4) { context.moveTo(at, y + height); context.lineTo(at + height, y); }
  context.stroke();
  context.restore();
}
function level(lane, value) {
  if (lane.crit !== null && value >= lane.crit) return "crit";
  return lane.warn !== null && value >= lane.warn ? "warn" : "";
}
function shade(context, by, height) { // the times of incidents
  context.fillStyle = colours.warn;
  context.globalAlpha = .13;
  for (const one of incidents.filter((one) => one.severity !== "info" && one.to >= first && one.from < first + shown))
    context.fillRect((Math.max(one.from, first) - first) * by, 0, (Math.min(one.to, first + shown) - Math.max(one.from, first)) * by, height);
  context.globalAlpha = 1;
}
function drawLane(lane) {
  const [context, width, height] = prepare(lane.canvas), by = width / shown;
  const colour = colours[{ [STEPS]: "lane2", "gpu.power_w": "lane2", "sync.p99_ms": "lane3" }[lane.id] || "lane"];
  shade(context, by, height);
  let most = 0;
  for (let i = first; i < first + shown; i++) if (lane.read[i] > most) most = lane.read[i];
  const top = lane.top || niceTop(most);
  setText(lane.scale, `0–${short(top, 0)}`);
  for (let i = first; i < first + shown; i++) {
    const value = lane.held[i];
    if (!Number.isFinite(value)) continue;
    const x = (i - first) * by, high = Math.max(1, Math.min(1, value / top) * (height - 1));
    const fresh = lane.read[i] === lane.read[i], mark = level(lane, value);
    context.globalAlpha = fresh ? 1 : .75; // a reading that stands is a little fainter
    context.fillStyle = mark ? colours[mark] : colour;
    context.fillRect(x, height - high, Math.max(1, by + .3), high);
  }
  context.globalAlpha = 1;
  if (lane.warn !== null && lane.warn < top) {
    const y = Math.round(height - lane.warn / top * (height - 1)) + .5;
    context.strokeStyle = colours.warn;
    context.globalAlpha = .7;
    context.setLineDash([3, 4]);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }
  context.fillStyle = colours.line;
  context.fillRect(0, height - 1, width, 1);
}
const wordOf = (code) => (code & STARVING ? "starving" : data.states[code & 63] || "");
function drawState(context, word, x, width, height) {
  const look = LOOKS[word];
  if (!look) return;
  const [name, share, hatched] = look, high = Math.max(1.5, share * height);
  if (hatched) hatch(context, colours[name], x, height - high, width, high);
  else { context.fillStyle = colours[name]; context.fillRect(x, height - high, width, high); }
}
function drawStates(proc) {
  const [context, width, height] = prepare(proc.canvas), by = width / shown;
  shade(context, by, height);
  let from = first;
  for (let i = first; i <= first + shown; i++) {
    if (i < first + shown && i < cells && wordOf(proc.code[i]) === wordOf(proc.code[from])) continue;
    drawState(context, wordOf(proc.code[from]), (from - first) * by, (i - from) * by + .3, height);
    from = i;
  }
}
function drawRuler() {
  const [context, width, height] = prepare($("ruler")), by = width / shown, seconds = shown * data.cell_s;
  const step = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400].find((s) => seconds / s <= Math.max(2, width / 90)) || 86400;
  context.fillStyle = colours.dim;
  context.font = "11.5px system-ui, sans-serif";
  const offset = (data.start_unix_s + data.utc_offset_s) % step;
  for (let s = Math.ceil((first * data.cell_s + offset) / step) * step - offset; s < (first + shown) * data.cell_s; s += step) {
    const x = (s * perSecond - first) * by, text = clock(s * perSecond + .001), room = context.measureText(text).width;
    context.fillRect(x, height - 4, 1, 4);
    if (x + room + 3 < width) context.fillText(text, x + 3, height - 5);
  }
}
function drawOverview() {
  const [context, width, height] = prepare($("overview")), inset = 8, by = (width - 2 * inset) / cells;
  const utils = lanes.filter((lane) => lane.id === "gpu.util_pct");
  for (const one of incidents) {
    context.globalAlpha = .28;
    context.fillStyle = colours[one.severity === "high" ? "crit" : one.severity === "info" ? "ahead" : "warn"];
    context.fillRect(inset + one.from * by, 0, Math.max(3, (one.to - one.from) * by), height);
    context.globalAlpha = 1;
    context.fillRect(inset + one.from * by, 0, Math.max(3, (one.to - one.from) * by), 3);
  }
  context.fillStyle = colours.lane;
  const columns = Math.min(cells, Math.floor(width - 2 * inset));
  for (let x = 0; x < columns; x++) {
    let sum = 0, count = 0;
    for (let i = Math.floor(x * cells / columns); i < Math.max(Math.floor(x * cells / columns) + 1, (x + 1) * cells / columns); i++)
      for (const lane of utils) if (lane.held[i] === lane.held[i]) { sum += lane.held[i]; count++; }
    if (count) { const high = Math.max(1, sum / count / 100 * (height - 6)); context.fillRect(inset + x * (width - 2 * inset) / columns, height - high, Math.max(1, (width - 2 * inset) / columns), high); }
  }
  context.strokeStyle = colours.text;
  context.strokeRect(inset + first * by, .5, Math.max(2, shown * by), height - 1);
  context.fillStyle = colours.text;
  context.fillRect(inset + (cursor + .5) * by, 0, 1, height);
}

// rows that stay; their numbers change
const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
// the order of the story, as on the screen: tokens and queue, or steps, how busy the GPU is, what the cause shows in, the rest as it was
function orderLanes(cause, gpu, pid) {
  const own = data.lanes_of_cause[cause] || [], chosen = gpu === null || gpu === undefined ? (lanes.find((lane) => lane.gpu !== null) || {}).gpu : gpu;
  const ours = (lane) => lane.gpu === null ? lane.pid === null || lane.pid === (pid || lane.pid) : lane.gpu === chosen;
  const rank = (lane) => !ours(lane) ? 9 : EFFECT.includes(lane.id) ? EFFECT.indexOf(lane.id) : own.includes(lane.id) ? EFFECT.length + own.indexOf(lane.id) / 9 : 9;
  const order = lanes.map((lane, i) => [rank(lane), i, lane]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  for (const [, , lane] of order) {
    lane.row.classList.toggle("tall", TALL.includes(lane.id) || (ours(lane) && own.includes(lane.id)));
    if (ours(lane) && own.includes(lane.id)) lane.row.hidden = false;
    $("lanes").append(lane.row);
  }
}
function makeLanes() {
  for (const lane of lanes) {
    lane.canvas = canvasOf("cells");
    lane.number = el("span", { class: "num" });
    lane.scale = el("span", {});
    lane.side = el("span", {});
    const label = el("span", { class: "label", title: lane.help || null }, el("span", {}, lane.title), el("span", { class: "num" }, lane.number, el("span", { class: "unit" }, lane.unit)));
    lane.row = el("li", { class: "row" }, label, lane.canvas, el("span", { class: "side" }, lane.scale, " ", lane.unit, lane.side));
  }
  const whose = worst || data.whole;
  orderLanes(data.whole.cause, whose.gpu, whose.trainer_pid);
  const flat = everyLane.filter((lane) => !lanes.includes(lane)).map((lane) => lane.title);
  if (flat.length) $("lanes").after(el("p", { class: "dim" }, `nothing at: ${flat.join(", ")}`));
  const chosen = worst && worst.gpu !== null ? worst.gpu : (lanes.find((lane) => lane.gpu !== null) || {}).gpu, paces = lanes.filter((lane) => lane.pid !== null);
  const others = lanes.filter((lane) => lane.pid !== null ? lane.pid !== ((paces.find((one) => one.pid === whose.trainer_pid) || paces[0]).pid) : lane.gpu !== null && lane.gpu !== chosen && !(lane.id === "gpu.util_pct" || (lane.id === "gpu.power_w" && gpus.length <= 4)));
  for (const lane of others) lane.row.hidden = true;
  if (!others.length) return;
  const button = el("button", { type: "button" }, `all lanes (${others.length} more)`);
  button.addEventListener("click", () => { for (const lane of others) lane.row.hidden = false; button.remove(); show(true); });
  $("lanes").after(el("p", {}, button));
}
function meanOf(lane) {
  let sum = 0, count = 0, most = -Infinity;
  for (let i = first; i < first + shown; i++) if (lane.read[i] === lane.read[i]) { sum += lane.read[i]; count++; if (lane.read[i] > most) most = lane.read[i]; }
  const limit = lane.warn === null ? "" : ` · high from ${short(lane.warn, 0)}`;
  return count ? ` · mean ${short(sum / count, lane.digits)} · most ${short(most, lane.digits)}${limit}` : " · nothing read in this window";
}
const PROC = [["CPU%", "cpu_pct", 0], ["RUNQ%", "runq_pct", 1], ["DISK%", "disk_pct", 1], ["SW/s", "switches_per_s", 1], ["RSS", "rss_bytes", 1], ["GPU-MEM", "gpu_bytes", 1]];
function makeProcs() {
  const table = $("procs"), side = el("span", { class: "side" }, el("span", { role: "columnheader" }, "STATE"));
  for (const [title, , more] of PROC) side.append(el("span", { role: "columnheader", class: more ? "n more" : "n" }, title));
  side.setAttribute("role", "presentation");
  table.append(el("div", { role: "row", class: "row head" }, el("span", { role: "columnheader" }, "PROCESS"), el("span", { role: "columnheader" }, "state, same axis"), side));
  for (const proc of procs) {
    proc.canvas = canvasOf("cells");
    proc.state = el("span", { role: "cell" });
    proc.cells = PROC.map(([title, , more]) => el("span", { role: "cell", class: more ? "n num more" : "n num", "data-name": title }));
    const about = [`pid ${proc.pid}`, proc.user && `user ${proc.user}`, proc.job, proc.place && `GPU ${proc.place}`, proc.command].filter(Boolean).join(" · ");
    const who = el("span", { role: "cell", class: "who", title: about }, `${proc.role === "trainer" ? "▾ " : ""}${proc.who}`, el("span", { class: "dim" }, ` ${proc.pid}`));
    proc.row = el("div", { role: "row", class: `row ${proc.role || ""}` }, who, el("span", { role: "cell", class: "lane" }, proc.canvas), el("span", { role: "presentation", class: "side" }, proc.state, ...proc.cells));
    table.append(proc.row);
  }
  more.addEventListener("click", () => { all = !all; showProcs(); place(); });
  table.after(el("p", {}, more));
  table.hidden = !procs.length;
}
const more = el("button", { type: "button" });
let all = false;
const KERNEL = { R: "running", S: "sleeping", D: "disk", T: "stopped", t: "traced", Z: "zombie", I: "idle" };
function showProcs() {
  const step = stepAt(cursor);
  for (const proc of procs) {
    const code = proc.code.length ? proc.code[cursor] : 0, word = wordOf(code), told = last(proc.words, step) || "";
    const state = word === "starving" ? "● STARVING" : word || KERNEL[told] || told;
    setText(proc.state, state ? state + (code & INFERRED ? "~" : "") : "–");
    proc.state.className = word === "starving" ? "crit" : "";
    proc.row.classList.toggle("gone", !state);
    proc.busy = proc.role === "bystander" ? (state && proc.cpu_pct[step]) || 0 : Infinity;
    PROC.forEach(([, name], i) => {
      const value = proc[name][step], text = name.endsWith("bytes") ? bytes(value) : short(value, 0);
      setText(proc.cells[i], text);
      proc.cells[i].classList.toggle("gone", text === "–");
    });
  }
  const others = procs.filter((proc) => proc.role === "bystander"), busy = others.filter((proc) => proc.busy >= LEAST_CPU_PCT).sort((a, b) => b.busy - a.busy);
  const kept = all ? others : busy.slice(0, MOST_BYSTANDERS);
  for (const proc of others) proc.row.hidden = !kept.includes(proc);
  setText(more, all ? "only busy processes" : `all processes (${others.length - kept.length} more${data.procs_left_out ? `; ${data.procs_left_out} with less CPU are not in this page` : ""})`);
  more.hidden = !all && kept.length === others.length;
}
const GPU_COLUMNS = [
  ["util", (g, s) => percent(g, "util_pct", s)], ["SM act", (g, s) => percent(g, "sm_active_pct", s)], ["tensor", (g, s) => percent(g, "tensor_active_pct", s)],
  ["mem", (g, s) => known(g, "mem_used_bytes", s, (v) => `${(v / 1024).toFixed(1)}${g.mem_mib ? `/${(g.mem_mib / 1024).toFixed(0)}` : ""} GiB`)],
  ["power", (g, s) => known(g, "power_w", s, (v) => `${v}${g.limit_w ? `/${g.limit_w}` : ""} W`)],
  ["temp", (g, s) => known(g, "temp_c", s, (v) => `${v}°C`)], ["SM clock", (g, s) => known(g, "sm_clock_mhz", s, (v) => `${v} MHz`)],
  ["PCIe rx/tx", (g, s) => known(g, "pcie_rx_bytes_per_s", s, (v) => `${(v / 1000).toFixed(1)}/${short(g.pcie_tx_bytes_per_s[s] / 1000, 1)} GB/s`)],
  ["limits", (g, s) => last(g.words, s) || "–"],
];
const known = (gpu, name, step, say) => (Number.isFinite(gpu[name][step]) ? say(gpu[name][step]) : "–");
const percent = (gpu, name, step) => known(gpu, name, step, (value) => `${value}%`);
function makeGpus() {
  const used = GPU_COLUMNS.filter(([, say]) => gpus.some((gpu) => [...Array(data.steps).keys()].some((step) => say(gpu, step) !== "–")));
  const head = el("tr", {}, el("th", { scope: "col" }, "GPU"), ...used.map(([title]) => el("th", { scope: "col", class: title === "limits" ? null : "n" }, title)), el("th", { scope: "col" }, "name"));
  const body = el("tbody");
  for (const gpu of gpus) {
    gpu.cells = used.map(([title, say]) => [el("td", { class: title === "limits" ? null : "n" }), say, title]);
    body.append(el("tr", {}, el("th", { scope: "row" }, String(gpu.index)), ...gpu.cells.map(([cell]) => cell), el("td", { class: "dim" }, gpu.name || "–")));
  }
  $("gpus").append(el("thead", {}, head), body);
  $("gpu-section").hidden = !gpus.length;
}
function showGpus() {
  const step = stepAt(cursor);
  for (const gpu of gpus) for (const [cell, say, title] of gpu.cells) {
    setText(cell, say(gpu, step));
    if (title === "limits") cell.className = cell.textContent === "–" ? "dim" : "warn";
  }
}
function lines(list, texts) {
  list.replaceChildren(...texts.map((text) => {
    const item = el("li", {}, text.trimStart());
    item.style.paddingLeft = `${(text.length - text.trimStart().length) * 7}px`;
    return item;
  }));
}
function asks(list, rows) { // the way of a request through an inference server, with a mark where the time goes
  list.replaceChildren(...rows.map(([at, slow]) => el("li", { class: slow ? "warn" : null }, data.asked[at])));
  list.hidden = !rows.length;
  return list;
}
let told = null;
function showVerdict() {
  const verdict = last(data.verdicts, cursor) || data.whole;
  if (verdict === told) return;
  told = verdict;
  const bad = ["low", "medium", "high"].includes(verdict.severity);
  $("verdict").className = verdict.severity || "";
  $("symptom").replaceChildren(`${bad ? "▲ " : verdict.symptom === "looking" ? "… " : "✓ "}${verdict.symptom || "looking"}`, verdict.cause === "none" ? "" : el("span", { class: "cause" }, ` ← ${verdict.cause}`));
  setText($("headline"), verdict.headline);
  setText($("detail"), verdict.detail);
  lines($("path"), verdict.path);
  asks($("asks"), verdict.asks);
}
function showTaken(taken, name) {
  if (!taken.length) return;
  const after = taken.find(([cell]) => cell > cursor), cell = taken.filter(([at]) => at <= cursor).map(([at]) => at).pop();
  const at = cell === undefined ? after[0] : cell;
  setText($(`${name}-when`), `taken at ${clock(at, true)}, ${cell === undefined ? "the first after" : "the last before"} the moment shown`);
  setText($(name), last(taken, at));
}

// the moment and the window
function place() {
  const box = $("ruler").getBoundingClientRect(), axis = $("axis").getBoundingClientRect();
  const inside = cursor >= first && cursor < first + shown;
  $("cursor").style.left = `${box.left - axis.left + (cursor - first + .5) * box.width / shown}px`;
  $("cursor").style.display = inside ? "block" : "none";
}
function drawAxis() {
  drawRuler();
  for (const lane of lanes) if (!lane.row.hidden) { drawLane(lane); setText(lane.side, meanOf(lane)); }
  for (const proc of procs) if (proc.code.length) drawStates(proc);
}
function show(drawn) {
  for (const lane of lanes) {
    const value = lane.held[cursor], mark = level(lane, value);
    setText(lane.number, short(value, lane.digits));
    lane.number.className = mark ? `num ${mark}` : "num";
  }
  if (drawn) drawAxis();
  drawOverview();
  showVerdict();
  showGpus();
  showProcs();
  showTaken(data.stacks, "stack"); showTaken(data.traces, "trace");
  place();
  const text = `${clock(cursor, true)} ${data.zone}, ${since(cursor)} of ${since(cells)}`;
  setText($("clock"), text);
  $("scrub").value = cursor;
  $("scrub").setAttribute("aria-valuetext", `${text}, ${told.headline}`);
}
function go(cell, center) {
  cursor = Math.min(cells - 1, Math.max(0, Math.round(cell)));
  const before = first;
  if (center) first = cursor - Math.floor(shown / 2);
  else if (cursor < first) first = cursor - Math.floor(shown / 4);
  else if (cursor >= first + shown) first = cursor - Math.floor(shown * 3 / 4);
  first = Math.min(cells - shown, Math.max(0, first));
  show(first !== before);
}
function setWindow(seconds) {
  shown = Math.max(2, Math.min(cells, Math.round(seconds * perSecond)));
  first = Math.min(cells - shown, Math.max(0, cursor - Math.floor(shown / 2)));
  show(true);
}
function play(on) {
  clearInterval(timer);
  timer = 0;
  setText($("play"), on ? "❚❚ pause" : "▶ play");
  if (!on) return;
  if (cursor >= cells - 1) go(0);
  let at = cursor, before = performance.now();
  timer = setInterval(() => {
    const now = performance.now();
    at += (now - before) / 1000 * perSecond;
    before = now;
    if (Math.floor(at) !== cursor) go(Math.floor(at));
    if (cursor >= cells - 1) play(false);
  }, 100);
}
function jump(way) {
  const found = way > 0 ? incidents.find((one) => one.from > cursor) : incidents.filter((one) => one.from < cursor).pop();
  if (found) { play(false); orderLanes(found.cause, found.gpu, found.trainer_pid); go(found.from, true); drawAxis(); }
}

// the rest of the page
function copyButton(command, text) {
  const copy = el("button", { type: "button", class: "copy" }, "copy");
  copy.addEventListener("click", () => {
    const done = () => { copy.textContent = "copied"; };
    if (navigator.clipboard) navigator.clipboard.writeText(command).then(done, () => getSelection().selectAllChildren(text));
    else getSelection().selectAllChildren(text);
  });
  return copy;
}
function fixOf(fix, label) { // what to do, with its command; a look is never shown as a fix
  const nodes = [el("p", {}, el("span", { class: "dim" }, label || (fix.look ? "where to look: " : "what to do: ")), fix.text)];
  if (fix.command) {
    const text = el("pre", { tabindex: "0" }, fix.command);
    nodes.push(el("div", { class: "fix" }, text, copyButton(fix.command, text)));
  }
  return nodes;
}
const spanOf = (one) => `${clock(one.start_s * perSecond)} ${one.end_s === null ? "to the end" : `to ${clock(one.end_s * perSecond)}`}`;
function seekButton(one) {
  const seek = el("button", { type: "button" }, "show this moment");
  seek.addEventListener("click", () => { play(false); orderLanes(one.cause, one.gpu, one.trainer_pid); go(one.from, true); drawAxis(); $("player").scrollIntoView(); });
  return seek;
}
function makeAnswer() { // what the whole recording comes to
  const { symptom, cause, headline, detail, severity, fix, lost, bound, help_url: page, next_test: test } = data.whole;
  $("answer").className = severity || "";
  const bad = ["low", "medium", "high"].includes(severity);
  $("answer-cause").append(`${bad ? "▲ " : symptom ? "✓ " : "… "}${symptom || "looking"}`, cause === "none" ? "" : ` ← ${cause}`);
  setText($("answer-headline"), headline);
  setText($("answer-detail"), detail);
  const cost = [lost && `${lost} lost to it`, bound && `without it ${bound} as fast`].filter(Boolean).join("; ");
  setText($("answer-cost"), cost);
  const own = incidents.find((one) => one.id === data.whole.incident);
  if (own) $("answer-incident").append(`worst from ${spanOf(own)} `, seekButton(own));
  if (fix) $("answer-fix").append(...fixOf(fix));
  if (test) $("answer-fix").append(...fixOf(test, "next test: "));
  if (page) $("answer-fix").append(linkTo(page, cause));
}
const linkTo = (page, cause) => el("p", {}, el("a", { href: page, rel: "noreferrer" }, `what ${cause} means, and what looks alike`));
function makeIncidents() {
  const list = $("incidents");
  if (!incidents.length) list.append(el("p", { class: "dim" }, "none in this recording"));
  const small = new Set([...incidents].sort((a, b) => b.gpu_lost_s - a.gpu_lost_s).slice(MOST_INCIDENTS));
  const rest = el("details", {}, el("summary", {}, `${small.size} that cost less`));
  for (const one of incidents) {
    const cost = one.gpu_lost_s ? `, ${one.gpu_lost_s.toFixed(1)} GPU s lost` : "";
    const summary = el("summary", {}, el("b", { class: one.severity === "high" ? "crit" : one.severity === "info" ? "dim" : "warn" }, `${one.symptom} ← ${one.cause}`), ` ${spanOf(one)} (${one.severity}${cost})`);
    const path = el("ol", { class: "path" });
    lines(path, one.path);
    const body = [el("p", {}, one.headline), one.detail ? el("p", { class: "dim" }, one.detail) : null, one.path.length ? path : null, one.asks.length ? asks(el("ol", { class: "asks" }), one.asks) : null, one.without ? el("p", {}, one.without) : null];
    if (one.evidence.length) body.push(el("ul", { class: "evidence" }, ...one.evidence.map((item) => el("li", {}, `${item.metric} = ${item.value === null ? "not measured" : `${Math.round(item.value * 1000) / 1000} ${item.unit}`}: ${item.text}`))));
    if (one.culprits.length) body.push(el("p", {}, `by ${one.culprits.map((who) => `${who.name} (${who.pid})${who.cpu_s === null ? "" : `, ${who.cpu_s.toFixed(1)} CPU s`}`).join("; ")}`));
    for (const fix of one.fixes) body.push(...fixOf(fix));
    if (one.next_test) body.push(...fixOf(one.next_test, "next test: "));
    if (one.help_url) body.push(linkTo(one.help_url, one.cause));
    (small.has(one) ? rest : list).append(el("details", { open: one === worst ? "" : null }, summary, ...body, el("p", {}, seekButton(one))));
  }
  if (small.size) list.append(rest);
  if (data.incidents_left_out > 0) list.append(el("p", { class: "dim" }, `${data.incidents_left_out} that cost less are left out`));
}
function makeLedger() {
  const { gpu_total_s: total, gpu_lost_s: lost, by_cause: parts, regain } = data.ledger;
  if (lost === null || !total) { setText($("ledger-total"), "No GPU time is counted: no GPU is measured, or no job trained on one."); return []; }
  setText($("ledger-total"), `${lost.toFixed(1)} of ${total.toFixed(1)} GPU seconds were lost (${Math.round(100 * lost / total)} %).`);
  const bound = Object.fromEntries(regain.map((one) => [one.cause, one.speedup_max])), bars = [];
  const body = el("tbody");
  for (const [cause, seconds] of Object.entries(parts).sort((a, b) => b[1] - a[1])) {
    if (seconds < .05) continue;
    const canvas = canvasOf("");
    bars.push([canvas, seconds / lost]);
    const without = bound[cause] >= 1.01 ? `up to ${bound[cause]}×` : "–";
    body.append(el("tr", {}, el("th", { scope: "row" }, cause), el("td", { class: "n" }, `${seconds.toFixed(1)} s`), el("td", { class: "n" }, `${Math.round(100 * seconds / lost)} %`), el("td", { class: "share" }, canvas), el("td", { class: "n" }, without)));
  }
  $("ledger").append(el("thead", {}, el("tr", {}, ...["cause", "lost", "share", "", "without it"].map((title, i) => (title ? el("th", { scope: "col", class: i && i !== 3 ? "n" : null }, title) : el("td", {}))))), body);
  const what = data.what_if.filter((one) => one.factor !== null).map((one) => `${one.change}: ${one.factor.toFixed(2)}× (${one.low.toFixed(2)} to ${one.high.toFixed(2)})`);
  setText($("what-if"), what.length ? `Predicted: ${what.join("; ")}` : "");
  return bars;
}
function drawLedger(bars) {
  for (const [canvas, share] of bars) {
    const [context, width, height] = prepare(canvas);
    context.fillStyle = colours.lane;
    context.fillRect(0, 0, Math.max(1, width * share), height);
  }
}
function makeLegend() {
  const met = new Set();
  for (const proc of procs) for (const code of proc.code) met.add(wordOf(code));
  for (const word of [...Object.keys(LOOKS)].filter((one) => met.has(one))) {
    const canvas = canvasOf("");
    $("legend").append(el("span", {}, canvas, word === "starving" ? "starving: its trainer waits for it" : word));
    canvas.dataset.word = word;
  }
}
function drawLegend() {
  for (const canvas of $("legend").querySelectorAll("canvas")) { const [context, width, height] = prepare(canvas); drawState(context, canvas.dataset.word, 0, width, height); }
}
function makeTexts() {
  const names = [...new Set(gpus.map((gpu) => gpu.name).filter(Boolean))], day = new Date((data.start_unix_s + data.utc_offset_s) * 1000).toISOString().slice(0, 10);
  setText($("host"), data.host);
  const parts = [gpus.length && `${gpus.length}× ${names.join(", ") || "GPU"}${data.simulated ? ", SIMULATED" : ""}`, data.driver && `driver ${data.driver}`, `Linux ${data.kernel}`, `${data.cpus} CPUs`,
    `${day} ${clock(0)} to ${clock(cells)} ${data.zone}`, data.read_at, data.masked && "names are masked"];
  setText($("about"), parts.filter(Boolean).join(" · "));
  if (data.problem) $("about").after(el("p", { class: "warn" }, data.problem));
  const whole = data.sources.filter(([, state]) => state === "ok").map(([name]) => name);
  if (whole.length) $("sources").append(el("li", {}, el("b", { class: "good" }, "✓ "), whole.join(", ")));
  for (const [name, state, reason, remedy] of data.sources.filter(([, state]) => state !== "ok"))
    $("sources").append(el("li", {}, el("b", { class: "warn" }, "▲ "), `${name}: ${reason || state}${remedy ? ` (${remedy})` : ""}`));
  if (!data.stacks.length) setText($("stack-when"), data.masked ? "Left out: stacks quote programs, and names are masked." : "None was taken in this recording.");
  $("stack").hidden = !data.stacks.length;
  $("trace-section").hidden = !data.traces.length;
  setText($("foot"), `Made by gputop ${data.gputop}. This file holds everything it shows and loads nothing. Keys: ← → moment, space play, n p incidents, + − window.`);
}
const worst = incidents.find((one) => one.id === data.whole.incident) || incidents.reduce((most, one) => (!most || one.gpu_lost_s > most.gpu_lost_s ? one : most), null);
const bars = makeLedger();
makeTexts(); makeAnswer(); makeLanes(); makeProcs(); makeGpus(); makeIncidents(); makeLegend();
const whole = cells * data.cell_s;
for (const seconds of WINDOWS_S.filter((s) => s < whole)) $("window").append(el("option", { value: seconds }, seconds < 120 ? `${seconds} s` : `${seconds / 60} min`));
$("window").append(el("option", { value: whole }, "all"));
$("scrub").max = cells - 1;
for (const id of ["previous", "next"]) $(id).disabled = !incidents.length;
readColours();
cursor = worst ? Math.round((worst.from + worst.to) / 2) : cells - 1;
$("window").value = whole <= 60 ? whole : 60;
setWindow(Number($("window").value));
drawLedger(bars);
drawLegend();

$("scrub").addEventListener("input", () => { play(false); go(Number($("scrub").value)); });
$("play").addEventListener("click", () => play(!timer));
$("previous").addEventListener("click", () => jump(-1));
$("next").addEventListener("click", () => jump(1));
$("window").addEventListener("change", () => setWindow(Number($("window").value)));
function pointed(event) {
  const box = $("ruler").getBoundingClientRect();
  if (event.clientX < box.left || event.clientX > box.right) return;
  play(false);
  go(first + Math.min(shown - 1, Math.floor((event.clientX - box.left) / box.width * shown)));
}
$("axis").addEventListener("pointerdown", (event) => { if (event.button === 0 && event.target.tagName === "CANVAS") pointed(event); });
$("axis").addEventListener("pointermove", (event) => { if (event.buttons & 1 && event.target.tagName === "CANVAS") pointed(event); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, button, summary, pre, .scroll")) return;
  const by = event.shiftKey ? 10 : 1, select = $("window");
  const keys = {
    ArrowLeft: () => { play(false); go(cursor - by); }, ArrowRight: () => { play(false); go(cursor + by); }, " ": () => play(!timer), n: () => jump(1), p: () => jump(-1),
    "+": () => { select.selectedIndex = Math.max(0, select.selectedIndex - 1); setWindow(Number(select.value)); },
    "-": () => { select.selectedIndex = Math.min(select.length - 1, select.selectedIndex + 1); setWindow(Number(select.value)); },
  };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
const redraw = () => { readColours(); show(true); drawLedger(bars); drawLegend(); };
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
