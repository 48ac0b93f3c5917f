// The money in the wallet, the part that is held, and every movement with its purpose.

import { get } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { follow } from "../../lib/stream.js";
import { card, facts, link, more, sessionName } from "../../lib/view.js";
import { credits, date, day, money, t } from "../../lib/words.js";
import { list } from "../work/shared.js";
import { unlessRefused } from "./shared.js";

export const words = "traffic";
export const title = "traffic.wallet.title";

const LIMIT = 25;
const MICRO = 1_000_000;
// The beginning of a reference, and the page of its subject.
const SUBJECTS = [
  [/^bandwidth:([0-9a-f-]{36})/, "sessions", "session"],
  [/^(?:review:)?job:([0-9a-f-]{36})/, "jobs", "job"],
  [/^deploy:([0-9a-f-]{36})/, "deploys", "deploy"],
];

export async function render(main, page) {
  const wallet = new Balance(page);
  main.append(wallet.node);
  follow({ onEvent: () => wallet.refresh().catch(unlessRefused), refresh: () => wallet.refresh(), signal: page.signal });
  await wallet.refresh();
}

class Balance {
  constructor({ signal, kept }) {
    Object.assign(this, { signal, kept, turn: 0 });
    this.sums = el("div", { class: "sums" });
    this.empty = el("p");
    this.list = list({ caption: t("traffic.wallet.caption"), columns: columns(), empty: { text: this.empty, action: link("/console/devices", t("traffic.wallet.earn"), { kind: "primary" }) } });
    this.next = more(() => this.longer());
    this.next.hidden = true;
    this.node = el("div", null, this.sums, card(t("traffic.wallet.moves"), this.list.node, this.next));
  }

  async refresh() {
    this.turn += 1;
    const { turn } = this;
    const asked = { signal: this.signal };
    const [sums, rows] = await Promise.all([get("/api/wallet", null, asked), this.rows(asked)]);
    if (turn !== this.turn) return; // a later request is newer
    update(this.sums, usd(sums), credit(sums));
    const hasEarned = sums.usd_pending > 0 || sums.credit_in_review > 0;
    update(this.empty, t(hasEarned ? "traffic.wallet.empty.earned" : "traffic.wallet.empty"));
    this.list.show(rows.found);
    this.length = rows.found.length;
    this.next.hidden = !rows.cursor;
  }

  async rows(asked) {
    const found = [];
    let cursor = null;
    do {
      const part = await get("/api/wallet/transactions", { limit: LIMIT, cursor }, asked);
      found.push(...part.transactions);
      cursor = part.next_cursor;
    } while (cursor && found.length < (this.kept.length ?? LIMIT));
    return { found, cursor };
  }

  async longer() {
    this.kept.length = this.length + LIMIT;
    await this.refresh();
    return true; // the button is hidden where there is no more
  }
}

function usd({ usd_balance: free, usd_held: held, usd_pending: pending, usd_payable_at: payable }) {
  return card(
    t("traffic.wallet.usd"),
    identity(free, held, money),
    facts([
      [t("traffic.wallet.available"), el("strong", { data: { usd: free } }, money(free))],
      [t("traffic.wallet.held"), link("/console/sessions", money(held))],
      [t("traffic.wallet.total"), money(added(free, held))],
      pending ? [t("traffic.wallet.pending"), link("/console/devices", payable ? t("traffic.wallet.payable", { amount: money(pending), date: day(payable) }) : money(pending))] : null,
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

const columns = () => [
  { key: "at", label: t("traffic.when"), cell: (row) => date(row.created_at) },
  { key: "kind", label: t("traffic.wallet.kind"), cell: (row) => t(`traffic.kind.${row.kind}`) },
  { key: "for", label: t("traffic.wallet.for"), cell: subject },
  { key: "amount", label: t("traffic.wallet.amount"), number: true, cell: (row) => signed(row) },
];

function signed({ amount, currency }) {
  const text = currency === "usd" ? money(amount) : credits(amount);
  return amount > 0 ? `+${text}` : text;
}

function subject({ reference }) {
  for (const [form, area, word] of SUBJECTS) {
    const found = form.exec(reference);
    if (!found) continue;
    const name = word === "session" ? sessionName(found[1]) : t(`traffic.for.${word}`, { id: found[1].slice(-8) });
    return link(`/console/${area}/${found[1]}`, name);
  }
  return reference;
}
