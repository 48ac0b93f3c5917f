// What is in the wallet, what of it is held, and every movement with what it was for.

import { get } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { follow } from "../../lib/stream.js";
import { card, facts, link, more, table } from "../../lib/view.js";
import { credits, date, money, t } from "../../lib/words.js";
import { unlessRefused } from "./shared.js";

export const words = "traffic";
export const title = "traffic.wallet.title";

const LIMIT = 25;
const MICRO = 1_000_000;
// What a reference begins with, and the page of what stands behind it.
const SUBJECTS = [
  [/^bandwidth:([0-9a-f-]{36})/, "sessions", "session"],
  [/^(?:review:)?job:([0-9a-f-]{36})/, "jobs", "job"],
  [/^deploy:([0-9a-f-]{36})/, "deploys", "deploy"],
];

export async function render(main, page) {
  const wallet = new Balance(page.signal);
  main.append(wallet.node);
  follow({ onEvent: () => wallet.refresh().catch(unlessRefused), refresh: () => wallet.refresh(), signal: page.signal });
  await wallet.refresh();
}

class Balance {
  constructor(signal) {
    Object.assign(this, { signal, length: LIMIT, turn: 0 });
    this.sums = el("div", { class: "sums" });
    this.list = el("div");
    this.node = el("div", null, this.sums, card(t("traffic.wallet.moves"), this.list));
  }

  async refresh() {
    this.turn += 1;
    const { turn } = this;
    const asked = { signal: this.signal };
    const [sums, rows] = await Promise.all([get("/api/wallet", null, asked), this.rows(asked)]);
    if (turn !== this.turn) return; // what was asked for later is newer
    replace(this.sums, usd(sums), credit(sums));
    replace(this.list, moves(rows.found), rows.cursor ? more(() => this.longer(rows.found.length)) : null);
  }

  async rows(asked) {
    const found = [];
    let cursor = null;
    do {
      const part = await get("/api/wallet/transactions", { limit: LIMIT, cursor }, asked);
      found.push(...part.transactions);
      cursor = part.next_cursor;
    } while (cursor && found.length < this.length);
    return { found, cursor };
  }

  async longer(length) {
    this.length = length + LIMIT;
    await this.refresh();
    return true; // the list is drawn with another button, or none
  }
}

function usd({ usd_balance: free, usd_held: held, usd_pending: pending }) {
  return card(
    t("traffic.wallet.usd"),
    identity(free, held, money),
    facts([
      [t("traffic.wallet.available"), el("strong", { data: { usd: free } }, money(free))],
      [t("traffic.wallet.held"), link("/console/sessions", money(held))],
      [t("traffic.wallet.total"), money(added(free, held))],
      pending ? [t("traffic.wallet.pending"), link("/console/devices", money(pending))] : null,
    ]),
    el("p", { class: "hint" }, `${t("traffic.wallet.usd_hint")} ${t("traffic.wallet.pay_in")}`),
  );
}

function credit({ credit_balance: free, credit_held: held, credit_in_review: review }) {
  return card(
    t("traffic.wallet.credits"),
    identity(free, held, credits),
    facts([
      [t("traffic.wallet.available"), credits(free)],
      [t("traffic.wallet.held"), link("/console/jobs", credits(held))],
      [t("traffic.wallet.total"), credits(added(free, held))],
      review ? [t("traffic.wallet.review"), credits(review)] : null,
    ]),
    el("p", { class: "hint" }, t("traffic.wallet.credit_hint")),
  );
}

const identity = (free, held, amount) => el("p", { class: "identity" }, t("traffic.wallet.identity", { total: amount(added(free, held)), available: amount(free), held: amount(held) }));

// Without what binary fractions add.
const added = (one, other) => Math.round((one + other) * MICRO) / MICRO;

function moves(rows) {
  const columns = [
    { key: "at", label: t("traffic.when"), cell: (row) => date(row.created_at) },
    { key: "kind", label: t("traffic.wallet.kind"), cell: (row) => t(`traffic.kind.${row.kind}`) },
    { key: "for", label: t("traffic.wallet.for"), cell: subject },
    { key: "amount", label: t("traffic.wallet.amount"), number: true, cell: (row) => signed(row) },
  ];
  const empty = { text: t("traffic.wallet.empty"), action: link("/console/devices", t("traffic.wallet.earn"), { kind: "primary" }) };
  return table({ caption: t("traffic.wallet.caption"), columns, rows, empty, keyOf: (row) => row.id });
}

function signed({ amount, currency }) {
  const text = currency === "usd" ? money(amount) : credits(amount);
  return amount > 0 ? `+${text}` : text;
}

function subject({ reference }) {
  for (const [form, area, word] of SUBJECTS) {
    const found = form.exec(reference);
    if (found) return link(`/console/${area}/${found[1]}`, t(`traffic.for.${word}`, { id: found[1].slice(-8) }));
  }
  return reference;
}
