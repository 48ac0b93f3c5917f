// Parts that the pages of devices, jobs and deploys share: figures that stay current, and words for states.

import { ApiError, get, post } from "../../lib/api.js";
import { el, keyed, replace, update } from "../../lib/dom.js";
import { form, refusal } from "../../lib/forms.js";
import { opened, save } from "../../lib/saving.js";
import { follow } from "../../lib/stream.js";
import { badge, line, more, notice, table } from "../../lib/view.js";
import { ago, count, credits, date, money, t, time } from "../../lib/words.js";

const EVERY_MS = 10_000;
const SAID_MAX = 80; // characters
const ENTRIES_MAX = 10; // of one job or deploy that are requested together

export const OF_JOBS = ["job.created", "job.accepted", "job.requeued", "job.completed", "job.failed", "job.cancelled"];
export const OF_DEPLOYS = ["deploy.ready", "deploy.finished", "deploy.cancelled"];
export const OF_DEVICES = ["device.online", "device.offline", "device.revoked"];
export const JOB_TYPES = ["script", "docker", "training", "inference"];
export const JOB_STATES = ["waiting", "running", "completed", "failed", "cancelled"];
const KIND_OF_STATE = { waiting: "info", running: "info", completed: "good", failed: "bad", cancelled: "warn", queued: "info", lost: "bad" };

export const state = (status) => badge(KIND_OF_STATE[status] ?? "info", t(`work.state.${status}`));
// A sentence of the server itself, which is English in every language of the page.
export const english = (text) => el("span", { lang: "en" }, text);
// A mark for a job or a deploy with warnings: they are on its own page.
export const warned = ({ warnings }) => (warnings?.length ? [" ", badge("warn", t("work.warned"))] : null);
export const jobType = (type) => t(`work.type.${type}`);
export const paid = (amount, currency) => (currency === "usd" ? money(amount) : credits(amount));
export const degrees = (celsius) => (celsius === undefined ? t("common.unknown") : `${count(celsius)} °C`);
export const gpus = ({ gpu_count: n, gpu_model: model }) => (n && model.toLowerCase() !== "none" ? `${n} × ${model}` : t("work.no_gpu"));
export const gigabytes = (gb) => (gb === undefined ? t("common.unknown") : `${count(gb)} GB`);

// The beginning of a device's report of a failure, on one line: the whole is on the page of the job.
export function inShort(text) {
  const line = text.trim().split(/[\r\n]/, 1)[0];
  return line.length > SAID_MAX ? `${line.slice(0, SAID_MAX).trimEnd()}…` : line;
}

// Shows the result of `load()`, by `show(data)`, and keeps it current: when an event of these types comes or the stream
// of them is lost, every ten seconds while the page is visible (heat and progress have no events), and when `refresh()`
// is called, which this returns. A result that cannot be refreshed stays, grey, with its age. A refusal of the first
// `load` is the page's own failure.
export async function current(page, main, load, show, types = []) {
  const age = el("p", { class: "hint", role: "status", hidden: true });
  main.querySelector("h1").after(age);
  let asOf = null;
  const first = load();
  let asking = first.catch(() => {});

  async function ask() {
    if (!asOf) return; // the page has failed
    try {
      const data = await load();
      if (page.signal.aborted) return;
      asOf = new Date();
      show(data);
      main.classList.remove("stale");
      age.hidden = true;
    } catch (error) {
      if (page.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      main.classList.add("stale");
      replace(age, t("work.stale", { time: time(asOf.toISOString()), ago: ago(asOf.toISOString()), why: refusal(error) }));
      age.hidden = false;
    }
  }
  // One at a time: a caller that comes meanwhile gets the answer to a later question.
  function refresh() {
    asking = asking.then(ask);
    return asking;
  }
  const timer = setInterval(() => document.hidden || refresh(), EVERY_MS);
  const seen = () => document.hidden || refresh();
  document.addEventListener("visibilitychange", seen);
  page.signal.addEventListener("abort", () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", seen);
  });
  // From now on, not behind the answer: it does not contain events of the meantime.
  follow({ types, onEvent: refresh, onState: (state) => state === "lost" && refresh(), refresh, signal: page.signal });
  const data = await first;
  asOf = new Date();
  show(data);
  return refresh;
}

// A place in a page whose content changes: unchanged parts are left alone, with their focus.
export function place(tag = "div", props = null) {
  const node = el(tag, props);
  const show = (...children) => update(node, ...children);
  // Only parts made of other data are made anew: a field that is being filled in stays.
  let made;
  function showOf(data, make) {
    const text = JSON.stringify(data);
    if (text === made) return;
    made = text;
    replace(node, make());
  }
  return { node, show, showOf };
}

