// The overview: first steps, use and rest, earnings, events.

import { ApiError, get } from "../lib/api.js";
import { el, keyed, replace, update } from "../lib/dom.js";
import { happened, happenedPath, ready } from "../lib/happenings.js";
import { mails } from "../lib/letter.js";
import { follow } from "../lib/stream.js";
import { Turns } from "../lib/turns.js";
import { busy, card, facts, failure, link, meter, sessionName, table } from "../lib/view.js";
import { ago, bytes, credits, date, money, percent, rate, t } from "../lib/words.js";
import { steps } from "./overview/steps.js";
import { keyWarnings, warnings } from "./overview/warnings.js";
import { chasing } from "./traffic/shared.js";

export const words = "overview";
export const title = "overview.title";

const EVENTS = 8;
const SHOWN = 20; // sessions, and devices
const SUMMARY_MS = 5_000; // the sums are requested at most this often while bytes move
const DEVICES_MS = 10_000; // a device that comes as an exit has no event
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

export async function render(main, page) {
  await ready();
  const board = new Board(page);
  main.append(board.node);
  // Before the first request: its answers do not contain events of the meantime.
  follow({
    signal: page.signal,
    refresh: () => board.again(),
    onUsage: (frame) => board.moved(frame),
    onState: (state) => state === "live" && board.frames.clear(),
    onEvent: (event) => board.hear(event),
  });
  const timer = setInterval(() => document.hidden || !board.known.devices || board.earned(), DEVICES_MS);
  page.signal.addEventListener("abort", () => clearInterval(timer));
  await board.all(page.me);
}

// The parts of the page, each asked for on its own: one that fails says so, and the others stand.
class Board {
  constructor({ signal }) {
    Object.assign(this, { signal, sessions: [], frames: new Map(), events: [], known: {}, turns: {}, filled: new Set() });
    this.summed = chasing(() => this.reckoned(), SUMMARY_MS, signal);
    this.parts = Object.fromEntries(["head", "keys", "use", "sessions", "devices", "events"].map((name) => [name, el("div", null, busy())]));
    this.rows = el("ul", { class: "overview-sessions" });
    this.lines = el("ul", { class: "overview-events" });
    const { head, keys, use, sessions, devices, events } = this.parts;
    this.node = el(
      "div",
      { class: "overview" },
      head,
      keys,
      card(t("overview.use"), use),
      card(t("overview.sessions"), sessions),
      card(t("overview.earned"), devices),
      card(t("overview.events"), events),
    );
  }

  async all(me) {
    await Promise.all([this.use(), this.listed(), this.earned(), this.happened(), this.expiring()]);
    await this.headed(me);
  }

  async again() {
    await this.all(await this.get("/auth/me"));
  }

  // Fills a part with the result of `make`, unless it was requested again meanwhile; a refusal stands in its place, and
  // is not thrown on. While the server is away, its last answer stays: the top bar shows its age.
  async fill(name, make) {
    this.turns[name] ??= new Turns();
    const isNewest = this.turns[name].begin();
    try {
      const found = await make();
      if (!isNewest()) return;
      update(this.parts[name], found);
      this.filled.add(name);
    } catch (error) {
      if (this.signal.aborted || !isNewest()) return;
      if (!(error instanceof ApiError)) throw error;
      const isAway = error.status === 0 || error.status >= 500;
      if (isAway && this.filled.has(name)) return;
      replace(this.parts[name], failure(error, () => this.fill(name, make)));
    }
  }

  get(path, query) {
    return get(path, query, { signal: this.signal });
  }

  // With `me` as it was requested a moment ago, if it was.
  headed(me) {
    return this.fill("head", async () => {
      const present = me ?? (await this.get("/auth/me"));
      const hasMail = present.email_verified || (this.known.head?.hasMail ?? (await mails(this.signal)));
      this.known.head = { me: present, hasMail, hasBought: await this.hasBought() };
      return this.heading();
    });
  }

  async hasBought() {
    if (this.sessions.length || this.known.head?.hasBought) return true;
    return (await this.get("/api/bandwidth/sessions", { status: "all", limit: 1 })).sessions.length > 0;
  }

  heading() {
    const { me, hasMail, hasBought } = this.known.head;
    return [warnings({ me, sessions: this.sessions }), steps({ me, hasMail, hasBought, hasUsed: this.hasUsed() })];
  }

  hasUsed() {
    return (this.known.summary?.all.bytes ?? 0) > 0;
  }

  expiring() {
    return this.fill("keys", async () => keyWarnings((await this.get("/api/keys")).keys));
  }

  use() {
    return this.fill("use", async () => {
      const summary = await this.get("/api/usage/summary", { tz: ZONE });
      this.known.summary = summary;
      const sums = [
        ["overview.today", summary.today],
        ["overview.days7", summary.last_7_days],
        ["overview.days30", summary.last_30_days],
        ["overview.ever", summary.all],
      ];
      return [
        facts(sums.map(([key, sum]) => [t(key), el("span", { class: "is-live" }, el("strong", null, bytes(sum.bytes)), " ", money(sum.cost_usd))])),
        link("/console/usage", t("overview.to_usage")),
      ];
    });
  }

