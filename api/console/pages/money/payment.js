// One payment, also where the provider sends a payer back to: it looks until the payment has ended. Unspent money goes
// back from here.

import { get, post } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { follow } from "../../lib/stream.js";
import { Turns } from "../../lib/turns.js";
import { ask, badge, card, facts, link, live, notice, table, toast } from "../../lib/view.js";
import { date, money, t } from "../../lib/words.js";
import { unlessRefused, worded } from "../traffic/shared.js";
import { place } from "../work/shared.js";
import { OF_PAYMENTS, added, hosted, isWhole, paymentState, provider, receiptLink } from "./shared.js";

export const words = "money";
export const title = "money.payment.title";

const LOOK_MS = 2_000; // between an answer and the next request
const LATER_MS = 15_000; // for a slow bank
const QUICK_LOOKS = 90; // three minutes
const KINDS = { open: "info", paid: "good", refunding: "info", refunded: "info", disputed: "bad", charged_back: "bad", expired: "warn", failed: "bad", doubtful: "warn" };
const KIND_OF_RETURN = { pending: "info", done: "good", won: "good", failed: "bad", lost: "bad" };

export async function render(main, page) {
  const payment = new Payment(page);
  main.append(payment.node);
  follow({ types: OF_PAYMENTS, onEvent: () => payment.refresh().catch(unlessRefused), refresh: () => payment.refresh(), signal: page.signal });
  await payment.refresh();
}

class Payment {
  constructor({ params, signal }) {
    Object.assign(this, { id: params.id, signal, turns: new Turns(), looks: 0, timer: 0, balance: null });
    this.state = live(el("div"));
    this.facts = el("div");
    this.refund = place();
    this.returns = el("div");
    this.node = el("div", null, this.state, card(null, this.facts), this.refund.node, this.returns);
    signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  async refresh() {
    const isNewest = this.turns.begin();
    const asked = { signal: this.signal };
    clearTimeout(this.timer);
    try {
      const found = await get(`/api/payments/${this.id}`, null, asked);
      const wallet = found.refundable_usd ? await get("/api/wallet", null, asked) : null;
      if (!isNewest()) return;
      this.balance = wallet?.usd_balance ?? null;
      this.show(found);
      if (isMoving(found.payment)) this.later();
    } catch (error) {
      if (this.looks) this.later(); // the payment stays as it was shown, until the server answers
      throw error;
    }
  }

  later() {
    if (this.signal.aborted) return;
    this.looks += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => (document.hidden ? this.later() : this.refresh().catch(unlessRefused)), this.looks < QUICK_LOOKS ? LOOK_MS : LATER_MS);
  }

  show({ payment, refundable_usd: refundable }) {
    update(this.state, said(payment));
    update(this.facts, known(payment, refundable));
    this.refund.showOf({ refundable, balance: this.balance }, () => (refundable ? card(t("money.refund"), this.refunding(refundable)) : null));
    update(this.returns, payment.returns.length ? card(t("money.returns"), returned(payment.returns)) : null);
  }

  refunding(refundable) {
    const bill = live(el("div", { class: "bill" }));
    const field = { name: "amount_usd", type: "number", label: t("money.refund.amount"), value: refundable, min: 0.01, max: refundable, step: 0.01, inputmode: "decimal", required: true, hint: t("money.refund.hint", { max: money(refundable) }) };
    const node = form({ fields: [field], submit: t("money.refund.submit"), kind: "danger", send: (values) => this.back(values) });
    const input = node.querySelector("[name=amount_usd]");
    const reckoned = () => {
      const amount = Number(input.value);
      const isGood = amount > 0 && amount <= refundable && isWhole(amount);
      update(
        bill,
        facts([
          [t("money.refund.back"), el("strong", null, money(isGood ? amount : null))],
          [t("money.pay.now"), money(this.balance)],
          [t("money.pay.then"), money(isGood ? added(this.balance, -amount) : null)],
        ]),
      );
    };
    node.addEventListener("input", reckoned);
    node.querySelector(".actions").before(bill);
    reckoned();
    return node;
  }

  // Asks with the consequence in numbers, and sends the money back.
  async back({ amount_usd: amount }) {
    const text = t("money.refund.ask.text", { amount: money(amount), left: money(added(this.balance, -amount)) });
    if (!(await ask({ title: t("money.refund.ask", { amount: money(amount) }), text, action: t("money.refund.submit") }))) return;
    await post(`/api/payments/${this.id}/refund`, { amount_usd: amount }, { once: true });
    toast("good", t("money.refund.begun", { amount: money(amount) }));
    await this.refresh();
  }
}

// Whether the provider may report something new.
const isMoving = ({ status, returns }) => status === "open" || returns.some((each) => each.kind === "refund" && each.status === "pending");

// The state of a payment in a sentence, with the next step.
function said(payment) {
  const { status, amount_usd: amount, url } = payment;
  const address = status === "open" && url ? hosted(url) : null;
  const steps = {
    open: address ? el("a", { href: address, class: "button primary" }, t("money.payment.onward")) : null,
    paid: [link("/console/sessions/new", t("money.payment.buy"), { kind: "primary" }), receiptLink(payment.id)],
    expired: link("/console/wallet", t("money.payment.again"), { kind: "primary" }),
    failed: link("/console/wallet", t("money.payment.again"), { kind: "primary" }),
  };
  const text = worded("money.payment.says", status, { amount: money(amount) });
  return [notice(KINDS[status] ?? "info", text), el("p", { class: "actions" }, steps[status] ?? null, link("/console/wallet", t("money.payment.wallet")))];
}

const known = (payment, refundable) =>
  facts([
    [t("money.wallet.amount"), el("strong", null, money(payment.amount_usd))],
    [t("money.state"), paymentState(payment.status)],
    [t("money.payment.begun"), date(payment.created_at)],
    payment.paid_at ? [t("money.payment.arrived"), date(payment.paid_at)] : null,
    [t("money.pay.by"), provider(payment.provider)],
    payment.refunded_usd ? [t("money.payment.refunded"), money(payment.refunded_usd)] : null,
    payment.paid_at ? [t("money.payment.refundable"), money(refundable)] : null,
    [t("money.payment.id"), payment.id],
  ]);

const returned = (rows) =>
  table({
    caption: t("money.returns.caption"),
    columns: [
      { key: "at", label: t("money.when"), cell: (row) => date(row.created_at) },
      { key: "kind", label: t("money.wallet.kind"), cell: (row) => worded("money.return.kind", row.kind) },
      { key: "state", label: t("money.state"), cell: (row) => badge(KIND_OF_RETURN[row.status] ?? "info", worded("money.return.state", row.status)) },
      { key: "amount", label: t("money.wallet.amount"), number: true, cell: (row) => money(row.amount_usd) },
    ],
    rows,
  });
