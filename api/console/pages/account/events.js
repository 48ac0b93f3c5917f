// Events of my account, newest first, and as they happen.

import { get } from "../../lib/api.js";
import { el, keyed, replace } from "../../lib/dom.js";
import { happened, happenedPath, ready } from "../../lib/happenings.js";
import { follow } from "../../lib/stream.js";
import { link, more } from "../../lib/view.js";
import { ago, date, t } from "../../lib/words.js";
import { TYPES, again, typed } from "./access.js";

export const words = "access";
export const title = "access.events.title";

const LIMIT = 50;
const AGES_MS = 10_000; // how old an event is changes by itself
const MOST = 1_000; // that are kept while the page is open

export async function render(main, page) {
  await ready();
  const feed = new Feed(page);
  follow({ onEvent: (event) => feed.heard([event]), refresh: () => feed.refresh(), signal: page.signal });
  await feed.back();
  main.append(feed.node);
  const timer = setInterval(() => feed.draw(), AGES_MS);
  page.signal.addEventListener("abort", () => clearInterval(timer));
}

class Feed {
  constructor({ query, signal, kept }) {
    const type = TYPES.includes(query.get("type")) ? query.get("type") : "";
    Object.assign(this, { signal, kept, type, rows: [], after: undefined, isLoaded: false });
    this.problem = el("div");
    this.empty = el("div", { class: "empty", hidden: true });
    this.list = el("ul", { class: "happenings" });
    this.next = more(() => this.older());
    this.most = el("p", { class: "hint" }, t("access.events.most", { n: MOST }));
    this.node = el("div", null, el("p", null, t("access.events.text")), el("div", { class: "filters" }, this.filter()), this.problem, this.empty, this.list, this.next, this.most);
  }

  async get(after) {
    const part = await get("/api/events", { types: this.type, limit: LIMIT, after }, { signal: this.signal });
    // Of a type that is rare a part may be empty, and not be the last.
    return part.next && !part.events.length ? this.get(part.next) : part;
  }

  // The newest ones, beside those that are there already, so far as these reach back to them.
  async load() {
    const { type } = this;
    const { events, next } = await this.get();
    if (type !== this.type) return; // another one was chosen meanwhile
    const known = new Set(this.rows.map((row) => row.id));
    const isJoined = this.isLoaded && events.some((event) => known.has(event.id));
    // Events older than a gap go, and are requested again; events that came meanwhile stay.
    if (next && !isJoined) this.rows = this.rows.filter((row) => row.id > events[0].id);
    if (!next || !isJoined) this.after = next;
    this.isLoaded = true;
    this.heard(events);
  }

  // The number of rows from before, when the reader has gone on and come back.
  async back() {
    await this.load();
    while (this.after && this.rows.length < Math.min(this.kept.length ?? 0, MOST)) await this.older();
  }

  refresh() {
    return again(this.problem, () => this.load());
  }

  // Identifiers are in the order of time; an event that comes twice is one event.
  heard(events) {
    const wanted = events.filter((event) => !this.type || event.type === this.type);
    const all = new Map([...this.rows, ...wanted].map((event) => [event.id, event]));
    this.rows = [...all.values()].toSorted((one, other) => (one.id < other.id ? 1 : -1)).slice(0, MOST);
    this.draw();
  }

  draw() {
    keyed(this.list, this.rows, (event) => event.id, line, aged);
    this.empty.hidden = this.rows.length > 0;
    replace(this.empty, el("p", null, t(this.type ? "access.events.none_of_type" : "access.events.empty")));
    const isFull = this.rows.length >= MOST;
    this.most.hidden = !isFull;
    this.next.hidden = isFull || !this.after;
  }

  async older() {
    const { events, next } = await this.get(this.after);
    this.after = next;
    this.heard(events);
    this.kept.length = this.rows.length;
    return true; // the button is hidden where there is no more
  }

  filter() {
    const all = [["", t("access.events.all")], ...TYPES.map((each) => [each, typed(each)])];
    const chosen = async (event) => {
      Object.assign(this, { type: event.target.value, rows: [], after: undefined, isLoaded: false });
      history.replaceState(history.state, "", this.type ? `?type=${this.type}` : location.pathname);
      await this.refresh();
    };
    const choice = el("select", { value: this.type, on: { change: chosen } }, all.map(([value, text]) => el("option", { value }, text)));
    return el("label", { class: "chooser" }, t("access.events.filter"), choice);
  }
}

function line(event) {
  const path = happenedPath(event);
  const text = happened(event);
  const when = el("time", { datetime: event.created_at, title: date(event.created_at) }, ago(event.created_at));
  return el("li", { data: { event: event.id } }, path ? link(path, text) : text, el("span", { class: "hint block" }, when, " · ", el("code", null, event.type)));
}

function aged(node, event) {
  node.querySelector("time").textContent = ago(event.created_at);
}
