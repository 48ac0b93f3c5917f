// Use over time, by session: as a picture, as a table, as a file; and as it happens.

import { ApiError, get, pages } from "../../lib/api.js";
import { chart } from "../../lib/chart.js";
import { el, replace, update } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { save } from "../../lib/saving.js";
import { follow } from "../../lib/stream.js";
import { button, card, facts, link, sessionName, shown } from "../../lib/view.js";
import { bytes, count, date, day, money, t, time } from "../../lib/words.js";
import { list, place } from "../work/shared.js";
import { Minutes } from "./minutes.js";
import { ZONE, chasing, refused, unlessRefused } from "./shared.js";

export const words = "traffic";
export const title = "traffic.usage.title";

const AGAIN_MS = 5_000;
const RANGES = ["live", "today", "7d", "30d", "custom"];
const SERIES = 5; // sessions that have a colour of their own; the others share one
const DAY = /^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$/;
const LONGEST_OF_HOURS = 3; // days that are shown by the hour

export async function render(main, page) {
  const asked = page.query.get("range");
  const range = RANGES.includes(asked) ? asked : "today";
  main.append(choice(range));
  if (range === "live") return lived(main, page);
  if (range === "custom") main.append(card(null, custom(page.query)));
  const queried = () => queryOf(range, page.query); // of today: at midnight it is another one
  if (!queried()) return;
  const node = el("div");
  const csv = button(t("traffic.usage.csv"), () => save(`/api/usage.csv?${new URLSearchParams({ ...queried(), by: "session" })}`, `usage-${queried().from}.csv`), { kind: "quiet" });
  main.append(node, el("div", { class: "actions" }, csv));
  const report = new Report();
  const load = async () => {
    report.draw(await figuresOf(queried(), page.signal));
    return report.nodes;
  };
  const again = chasing(async () => {
    await load();
    if (!report.nodes[0].isConnected) replace(node, report.nodes); // the first request failed
  }, AGAIN_MS, page.signal);
  follow({ types: [], onUsage: again, refresh: async () => again(), signal: page.signal });
  await shown(node, load);
}

function choice(range) {
  const links = RANGES.map((each) => el("li", null, link(`/console/usage?range=${each}`, t(`traffic.range.${each}`), { kind: each === range ? "primary" : "quiet", "aria-current": each === range ? "true" : null })));
  return el("nav", { "aria-label": t("traffic.range") }, el("ul", { class: "ranges" }, links));
}

function custom(query) {
  const today = dayOf(0);
  return form({
    fields: [
      { name: "from", type: "date", label: t("traffic.usage.from"), value: query.get("from") ?? dayOf(-6), max: today, required: true },
      { name: "to", type: "date", label: t("traffic.usage.to"), value: query.get("to") ?? today, max: today, required: true, hint: t("traffic.usage.to_hint") },
    ],
    submit: t("traffic.usage.show"),
    send: ({ from, to }) => {
      if (from > to) throw new ApiError(0, { code: "invalid_field", message: "", field: "to" }, t("traffic.usage.order"));
      return go(`/console/usage?${new URLSearchParams({ range: "custom", from, to })}`, { replace: true });
    },
  });
}

// The query for the API; days are those of this machine's time zone, and the last one is whole.
function queryOf(range, query) {
  if (range === "today") return { step: "hour", from: dayOf(0), tz: ZONE };
  if (range !== "custom") return { step: "day", from: dayOf(range === "7d" ? -6 : -29), tz: ZONE };
  const [from, to] = [query.get("from"), query.get("to")];
  if (!DAY.test(from) || !DAY.test(to) || from > to) return null; // an address typed by hand
  const after = new Date(`${to}T12:00:00Z`);
  after.setUTCDate(after.getUTCDate() + 1);
  const days = (after - new Date(`${from}T12:00:00Z`)) / 86_400_000;
  return { step: days <= LONGEST_OF_HOURS ? "hour" : "day", from, to: after.toISOString().slice(0, 10), tz: ZONE };
}

