// Parts that the pages of money share.

import { get } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { Turns } from "../../lib/turns.js";
import { badge, link, live, more, sessionName } from "../../lib/view.js";
import { t } from "../../lib/words.js";
import { worded } from "../traffic/shared.js";
import { list, paid, place } from "../work/shared.js";

export const PACE_MS = 500; // several events of one cause are one request
const LIMIT = 25;
const MICRO = 1_000_000;
const HOUR = 3_600; // seconds
const DAY = 24 * HOUR;
// The beginning of a reference, and the page of its subject.
const SUBJECTS = [
  [/^bandwidth:([0-9a-f-]{36})/, "sessions", "session"],
  [/^(?:review:)?job:([0-9a-f-]{36})/, "jobs", "job"],
  [/^deploy:([0-9a-f-]{36})/, "deploys", "deploy"],
];
const KIND_OF_PAYMENT = { open: "info", paid: "good", refunding: "info", refunded: "info", disputed: "warn", charged_back: "bad", expired: "warn", failed: "bad", doubtful: "warn" };
const KIND_OF_PAYOUT = { requested: "info", approved: "info", sent: "info", paid: "good", cancelled: "warn", rejected: "bad", failed: "bad" };

export const OF_PAYMENTS = ["payment.begun", "payment.expired", "payment.failed", "payment.doubtful", "payment.paid", "payment.refund_begun", "payment.refunded", "payment.refund_failed", "payment.disputed", "payment.dispute_decided"];

export const paymentState = (status) => badge(KIND_OF_PAYMENT[status] ?? "info", worded("money.payment.state", status));
export const payoutState = (state) => badge(KIND_OF_PAYOUT[state] ?? "info", worded("money.payout.state", state));
export const provider = (name) => worded("money.provider", name);
export const receiptLink = (id) => link(`/console/wallet/receipt/${id}`, t("money.receipt.show"));

// A sum without what binary fractions add.
export const added = (...amounts) => Math.round(amounts.reduce((sum, each) => sum + each, 0) * MICRO) / MICRO;

// A time of the terms, in days or in hours.
export const duration = (seconds) => (seconds && seconds % DAY === 0 ? t("money.days", { n: seconds / DAY }) : t("money.hours", { n: Math.round(seconds / HOUR) }));

// An amount of a wallet with its sign.
export function signed({ amount, currency }) {
  const text = paid(amount, currency);
  return amount > 0 ? `+${text}` : text;
}

// The subject of a line, by its reference.
export function subject({ reference }) {
  for (const [form, area, word] of SUBJECTS) {
    const found = form.exec(reference);
    if (!found) continue;
    const name = word === "session" ? sessionName(found[1]) : t(`money.for.${word}`, { id: found[1].slice(-8) });
    return link(`/console/${area}/${found[1]}`, name);
  }
  return reference;
}

// Whether an amount is whole cents.
export const isWhole = (amount) => Math.round(amount * MICRO) % (MICRO / 100) === 0;

// An address of the web, or null: the page of a provider is opened only if it is one.
export function hosted(url) {
  try {
    const { protocol, href } = new URL(url);
    return protocol === "https:" || protocol === "http:" ? href : null;
  } catch {
    return null;
  }
}

// A part of the wallet about what is at `path`: its state, a form and acts. `refresh()` requests it, and `show(found)` of each
// kind shows it.
export class Part {
  constructor({ signal }, path) {
    Object.assign(this, { signal, path, turns: new Turns() });
    this.state = live(el("div"));
    this.form = place();
    this.acts = el("div", { class: "actions" });
  }

  async refresh() {
    const isNewest = this.turns.begin();
    const found = await get(this.path, null, { signal: this.signal });
    if (isNewest()) this.show(found);
  }
}

// A list of the API, the newest first, that grows by "load more"; `refresh()` requests again what is shown. The rows of
// `path`, with a `query`, are under `key`; the rest is as `list` takes it.
export class Lines {
  constructor({ signal, kept }, { path, key, query = {}, ...table }) {
    Object.assign(this, { signal, kept, path, key, query, turns: new Turns(), length: 0 });
    this.list = list(table);
    this.next = more(() => this.longer());
    this.next.hidden = true;
    this.node = el("div", null, this.list.node, this.next);
  }

  async refresh() {
    const isNewest = this.turns.begin();
    const found = [];
    let cursor = null;
    do {
      const part = await get(this.path, { ...this.query, limit: LIMIT, cursor }, { signal: this.signal });
      found.push(...part[this.key]);
      cursor = part.next_cursor;
    } while (cursor && found.length < (this.kept[this.key] ?? LIMIT));
    if (!isNewest()) return;
    this.list.show(found);
    this.length = found.length;
    this.next.hidden = !cursor;
  }

  async longer() {
    this.kept[this.key] = this.length + LIMIT;
    await this.refresh();
    return true; // the button is hidden where there is no more
  }
}