  // The first bytes are a step done, which nothing else tells.
  async reckoned() {
    const hadUsed = this.hasUsed();
    await this.use();
    if (!hadUsed && this.hasUsed() && this.known.head) update(this.parts.head, this.heading());
  }

  listed() {
    return this.fill("sessions", async () => {
      const { sessions, total } = await this.get("/api/bandwidth/sessions", { status: "active", limit: SHOWN });
      this.sessions = sessions;
      if (sessions.some((each) => (this.frames.get(each.id) ?? each).bytes_used !== each.bytes_used)) this.summed();
      this.draw();
      if (sessions.length) return [this.rows, el("p", { class: "links" }, total > sessions.length ? t("common.of", { shown: sessions.length, n: total }) : null, link("/console/sessions", t("overview.all_sessions", { n: total })))];
      return el("div", { class: "empty" }, el("p", null, t("overview.no_sessions")), link("/console/sessions/new", t("overview.buy"), { kind: "primary" }));
    });
  }

  // A frame of the stream about a session since it was listed is newer than the list; a frame from before an outage is
  // not (`onState`).
  draw() {
    const lines = this.sessions.map((each) => ({ ...each, ...this.frames.get(each.id) }));
    keyed(this.rows, lines, (each) => each.id, (each) => this.row(el("li"), each), (node, each) => this.row(node, each));
  }

  row(node, each) {
    const used = each.quota_bytes - each.bytes_left;
    const text = t("overview.left", { left: bytes(each.bytes_left), quota: bytes(each.quota_bytes), share: percent(used / each.quota_bytes) });
    const now = el("span", { class: "rate" }, each.bytes_per_second ? rate(each.bytes_per_second) : "");
    const name = link(`/console/sessions/${each.id}`, sessionName(each.id));
    update(node, name, " ", el("span", { class: "hint" }, date(each.created_at)), el("div", { class: "is-live" }, meter(used, each.quota_bytes, text), now));
    node.dataset.session = each.id;
    node.dataset.used = String(each.bytes_used);
    return node;
  }

  // The first frame of a session repeats its figures: only bytes that have moved since change the sums.
  moved(frame) {
    const known = this.frames.get(frame.session_id) ?? this.sessions.find((each) => each.id === frame.session_id);
    this.frames.set(frame.session_id, { bytes_used: frame.bytes_used, bytes_left: frame.bytes_left, bytes_per_second: frame.bytes_per_second });
    this.draw();
    if (known ? known.bytes_used !== frame.bytes_used : frame.bytes_per_second > 0) this.summed();
  }

  earned() {
    return this.fill("devices", async () => {
      const { devices } = await this.get("/api/worker/devices", { limit: SHOWN });
      this.known.devices = devices.length > 0;
      return table({
        caption: t("overview.earned_caption"),
        columns: [
          { key: "hostname", label: t("overview.device"), cell: (each) => link(`/console/devices/${each.id}`, each.hostname || each.id) },
          { key: "is_online", label: t("overview.state"), cell: (each) => t(each.is_online ? "overview.online" : "overview.offline") },
          { key: "earn_today", label: t("overview.jobs_earned"), number: true, cell: (each) => credits(each.earn_today) },
          { key: "earn_today_usd", label: t("overview.exit_earned"), number: true, cell: (each) => money(each.earn_today_usd) },
        ],
        rows: devices,
        keyOf: (each) => each.id,
        empty: { text: t("overview.no_devices"), action: link("/console/devices", t("overview.add_device"), { kind: "primary" }) },
      });
    });
  }

  happened() {
    return this.fill("events", async () => {
      const { events } = await this.get("/api/events", { limit: EVENTS });
      this.heard(events);
      return this.told();
    });
  }

  // Events that came while a list was on its way are not in the list. Identifiers are in the order of time.
  heard(events) {
    const all = new Map([...this.events, ...events].map((each) => [each.id, each]));
    this.events = [...all.values()].toSorted((one, other) => (one.id < other.id ? 1 : -1)).slice(0, EVENTS);
  }

  told() {
    if (!this.events.length) return el("p", null, t("overview.no_events"));
    keyed(this.lines, this.events, (event) => event.id, (event) => aged(el("li"), event), aged);
    return [this.lines, link("/console/events", t("overview.to_events"))];
  }

  hear(event) {
    this.heard([event]);
    update(this.parts.events, this.told());
    if (event.type.startsWith("session.")) this.listed().then(() => this.headed());
    else if (event.type.startsWith("device.") || event.type.startsWith("job.")) this.earned();
    else if (event.type.startsWith("key.")) this.expiring();
    else this.headed();
  }
}

function aged(node, event) {
  const path = happenedPath(event);
  const text = happened(event);
  return update(node, path ? link(path, text) : text, " ", el("time", { datetime: event.created_at, title: date(event.created_at) }, ago(event.created_at)));
}
