// My sessions: the used and the remaining bytes of each, as they are used.

import { get } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { follow } from "../../lib/stream.js";
import { Turns } from "../../lib/turns.js";
import { link, more } from "../../lib/view.js";
import { count, date, money, rate, t } from "../../lib/words.js";
import { go } from "../../lib/router.js";
import { list } from "../work/shared.js";
import { OF_SESSIONS, sessionLink, stateOf, unlessRefused, usedBar } from "./shared.js";

export const words = "traffic";
export const title = "traffic.sessions.title";

const LIMIT = 25;
const STATES = ["active", "all", "ended", "exhausted", "expired"];

export async function render(main, page) {
  const asked = page.query.get("status");
  const sessions = new List(STATES.includes(asked) ? asked : "active", page);
  main.append(
    el("div", { class: "actions above" }, link("/console/sessions/new", t("traffic.buy"), { kind: "primary" }), filter(sessions.status)),
    sessions.node,
  );
  follow({ types: OF_SESSIONS, onEvent: () => sessions.refresh().catch(unlessRefused), onUsage: (frame) => sessions.moved(frame), onState: (state) => state === "live" && sessions.frames.clear(), refresh: () => sessions.refresh(), signal: page.signal });
  await sessions.refresh();
}

function filter(status) {
  const choice = el(
    "select",
    { id: "status", value: status, on: { change: () => go(`/console/sessions?status=${choice.value}`, { replace: true }) } },
    STATES.map((each) => el("option", { value: each }, t(`traffic.state.${each}`))),
  );
  return el("label", { class: "chooser" }, t("traffic.state"), choice);
}

// `kept.length` is the number shown; a list that is requested again has the same number, also when the reader comes
// back.
class List {
  constructor(status, { signal, kept }) {
    Object.assign(this, { status, signal, kept, rows: [], frames: new Map(), turns: new Turns() });
    this.list = list({ caption: t("traffic.sessions.caption"), columns: this.columns(), empty: { text: t("traffic.sessions.empty"), action: link("/console/sessions/new", t("traffic.buy"), { kind: "primary" }) } });
    this.shown = el("p", { class: "hint" });
    this.next = more(() => this.longer());
    this.next.hidden = true;
    this.node = el("div", null, this.shown, this.list.node, this.next);
  }

  async refresh() {
    const isNewest = this.turns.begin();
    const found = [];
    let cursor = null;
    let total = null;
    do {
      const part = await get("/api/bandwidth/sessions", { status: this.status, limit: LIMIT, cursor }, { signal: this.signal });
      found.push(...part.sessions);
      total ??= part.total;
      cursor = part.next_cursor;
    } while (cursor && found.length < (this.kept.length ?? LIMIT));
    if (!isNewest()) return;
    this.rows = found.map((row) => this.current(row));
    this.next.hidden = !cursor;
    this.shown.hidden = !found.length;
    update(this.shown, total === undefined ? count(found.length) : t("common.of", { shown: found.length, n: total }));
    this.draw();
  }

  // Frames that came while a list was on its way are not in the list.
  current(row) {
    const told = row.status === "active" ? this.frames.get(row.id) : null;
    return { ...row, bytes_used: Math.max(row.bytes_used, told?.bytes_used ?? 0) };
  }

  moved(frame) {
    this.frames.set(frame.session_id, frame);
    const row = this.rows.find((each) => each.id === frame.session_id);
    if (!row) return;
    row.bytes_used = frame.bytes_used;
    this.draw();
  }

  speed(row) {
    const frame = this.frames.get(row.id);
    return el("span", { class: "is-live" }, rate(row.status === "active" ? frame?.bytes_per_second : null));
  }

  columns() {
    return [
      { key: "session", label: t("traffic.session"), cell: (row) => [sessionLink(row.id), el("span", { class: "hint block" }, date(row.created_at))] },
      { key: "status", label: t("traffic.state"), cell: (row) => stateOf(row) },
      { key: "used", label: t("traffic.use"), cell: usedBar },
      { key: "rate", label: t("traffic.rate"), number: true, cell: (row) => this.speed(row) },
      { key: "price", label: t("traffic.price_per_gb"), number: true, cell: (row) => money(row.price_per_gb) },
      { key: "paid", label: t("traffic.paid"), number: true, cell: (row) => money(row.paid) },
      { key: "expires", label: t("traffic.until"), cell: (row) => date(row.ended_at ?? row.expires_at) },
    ];
  }

  draw() {
    this.list.show(this.rows);
    for (const row of this.rows) this.node.querySelector(`[data-row="${row.id}"]`).dataset.used = String(row.bytes_used);
  }

  async longer() {
    this.kept.length = this.rows.length + LIMIT;
    await this.refresh();
    return true; // the button is hidden where there is no more
  }
}
