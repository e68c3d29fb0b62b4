"use strict";
// The live page: reads the coordinator's JSON and draws it. Text from elsewhere is only ever set as textContent.

const POLL_MS = 2000;
const TOKEN_DECIMALS = 18n;
const SVG = "http://www.w3.org/2000/svg";
const state = { job: null, steps: [], done: [], since: 0, timer: null, generation: 0 };
const $ = (id) => document.getElementById(id);

async function get(path) {
  const response = await fetch(path, { headers: { Accept: "application/json" } });
  const body = await response.json();
  if (!response.ok && response.status !== 503) throw new Error(body.error ? body.error.message : `status ${response.status}`);
  return body;
}

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const whole = (value) => Math.round(value).toLocaleString("en");
const short = (address) => `${address.slice(0, 8)}…${address.slice(-4)}`;
const account = (address) => node("code", { title: address }, short(address));

// Base units (a decimal string) to tokens with at most four decimals, rounded down; exact in the title.
function tokens(text) {
  const units = BigInt(text), one = 10n ** TOKEN_DECIMALS;
  const fraction = (units % one).toString().padStart(Number(TOKEN_DECIMALS), "0");
  const shown = fraction.slice(0, 4).replace(/0+$/, "");
  const head = (units / one).toLocaleString("en");
  const lost = units > 0n && head === "0" && !shown;
  return node("span", { title: `${units} base units` }, lost ? "<0.0001" : shown ? `${head}.${shown}` : head);
}

const money = (text) => tokens(text).textContent;

function rows(id, lines, empty) {
  const body = $(id).tBodies[0];
  const columns = $(id).tHead.rows[0].cells;
  const made = lines.map((cells) => {
    const row = node("tr");
    cells.forEach((cell, index) => row.append(node("td", columns[index].className ? { class: columns[index].className } : {}, cell)));
    return row;
  });
  if (!made.length) made.push(node("tr", {}, node("td", { colspan: columns.length, class: "empty" }, empty)));
  body.replaceChildren(...made);
}

const badge = (text, kind) => node("span", { class: `badge ${kind}` }, text);

function workerState(worker) {
  if (worker.banned) return badge("banned", "bad");
  if (worker.state === "terminated") return badge("terminated", "bad");
  if (worker.quarantine_seats) return badge("quarantined", "warn");
  return badge(worker.state, worker.state === "claimed" ? "good" : "");
}

const KINDS = { violation: "bad", quarantine: "bad", suspect: "warn", cleared: "good", "false-alarm": "warn", inconclusive: "" };

function score(value) {
  return (value / 1e6).toPrecision(4);
}

function reason(event) {
  if (event.metric === null || event.value_e6 === null) return event.reason;
  const fence = event.fence_e6 === null ? "" : ` against ${score(event.fence_e6)}`;
  return `${event.reason} (${event.metric} ${score(event.value_e6)}${fence})`;
}

function place(stage, replica, slot) {
  return stage === null ? `slot ${slot}` : `stage ${stage}, replica ${replica}`;
}

function drawTiles(job, workers) {
  const last = state.steps.at(-1);
  const lastLoss = state.steps.findLast((one) => one.loss !== null);
  const held = state.steps.findLast((one) => one.validation_loss !== null);
  const recent = state.steps.slice(-10);
  const rate = recent.length ? recent.reduce((sum, one) => sum + one.tokens_per_second, 0) / recent.length : null;
  const suspects = state.steps.reduce((sum, one) => sum + one.suspects, 0);
  const quarantined = workers.filter((one) => one.quarantine_seats > 0).length;
  const banned = workers.filter((one) => one.banned).length;
  const tiles = [
    ["Step", last ? `${last.step + 1}${job.steps ? ` / ${job.steps}` : ""}` : "–"],
    ["Loss", lastLoss ? lastLoss.loss.toFixed(3) : "–"],
    ["Validation loss", held ? held.validation_loss.toFixed(3) : "–"],
    ["Tokens a second", rate === null ? "–" : whole(rate)],
    ["Suspect frames", whole(suspects)],
    ["Quarantined", String(quarantined)],
    ["Banned", String(banned)],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, value]) => node("div", { class: "tile" }, node("span", { class: "muted" }, name), node("b", {}, value))));
}

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(10)));
  return found;
}

// At most `most` points: the mean of each bucket, so that a long run stays light.
function thin(points, most) {
  if (points.length <= most) return points;
  const size = Math.ceil(points.length / most), found = [];
  for (let at = 0; at < points.length; at += size) {
    const part = points.slice(at, at + size);
    found.push([part.at(-1)[0], part.reduce((sum, one) => sum + one[1], 0) / part.length]);
  }
  return found;
}