// A day from today on, as the machine's calendar has it: 2026-11-21.
function dayOf(offset) {
  const at = new Date();
  at.setDate(at.getDate() + offset);
  const two = (n) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

// All of it, also hours without use, and the part of each session.
async function figuresOf(query, signal) {
  const [all, each, { forecast }] = await Promise.all([
    get("/api/usage", query, { signal }),
    get("/api/usage", { ...query, by: "session" }, { signal }),
    get("/api/usage/summary", { tz: ZONE }, { signal }),
  ]);
  const sessions = summed(each.series);
  const own = new Set(sessions.slice(0, SERIES).map((one) => one.id));
  const seriesOf = (id) => (own.has(id) ? id : "others");
  const parts = new Map(all.series.map((item) => [item.at, {}]));
  for (const item of each.series) {
    const of = parts.get(item.at);
    const id = seriesOf(item.session_id);
    if (of) of[id] = (of[id] ?? 0) + item.bytes;
  }
  const series = sessions.slice(0, SERIES).map(({ id }) => ({ id, label: sessionName(id) }));
  if (sessions.length > SERIES) series.push({ id: "others", label: t("traffic.usage.others", { n: sessions.length - SERIES }) });
  const points = all.series.map((item, index) => ({
    at: item.at,
    label: query.step === "hour" ? hourOf(item.at, query) : day(`${item.day}T12:00:00`),
    parts: parts.get(item.at),
    isOpen: (all.series[index + 1]?.at ?? all.to) > all.complete_until,
  }));
  return { all, forecast, sessions, points, series };
}

// The cards of a range. They stay while figures change: a table that is open, and a link that is being pressed.
class Report {
  constructor() {
    this.sums = el("div");
    this.chart = chart({ title: t("traffic.usage.chart"), amount: bytes, labels: labels() });
    this.sessions = sessionList();
    this.refused = place();
    this.nodes = [
      card(t("traffic.use"), this.sums, this.chart.node),
      card(t("traffic.usage.by_session"), this.sessions.node),
      card(t("traffic.refused"), this.refused.node),
    ];
  }

  draw({ all, forecast, sessions, points, series }) {
    const sums = facts([
      [t("traffic.used"), el("strong", { class: "is-live", data: { total: all.total.bytes } }, bytes(all.total.bytes))],
      [t("traffic.cost"), money(rounded(all.total.cost_usd))],
      [t("traffic.connections"), count(all.total.connections)],
      [t("traffic.complete"), date(all.complete_until)],
      [t("traffic.forecast"), forecast ? t("traffic.forecast.of", { bytes: bytes(forecast.bytes), cost: money(rounded(forecast.cost_usd)), n: forecast.hours_used, window: forecast.window_hours }) : t("traffic.forecast.none")],
      all.undated ? [t("traffic.undated"), `${bytes(all.undated.bytes)} · ${money(rounded(all.undated.cost_usd))}`] : null,
    ]);
    update(this.sums, sums);
    this.chart.draw({ summary: summaryOf(all, points), points, series });
    this.sessions.show(sessions);
    this.refused.show(refused(all.total.refusals));
  }
}

const hourOf = (at, query) => (query.to ? date(at) : time(at));
const rounded = (usd) => Math.round(usd * 1_000_000) / 1_000_000;

const labels = () => ({ when: t("traffic.when"), total: t("traffic.total"), unknown: t("traffic.usage.unknown"), open: t("traffic.usage.open"), asTable: t("traffic.usage.as_table") });

function summaryOf(all, points) {
  const highest = points.reduce((best, point) => (sum(point) > sum(best) ? point : best), points[0]);
  if (!all.total.bytes) return t("traffic.usage.nothing");
  return t("traffic.usage.summary", { total: bytes(all.total.bytes), most: bytes(sum(highest)), when: highest.label });
}

const sum = (point) => Object.values(point.parts).reduce((one, other) => one + other, 0);

// By session, what used most first.
function summed(items) {
  const sums = new Map();
  for (const item of items) {
    const one = sums.get(item.session_id) ?? { id: item.session_id, bytes: 0, cost: 0, connections: 0, refused: 0 };
    one.bytes += item.bytes;
    one.cost += item.cost_usd;
    one.connections += item.connections;
    one.refused += Object.values(item.refusals).reduce((total, each) => total + each, 0);
    sums.set(item.session_id, one);
  }
  return [...sums.values()].toSorted((one, other) => other.bytes - one.bytes);
}

function sessionList() {
  const columns = [
    { key: "session", label: t("traffic.session"), cell: (row) => link(`/console/sessions/${row.id}`, sessionName(row.id)) },
    { key: "bytes", label: t("traffic.used"), number: true, cell: (row) => bytes(row.bytes) },
    { key: "cost", label: t("traffic.cost"), number: true, cell: (row) => money(rounded(row.cost)) },
    { key: "connections", label: t("traffic.connections"), number: true, cell: (row) => count(row.connections) },
    { key: "refused", label: t("traffic.refused"), number: true, cell: (row) => count(row.refused) },
  ];
  const empty = { text: t("traffic.usage.empty"), action: link("/console/sessions", t("traffic.sessions.title"), { kind: "primary" }) };
  return list({ caption: t("traffic.usage.caption"), columns, empty });
}

// The last quarter of an hour: frames of the stream while the page is open.
function lived(main, page) {
  const minutes = new Minutes(Date.now());
  const figures = chart({ title: t("traffic.range.live"), amount: bytes, labels: labels() });
  const since = el("div");
  let isCounted = false; // from the counts of the sessions when the page was opened
  main.append(card(t("traffic.range.live"), el("p", { class: "hint" }, t("traffic.usage.live")), since, figures.node));
  const draw = () => {
    const { points, sessions, total } = minutes.points(Date.now());
    const said = points.map((point) => ({ ...point, label: time(point.at) }));
    const series = sessions.map((id) => ({ id, label: sessionName(id) }));
    const summary = t("traffic.usage.since", { total: bytes(total) });
    update(since, el("p", { class: "is-live", data: isCounted ? { total } : {} }, summary));
    figures.draw({ summary, points: said, series });
  };
  draw();
  const timer = setInterval(draw, 1_000);
  page.signal.addEventListener("abort", () => clearInterval(timer));
  follow({
    types: [],
    onUsage: (frame) => minutes.moved(frame, Date.now()),
    onState: async (state) => {
      minutes.turned(state === "live", Date.now());
      if (state !== "live") return;
      try {
        const sessions = [];
        for await (const part of pages("/api/bandwidth/sessions", "sessions", { status: "active" }, { signal: page.signal })) sessions.push(...part);
        minutes.begin(sessions, Date.now());
        isCounted = true;
        draw();
      } catch (error) {
        minutes.turned(false, Date.now()); // a gap, then
        unlessRefused(error);
      }
    },
    signal: page.signal,
  });
}
