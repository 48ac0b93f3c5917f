// The money in the wallet: the way to pay more in, the payments, the held part, and every movement with its purpose.

import { get } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { facts as site } from "../../lib/site.js";
import { follow } from "../../lib/stream.js";
import { Turns } from "../../lib/turns.js";
import { card, facts, link, notice } from "../../lib/view.js";
import { credits, date, day, money, t } from "../../lib/words.js";
import { unlessRefused } from "../traffic/shared.js";
import { place } from "../work/shared.js";
import { Buyer } from "./buyer.js";
import { paying } from "./paying.js";
import { Topping } from "./topping.js";
import { Lines, added, paymentState, receiptLink, signed, subject } from "./shared.js";

export const words = "money";
export const title = "money.wallet.title";

export async function render(main, page) {
  const wallet = new Balance(page);
  main.append(wallet.node);
  follow({ onEvent: () => wallet.refresh().catch(unlessRefused), refresh: () => wallet.refresh(), signal: page.signal });
  await wallet.refresh();
}

class Balance {
  constructor(page) {
    Object.assign(this, { signal: page.signal, turns: new Turns(), balance: page.me.usd_balance });
    this.restrictions = el("div");
    this.sums = el("div", { class: "sums" });
    this.pay = place();
    this.topping = new Topping(page);
    this.buyer = new Buyer(page);
    this.buyer.node.hidden = true;
    this.empty = el("p");
    const earn = link("/console/devices", t("money.wallet.earn"), { kind: "primary" });
    this.moves = new Lines(page, { path: "/api/wallet/transactions", key: "transactions", caption: t("money.wallet.caption"), columns: columns(), empty: { text: this.empty, action: earn } });
    this.payments = new Lines(page, { path: "/api/payments", key: "payments", caption: t("money.payments.caption"), columns: ofPayments(), empty: { text: t("money.payments.empty") } });
    this.paid = card(t("money.payments"), this.payments.node);
    this.paid.hidden = true;
    this.node = el("div", null, this.restrictions, this.sums, this.pay.node, this.topping.node, this.paid, this.buyer.node, card(t("money.wallet.moves"), this.moves.node));
  }

  async refresh() {
    const isNewest = this.turns.begin();
    const asked = { signal: this.signal };
    const [sums, offer] = await Promise.all([get("/api/wallet", null, asked), get("/api/payments/offer", null, asked), this.moves.refresh(), this.payments.refresh(), this.topping.refresh(), this.buyer.refresh()]);
    if (!isNewest()) return;
    this.balance = sums.usd_balance;
    update(this.restrictions, restrictions(offer));
    update(this.sums, usd(sums), credit(sums));
    this.pay.showOf(offer, () => card(t("money.pay"), offer.providers.length ? paying(offer, () => this.balance) : byHand()));
    this.pay.node.querySelector("form")?.dispatchEvent(new Event("input")); // the bill begins with the balance
    this.paid.hidden = !this.payments.length && !offer.providers.length;
    this.buyer.node.hidden = this.paid.hidden;
    update(this.empty, emptiness(sums, offer));
  }
}

// A debt or a dispute, with its consequence.
function restrictions({ debt_usd: debt, is_disputed: isDisputed, providers }) {
  return [
    isDisputed ? notice("bad", t("money.restricted.disputed")) : null,
    debt ? notice("bad", t("money.restricted.debt", { debt: money(debt) }), " ", t(providers.length ? "money.restricted.pay" : "money.restricted.ask")) : null,
  ];
}

// Without a provider the operator pays money in.
function byHand() {
  const contact = el("p");
  const show = ({ support }) => support && contact.append(el("a", { href: support.includes("://") ? support : `mailto:${support}` }, t("money.pay.contact")));
  site().then(show, unlessRefused);
  return [el("p", null, t("money.wallet.pay_in")), contact];
}

function emptiness({ usd_pending: pending, credit_in_review: review }, { providers }) {
  if (pending > 0 || review > 0) return t("money.wallet.empty.earned");
  return t(providers.length ? "money.wallet.empty.pay" : "money.wallet.empty");
}

function usd({ usd_balance: free, usd_held: held, usd_pending: pending, usd_payable_at: payable }) {
  return card(
    t("money.wallet.usd"),
    identity(free, held, money),
    facts([
      [t("money.wallet.available"), el("strong", { data: { usd: free } }, money(free))],
      [t("money.wallet.held"), link("/console/sessions", money(held))],
      [t("money.wallet.total"), money(added(free, held))],
      pending ? [t("money.wallet.pending"), link("/console/devices", payable ? t("money.wallet.payable", { amount: money(pending), date: day(payable) }) : money(pending))] : null,
    ]),
    el("p", { class: "hint" }, t("money.wallet.usd_hint")),
  );
}

function credit({ credit_balance: free, credit_held: held, credit_in_review: review }) {
  return card(
    t("money.wallet.credits"),
    identity(free, held, credits),
    facts([
      [t("money.wallet.available"), credits(free)],
      [t("money.wallet.held"), link("/console/jobs", credits(held))],
      [t("money.wallet.total"), credits(added(free, held))],
      review ? [t("money.wallet.review"), credits(review)] : null,
    ]),
    el("p", { class: "hint" }, t("money.wallet.credit_hint")),
  );
}

const identity = (free, held, amount) => el("p", { class: "identity" }, t("money.wallet.identity", { total: amount(added(free, held)), available: amount(free), held: amount(held) }));

const ofPayments = () => [
  { key: "at", label: t("money.when"), cell: (row) => link(`/console/wallet/pay/${row.id}`, date(row.created_at)) },
  { key: "state", label: t("money.state"), cell: (row) => paymentState(row.status) },
  { key: "back", label: t("money.payment.refunded"), number: true, cell: (row) => (row.refunded_usd ? money(row.refunded_usd) : null) },
  { key: "receipt", label: t("money.receipt"), cell: (row) => (row.paid_at ? receiptLink(row.id) : null) },
  { key: "amount", label: t("money.wallet.amount"), number: true, cell: (row) => money(row.amount_usd) },
];

const columns = () => [
  { key: "at", label: t("money.when"), cell: (row) => date(row.created_at) },
  { key: "kind", label: t("money.wallet.kind"), cell: (row) => t(`money.kind.${row.kind}`) },
  { key: "for", label: t("money.wallet.for"), cell: subject },
  { key: "amount", label: t("money.wallet.amount"), number: true, cell: (row) => [signed(row), earned(row)] },
];

// The part of a line that is earned money.
const earned = (row) => (row.earned ? el("span", { class: "hint block" }, t("money.wallet.earned", { amount: signed({ ...row, amount: row.earned }) })) : null);