function drawChart(job, workers) {
  const box = $("chart"), train = state.steps.filter((one) => one.loss !== null).map((one) => [one.step, one.loss]);
  const held = state.steps.filter((one) => one.validation_loss !== null).map((one) => [one.step, one.validation_loss]);
  if (!train.length && !held.length) {
    box.replaceChildren(node("p", { class: "empty" }, "No step yet."));
    $("legend").replaceChildren();
    return;
  }
  const width = Math.max(320, box.clientWidth), height = 272, left = 44, right = 14, top = 10, bottom = 34;
  const values = [...train, ...held].map((one) => one[1]);
  const low = Math.min(...values), high = Math.max(...values), pad = (high - low) * 0.05 || 0.1;
  const lastStep = Math.max(job.steps ? job.steps - 1 : 0, ...[...train, ...held].map((one) => one[0]), 1);
  const x = (step) => left + (step / lastStep) * (width - left - right);
  const y = (value) => height - bottom - ((value - low + pad) / (high - low + 2 * pad)) * (height - top - bottom);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", preserveAspectRatio: "none" });
  const final = train.length ? train.at(-1)[1].toFixed(3) : "unknown";
  svg.append(shape("title", {}, `Training loss over steps, last ${final}`));
  for (const at of ticks(low - pad, high + pad, 5)) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }));
    svg.append(shape("text", { x: left - 8, y: y(at) + 4, "text-anchor": "end" }, String(at)));
  }
  for (const at of ticks(0, lastStep, Math.min(8, width / 90))) {
    svg.append(shape("text", { x: x(at), y: height - bottom + 18, "text-anchor": "middle" }, String(at)));
  }
  svg.append(shape("text", { x: width - right, y: height - 2, "text-anchor": "end" }, "step"));
  const marks = workers.filter((one) => one.quarantined_at_step !== null);
  for (const one of marks) {
    const mark = shape("line", { class: "mark", x1: x(one.quarantined_at_step), x2: x(one.quarantined_at_step), y1: top, y2: height - bottom });
    mark.append(shape("title", {}, `quarantined: ${place(one.stage, one.replica, one.slot)}`));
    svg.append(mark);
  }
  const path = (points) => points.map(([step, value], index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  svg.append(shape("path", { class: "line train", d: path(thin(train, 800)) }));
  if (held.length) {
    svg.append(shape("path", { class: "line held", d: path(thin(held, 400)) }));
    for (const [step, value] of held.slice(-60)) svg.append(shape("circle", { class: "fill-held", cx: x(step), cy: y(value), r: 3 }));
  }
  const cursor = shape("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const wanted = ((event.clientX - frame.left) / frame.width * width - left) / (width - left - right) * lastStep;
    const near = state.steps.reduce((best, one) => (Math.abs(one.step - wanted) < Math.abs(best.step - wanted) ? one : best));
    cursor.setAttribute("x1", x(near.step));
    cursor.setAttribute("x2", x(near.step));
    cursor.setAttribute("visibility", "visible");
    const parts = [`step ${near.step}`];
    if (near.loss !== null) parts.push(`loss ${near.loss.toFixed(4)}`);
    if (near.validation_loss !== null) parts.push(`validation ${near.validation_loss.toFixed(4)}`);
    parts.push(`${whole(near.tokens_per_second)} tokens/s`, `${near.suspects} suspect frames`);
    $("readout").textContent = parts.join(" · ");
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    $("readout").textContent = "";
  });
  box.replaceChildren(svg);
  const legend = [["train", "training"]];
  if (held.length) legend.push(["held", "validation"]);
  if (marks.length) legend.push(["mark", "quarantine"]);
  $("legend").replaceChildren(...legend.map(([kind, text]) => node("li", { class: kind }, node("i"), text)));
}

// One word a kind of fault, with how often; what not all reporters list, with how many say so.
function faults(seat, reporters) {
  const counts = new Map(Object.entries(seat.earlier));
  for (const one of seat.faults) {
    const kind = one.said_by === reporters ? one.kind : `${one.kind}, said by ${one.said_by} of ${reporters}`;
    counts.set(kind, (counts.get(kind) || 0) + 1);
  }
  return [...counts].map(([kind, count]) => `${count} × ${kind}`).join("; ");
}

function drawSeats(record) {
  $("record").textContent = record.step === null ? "" : `Cross-audits up to step ${record.step}, as ${record.reporters} of ${record.num_seats} seats report them. Voided: microbatches not paid; charged: recomputes taken off.`;
  rows("seats", record.seats.map((one) => [
    account(one.account), String(one.drawn), `${one.audits_done} / ${one.audits_due}`, faults(one, record.reporters),
    String(one.voided), String(one.charged), `${one.agree} of ${record.reporters}`,
  ]), "No seat has published a record yet.");
}

