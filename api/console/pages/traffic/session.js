// One session: use and rest of the bytes, the money held, paid and released; its address for clients, and its end.

import { get, post } from "../../lib/api.js";
import { el, replace, update } from "../../lib/dom.js";
import { lines } from "../../lib/lines.js";
import { follow } from "../../lib/stream.js";
import { Turns } from "../../lib/turns.js";
import { ask, button, card, copyable, facts, link, notice, sessionName, tabs } from "../../lib/view.js";
import { count, date, money, rate, t } from "../../lib/words.js";
import { OF_SESSIONS, chasing, haltWords, refused, remembered, stateOf, unlessRefused, usedBar } from "./shared.js";

export const words = "traffic";
export const title = "traffic.session";

const AGAIN_MS = 5_000; // its cost is requested at most this often while bytes move
const TARGET = "https://example.com/";

export async function render(main, page) {
  const shown = new Shown(page.params.id, page.signal);
  follow({
    types: OF_SESSIONS,
    onEvent: (event) => event.subject_id === shown.id && shown.refresh().catch(unlessRefused),
    onUsage: (frame) => frame.session_id === shown.id && shown.moved(frame),
    onState: (state) => state === "live" && shown.forget(),
    refresh: () => shown.refresh(),
    signal: page.signal,
  });
  await shown.refresh();
  main.querySelector("h1").textContent = sessionName(shown.id);
  main.append(shown.node);
}

class Shown {
  constructor(id, signal) {
    Object.assign(this, { id, signal, found: null, frame: null, dialled: null, turns: new Turns() });
    this.parts = Object.fromEntries(["head", "bill", "why", "dial", "end"].map((name) => [name, el("div")]));
    const { head, bill, why, dial, end } = this.parts;
    this.node = el("div", { class: "session" }, card(t("traffic.use"), head), card(t("traffic.bill"), bill), dial, card(t("traffic.refused"), why), end);
    this.again = chasing(() => this.refresh(), AGAIN_MS, signal);
  }

  async refresh() {
    const isNewest = this.turns.begin();
    const asked = { signal: this.signal };
    const found = await get(`/api/bandwidth/sessions/${this.id}`, null, asked);
    // The whole life of a session in days: there are as many as it lives.
    const query = { session_id: this.id, step: "day", from: found.session.created_at };
    const { total } = await get("/api/usage", query, asked);
    if (this.found && !isNewest()) return;
    Object.assign(this, { found, total });
    this.draw();
  }

  // Bytes come first; their cost follows. Figures that are on their way may be older than the frame.
  moved(frame) {
    this.frame = frame;
    this.again();
    if (!this.found) return;
    this.found.session.bytes_used = frame.bytes_used;
    this.head();
  }

  // How fast it was before the stream was away is not how fast it is.
  forget() {
    this.frame = null;
  }

  draw() {
    this.head();
    this.bill();
    update(this.parts.why, refused(this.total.refusals));
    const { status } = this.found.session;
    if (this.dialled === status) return; // text that is being typed there stays
    this.dialled = status;
    replace(this.parts.dial, status === "active" ? this.dial() : notice("info", t(`traffic.over.${status}`)));
    replace(this.parts.end, status === "active" ? button(t("traffic.end"), () => this.end(), { kind: "danger" }) : link("/console/sessions/new", t("traffic.buy"), { kind: "primary" }));
  }

  head() {
    const { session } = this.found;
    const isActive = session.status === "active";
    const { bytes_used: used, quota_bytes: quota } = session;
    this.node.dataset.session = session.id;
    this.node.dataset.used = String(used);
    update(
      this.parts.head,
      usedBar(session),
      el("p", { class: "identity is-live" }, t("traffic.identity.bytes", { bought: t("traffic.bytes", { n: quota }), used: count(used), left: count(quota - used) })),
      facts([
        [t("traffic.state"), stateOf(session)],
        session.halted ? [t("traffic.halted"), haltWords(session.halted)] : null,
        [t("traffic.exact"), el("span", { class: "is-live" }, t("traffic.bytes", { n: used }))],
        [t("traffic.rate"), el("span", { class: "is-live" }, rate(isActive ? this.frame?.bytes_per_second : null))],
        [t("traffic.open"), el("span", { class: "is-live" }, count(isActive ? this.frame?.connections : null))],
        [t("traffic.connections"), count(this.total?.connections)],
        [t("traffic.bought_at"), date(session.created_at)],
        [t(session.ended_at ? "traffic.ended_at" : "traffic.expires_at"), date(session.ended_at ?? session.expires_at)],
        session.exit ? [t("traffic.exit"), session.exit] : null,
        session.allow_ips ? [t("traffic.allowed"), session.allow_ips.join(", ")] : null,
        session.pending_ips ? [t("traffic.pending"), session.pending_ips.join(", ")] : null,
      ]),
    );
  }

  bill() {
    const { held_usd: held, due_usd: due, session } = this.found;
    const over = session.status === "active" ? "traffic.identity.now" : "traffic.identity.paid";
    update(
      this.parts.bill,
      el("p", { class: "identity is-live" }, t(over, { held: money(held), paid: money(due), released: money(exactly(held - due)) })),
      facts([[t("traffic.price_per_gb"), money(session.price_per_gb)]]),
    );
  }

  dial() {
    const { session, host, username } = this.found;
    const known = remembered(this.id);
    const open = session.passwordless_port;
    const place = el("div");
    const input = el("input", { type: "url", id: "target", value: TARGET, required: true, on: { input: () => input.checkValidity() && made() } });
    const made = () => {
      const proxy = { host, port: session.port, username, password: known?.password ?? "PASSWORD" };
      const texts = lines(proxy, input.value).map(([name, text]) => [t(`traffic.line.${name}`), line(name, text)]);
      const free = open ? lines({ host, port: open }, input.value)[0][1] : null;
      replace(place, tabs(texts, t("traffic.lines")), free ? [el("p", { class: "label" }, t("traffic.lines.open")), copyable(free, t("traffic.lines.open"))] : null);
    };
    made();
    return card(
      t("traffic.lines"),
      known ? notice("warn", t("traffic.lines.now")) : notice("info", t("traffic.lines.password")),
      facts([
        [t("traffic.proxy"), `${host}:${session.port}`],
        [t("traffic.username"), username],
      ]),
      el("label", { class: "chooser", for: "target" }, t("traffic.target"), input),
      place,
    );
  }

  // Its cost is requested again, so that it is the present one.
  async end() {
    await this.refresh();
    const { held_usd: held, due_usd: due } = this.found;
    const text = t("traffic.end.text", { paid: money(due), released: money(exactly(held - due)) });
    if (!(await ask({ title: t("traffic.end.title"), text, action: t("traffic.end") }))) return;
    await post("/api/bandwidth/end", { session_id: this.id });
    await this.refresh();
  }
}

function line(name, text) {
  const shown = copyable(text, t(`traffic.line.${name}`));
  shown.dataset.line = name;
  const note = { browser: "traffic.line.browser_note", env: "traffic.line.env_note" }[name];
  return [shown, note ? el("p", { class: "hint" }, t(note)) : null];
}

// Of two amounts in micro-dollars, without what binary fractions add.
const exactly = (usd) => Math.round(usd * 1_000_000) / 1_000_000;