// A table that changes while it is looked at: rows that stay are not made anew. `show(rows)` fills it.
export function list({ caption, columns, empty, keyOf = (row) => row.id }) {
  const node = el("div");
  let body = null;
  const make = (row) => line(row, columns, keyOf);
  function renewed(node, row) {
    const cells = [...make(row).children];
    [...node.children].forEach((cell, index) => {
      update(cell, ...cells[index].childNodes);
    });
  }
  function show(rows) {
    if (!rows.length || !body?.isConnected) {
      replace(node, table({ caption, columns, rows: [], empty: rows.length ? null : empty }));
      body = node.querySelector("tbody");
    }
    if (body) keyed(body, rows, keyOf, make, renewed);
  }
  return { node, show };
}

// A list whose first part is kept current; the others come on request: `part(cursor)` requests one, whose rows are
// under `key`; `show(rows)` gets all loaded rows. Returns the place of "load more".
export async function parted(page, main, { part, key, show, types }) {
  const { kept } = page;
  const next = el("div");
  let first = [];
  let older = [];
  let cursor;
  // A new row pushes one out of the first part; it is not had twice when it is among the others.
  function all() {
    const fresh = new Set(first.map((row) => row.id));
    show([...first, ...older.filter((row) => !fresh.has(row.id))]);
  }
  async function behind() {
    const answer = await part(cursor);
    older = [...older, ...answer[key]];
    cursor = answer.next_cursor;
    all();
    kept.length = first.length + older.length;
    return Boolean(cursor);
  }
  await current(page, main, () => part(), (answer) => {
    first = answer[key];
    if (!older.length && cursor !== answer.next_cursor) {
      cursor = answer.next_cursor;
      next.replaceChildren(...(cursor ? [more(behind)] : []));
    }
    all();
  }, types);
  // The number of rows from before, when the reader has gone on and come back.
  const wanted = kept.length ?? 0;
  while (cursor && first.length + older.length < wanted) if (!(await behind())) next.replaceChildren();
  return next;
}

// All parts of a list, up to a bound: rows behind it are left out.
export async function some(path, key, query, { signal, most = 300 } = {}) {
  const found = [];
  let cursor;
  do {
    const answer = await get(path, { limit: 100, ...query, cursor }, { signal });
    found.push(...answer[key]);
    cursor = answer.next_cursor;
  } while (cursor && found.length < most);
  return { rows: found, isCut: Boolean(cursor) };
}

// The cost of cancelling jobs now, added up: {pays, returns, currency}; jobs that are over cost nothing.
export async function cancelling(jobIds, signal) {
  const sum = { pays: 0, returns: 0, currency: "credit" };
  for (let at = 0; at < jobIds.length; at += ENTRIES_MAX) {
    const asked = jobIds.slice(at, at + ENTRIES_MAX).map((id) => get(`/api/jobs/${id}/cancel`, null, { signal }).catch(over));
    for (const cost of await Promise.all(asked)) {
      if (!cost) continue;
      sum.pays += cost.pays;
      sum.returns += cost.returns;
      sum.currency = cost.payment_type;
    }
  }
  return sum;
}

function over(error) {
  if (error instanceof ApiError && error.code === "job_over") return null;
  throw error;
}

// An appeal against a decision for the other side; the operator refuses one that is too late.
export function appealOf(url, summary) {
  const area = el("div", null);
  const send = async (values) => {
    const { due_at: due } = await post(`${url}/appeal`, values);
    area.replaceChildren(notice("info", t("work.review.appealed", { date: date(due) })));
  };
  area.append(el(
    "details",
    { class: "card" },
    el("summary", null, summary),
    el("p", null, t("work.review.appeal.text")),
    form({
      fields: [{ name: "reason", label: t("work.review.appeal.reason"), type: "textarea", required: true, maxlength: 2000 }],
      submit: t("work.review.appeal"),
      send,
    }),
  ));
  return area;
}

// The answer of a worker to a dispute, which the operator reads before the decision.
export function answerTo(job) {
  const area = el("div", null);
  const send = async (values) => {
    await post(`/api/jobs/${job.id}/answer`, values);
    area.replaceChildren(notice("info", t("work.review.answered")));
  };
  area.append(el(
    "details",
    { class: "card", open: true },
    el("summary", null, t("work.review.answer"), ": ", job.title),
    el("p", null, t("work.review.answer.text")),
    form({
      fields: [{ name: "text", label: t("work.review.answer.field"), type: "textarea", required: true, maxlength: 2000, value: job.answer }],
      submit: t("work.review.answer"),
      send,
    }),
  ));
  return area;
}

// Saves a file of a job. An S3 store sends it as a download: a page may not read a file of another origin.
export async function saveArtifact({ id, name }) {
  const { url } = await get(`/api/artifacts/${id}/address`);
  if (url.startsWith("/")) await save(url, name);
  else opened(url, name);
}