function draw(job, workers, verdicts, record, ledger, health) {
  document.title = `${job.name || `Job ${job.job_id}`} · Sentinel Market`;
  $("title").textContent = job.name || `Job ${job.job_id}`;
  const shapeText = job.stages ? `${job.stages} stages × ${job.replicas} replicas` : "spec not stored here yet";
  const seats = `${job.seats.filter((one) => !one.released).length} seats${job.quorum ? `, quorum ${job.quorum}` : ""}`;
  $("subtitle").replaceChildren(badge(job.state, job.state === "Active" ? "good" : ""), ` ${shapeText} · ${seats}${job.policy ? ` · policy ${job.policy}` : ""} · submitted by `, account(job.submitter));
  drawTiles(job, workers);
  drawChart(job, workers);
  rows("workers", workers.map((one) => [
    one.stage === null ? "–" : String(one.stage),
    one.replica === null ? `slot ${one.slot}` : String(one.replica),
    account(one.account), workerState(one), String(one.suspects),
    one.quarantined_at_step === null ? "" : `step ${one.quarantined_at_step}: ${one.quarantine_reason}`,
    one.slashed === "0" ? "" : tokens(one.slashed),
  ]), "No slot is claimed yet.");
  rows("verdicts", verdicts.map(({ event, verifier, stage, replica }) => [
    String(event.step), place(stage, replica, event.slot), badge(event.kind, KINDS[event.kind] || ""), reason(event), account(verifier),
  ]), "No verdict to show: nothing was held, nobody was accused.");
  drawSeats(record);
  const purse = ledger.money;
  const parts = [`Budget ${money(purse.budget)}`, `promised ${money(purse.promised)}`, `claimed ${money(purse.claimed)}`];
  if (purse.settled) parts.push(`paid ${money(purse.paid)}`, `fee ${money(purse.fee)}`, `refund ${money(purse.refund)}`);
  $("money").textContent = `${parts.join(" · ")} · in tokens`;
  rows("ledger", ledger.rows.map((one) => [
    account(one.account), one.role, tokens(one.earned), tokens(one.pending), tokens(one.claimable), tokens(one.claimed),
    tokens(String(BigInt(one.bonded) + BigInt(one.unbonding))), one.slashed === "0" ? "" : tokens(one.slashed),
  ]), "No money has moved yet.");
  $("health").textContent = `chain ${health.chain_id}, block ${health.indexed_block ?? "–"}`;
  const problems = [health.problem, ...ledger.problems].filter(Boolean);
  trouble(problems.join("; "));
}

function trouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

async function newSteps(job, generation) {
  for (;;) {
    const part = await get(`/jobs/${job}/metrics?since=${state.since}&limit=1000`);
    if (generation !== state.generation) return;
    state.done.push(...part.steps);
    state.since = part.next_since;
    if (part.steps.length < 1000) break;
  }
  state.steps = [...state.done];
  // Seats report one after the other: the last few steps are read again next time.
  const again = state.done.splice(-8);
  if (again.length) state.since = again[0].step;
}

async function refresh() {
  const generation = state.generation;
  try {
    const list = await get("/jobs?limit=50");
    if (!list.jobs.length) {
      $("title").textContent = "No job yet";
      $("subtitle").textContent = "Post one with `sentinel job post FILE`.";
      trouble("");
      return;
    }
    if (state.job === null) state.job = list.jobs[0].job_id;
    fillPicker(list.jobs);
    const id = state.job, path = `/jobs/${id}`;
    const [job, workers, verdicts, record, ledger, health] = await Promise.all([
      get(path), get(`${path}/workers`), get(`${path}/verdicts?limit=100`), get(`${path}/seats/record`), get(`${path}/ledger`), get("/healthz"),
    ]);
    await newSteps(id, generation);
    if (generation === state.generation) draw(job, workers, verdicts, record, ledger, health);
  } catch (error) {
    trouble(`The coordinator cannot be read: ${error.message}`);
  } finally {
    if (generation === state.generation) state.timer = setTimeout(refresh, POLL_MS);
  }
}

function fillPicker(jobs) {
  const picker = $("job"), wanted = jobs.map((one) => `${one.job_id}`).join();
  if (picker.dataset.jobs === wanted) return;
  picker.dataset.jobs = wanted;
  picker.replaceChildren(...jobs.map((one) => node("option", { value: one.job_id }, `${one.job_id}: ${one.name || "unnamed"}`)));
  picker.value = String(state.job);
}

function choose(job) {
  clearTimeout(state.timer);
  Object.assign(state, { job, steps: [], done: [], since: 0, generation: state.generation + 1 });
  history.replaceState(null, "", `?job=${job}`);
  refresh();
}

$("job").addEventListener("change", (event) => choose(Number(event.target.value)));
const asked = Number(new URLSearchParams(location.search).get("job"));
if (Number.isSafeInteger(asked) && asked > 0) state.job = asked;
refresh();
