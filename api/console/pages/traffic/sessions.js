// My sessions: what each has used and has left, as it is used.

import { get } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { follow } from "../../lib/stream.js";
import { link, more, table } from "../../lib/view.js";
import { date, money, rate, t } from "../../lib/words.js";
import { go } from "../../lib/router.js";
import { OF_SESSIONS, sessionLink, state, unlessRefused, usedBar } from "./shared.js";

export const words = "traffic";
export const title = "traffic.sessions.title";

const LIMIT = 25;
const STATES = ["active", "all", "ended", "exhausted", "expired"];

export async function render(main, page) {
  const asked = page.query.get("status");
  const list = new List(STATES.includes(asked) ? asked : "active", page.signal);
  main.append(
    el("div", { class: "actions above" }, link("/console/sessions/new", t("traffic.buy"), { kind: "primary" }), filter(list.status)),
    list.node,
  );
  follow({ types: OF_SESSIONS, onEvent: () => list.refresh().catch(unlessRefused), onUsage: (frame) => list.moved(frame), onState: (state) => state === "live" && list.frames.clear(), refresh: () => list.refresh(), signal: page.signal });
  await list.refresh();
}

function filter(status) {
  const choice = el(
    "select",
    { id: "status", value: status, on: { change: () => go(`/console/sessions?status=${choice.value}`, { replace: true }) } },
    STATES.map((each) => el("option", { value: each }, t(`traffic.state.${each}`))),
  );
  return el("label", { class: "chooser" }, t("traffic.state"), choice);
}

// `length` is how many are shown; what is asked for again has as many.
class List {
  constructor(status, signal) {
    Object.assign(this, { status, signal, rows: [], frames: new Map(), next: null, length: LIMIT, turn: 0 });
    this.node = el("div");
  }

  async refresh() {
    this.turn += 1;
    const { turn } = this;
    const found = [];
    let cursor = null;
    do {
      const part = await get("/api/bandwidth/sessions", { status: this.status, limit: LIMIT, cursor }, { signal: this.signal });
      found.push(...part.sessions);
      cursor = part.next_cursor;
    } while (cursor && found.length < this.length);
    if (turn !== this.turn) return; // what was asked for later is newer
    Object.assign(this, { rows: found, next: cursor });
    this.draw();
  }

  moved(frame) {
    const row = this.rows.find((each) => each.id === frame.session_id);
    if (!row) return;
    row.bytes_used = frame.bytes_used;
    this.frames.set(row.id, frame);
    const line = this.node.querySelector(`[data-row="${row.id}"]`);
    replace(line.querySelector("[data-key=used]"), usedBar(row));
    replace(line.querySelector("[data-key=rate]"), this.speed(row));
    line.dataset.used = String(row.bytes_used);
  }

  speed(row) {
    const frame = this.frames.get(row.id);
    return el("span", { class: "is-live" }, rate(row.status === "active" ? frame?.bytes_per_second : null));
  }

  draw() {
    const columns = [
      { key: "session", label: t("traffic.session"), cell: sessionLink },
      { key: "status", label: t("traffic.state"), cell: (row) => state(row.status) },
      { key: "used", label: t("traffic.use"), cell: usedBar },
      { key: "rate", label: t("traffic.rate"), number: true, cell: (row) => this.speed(row) },
      { key: "price", label: t("traffic.price_per_gb"), number: true, cell: (row) => money(row.price_per_gb) },
      { key: "paid", label: t("traffic.paid"), number: true, cell: (row) => money(row.paid) },
      { key: "expires", label: t("traffic.until"), cell: (row) => date(row.ended_at ?? row.expires_at) },
    ];
    const empty = { text: t("traffic.sessions.empty"), action: link("/console/sessions/new", t("traffic.buy"), { kind: "primary" }) };
    const shown = table({ caption: t("traffic.sessions.caption"), columns, rows: this.rows, empty, keyOf: (row) => row.id });
    replace(this.node, shown, this.next ? more(() => this.longer()) : null);
    for (const row of this.rows) this.node.querySelector(`[data-row="${row.id}"]`).dataset.used = String(row.bytes_used);
  }

  async longer() {
    this.length = this.rows.length + LIMIT;
    await this.refresh();
    return true; // the list is drawn with another button, or none
  }
}
