// Where the earnings are, and the way to have them paid out: terms and rules before the request, methods, and payouts.

import { get, post } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { follow } from "../../lib/stream.js";
import { Turns } from "../../lib/turns.js";
import { ask, badge, button, card, facts, link, notice, toast } from "../../lib/view.js";
import { count, date, money, t } from "../../lib/words.js";
import { paced, unlessRefused, worded } from "../traffic/shared.js";
import { paid, place } from "../work/shared.js";
import { methodsOf } from "./methods.js";
import { requesting } from "./requesting.js";
import { Lines, PACE_MS, duration, payoutState } from "./shared.js";

export const words = "money";
export const title = "money.earnings.title";

const TERMS = ["available", "held", "in_payout", "paid", "fees", "spent"];

export async function render(main, page) {
  const earnings = new Earnings(page);
  main.append(earnings.node);
  const refresh = () => earnings.refresh();
  follow({ onEvent: paced(refresh, PACE_MS, page.signal), refresh, signal: page.signal });
  await refresh();
}

class Earnings {
  constructor(page) {
    Object.assign(this, { signal: page.signal, turns: new Turns(), shown: new Map() });
    this.sums = el("div");
    this.request = place();
    this.terms = el("div");
    this.methods = place();
    this.payouts = new Lines(page, { path: "/api/payouts", key: "payouts", caption: t("money.payouts.caption"), columns: this.columns(), empty: { text: t("money.payouts.empty") } });
    this.list = el("div", { id: "payouts" }, card(t("money.payouts"), this.payouts.node));
    this.list.hidden = true;
    this.node = el("div", null, el("p", null, t("money.earnings.text")), this.sums, this.request.node, this.terms, this.methods.node, this.list);
  }

  async refresh() {
    const isNewest = this.turns.begin();
    const asked = { signal: this.signal };
    const [earned, terms, { methods }] = await Promise.all([get("/api/earnings", null, asked), get("/api/payouts/terms", null, asked), get("/api/payouts/methods", null, asked)]);
    this.shown = new Map(methods.map((each) => [each.id, each.shown]));
    await this.payouts.refresh();
    if (!isNewest()) return;
    const again = () => this.refresh().catch(unlessRefused);
    update(this.sums, sums(earned));
    this.list.hidden = !terms.is_offered && !this.payouts.length;
    update(this.terms, terms.is_offered ? card(t("money.payout.terms"), termsOf(terms)) : notice("info", t("money.payout.off")));
    this.request.showOf({ terms, methods }, () => (terms.is_offered ? card(t("money.payout.ask"), rulesOf(terms), requesting(terms, methods, again)) : null));
    const isShown = terms.is_offered || methods.length > 0;
    this.methods.showOf({ kinds: terms.methods, methods }, () => (isShown ? card(t("money.methods"), methodsOf(terms, methods, again)) : null));
  }

  columns() {
    return [
      { key: "at", label: t("money.when"), cell: (row) => date(row.requested_at) },
      { key: "state", label: t("money.state"), cell: state },
      { key: "method", label: t("money.method"), cell: (row) => this.shown.get(row.method_id) },
      { key: "amount", label: t("money.wallet.amount"), number: true, cell: (row) => paid(row.amount, row.currency) },
      { key: "fee", label: t("money.payout.fee"), number: true, cell: (row) => money(row.fee_usd) },
      { key: "net", label: t("money.payout.net"), number: true, cell: (row) => money(row.net_usd) },
      { key: "acts", label: t("money.payout.acts"), cell: (row) => (row.state === "requested" ? this.cancelling(row) : null) },
    ];
  }

  cancelling(row) {
    const amount = paid(row.amount, row.currency);
    return button(
      t("money.payout.cancel"),
      async () => {
        if (!(await ask({ title: t("money.payout.cancel.ask"), text: t("money.payout.cancel.text", { amount }), action: t("money.payout.cancel.yes") }))) return;
        await post(`/api/payouts/${row.id}/cancel`);
        toast("good", t("money.payout.cancelled", { amount }));
        await this.refresh();
      },
      { kind: "quiet", "aria-label": t("money.payout.cancel_of", { amount }) },
    );
  }
}

// The equation of each currency with earnings; each term leads to its lines.
function sums(earned) {
  const currencies = ["credit", "usd"].filter((each) => earned[each].earned.amount);
  if (!currencies.length) return el("div", { class: "empty" }, el("p", null, t("money.earnings.none")), link("/console/devices", t("money.wallet.earn"), { kind: "primary" }));
  return currencies.map((each) => card(t(each === "usd" ? "money.wallet.usd" : "money.wallet.credits"), [equation(earned[each], each), debt(earned[`owed_${each}`], each)]));
}

function equation(terms, currency) {
  const term = (name) => link(`/console/earnings/lines?currency=${currency}&term=${name}`, t(`money.earnings.${name}`, { amount: paid(terms[name].amount, currency) }), { data: { term: name, amount: terms[name].amount } });
  const parts = TERMS.map((name, index) => [index ? " + " : " = ", term(name)]);
  return el("p", { class: "identity" }, term("earned"), parts);
}

// Earnings that were taken back after their payout.
function debt(owed, currency) {
  return owed ? notice("bad", t("money.earnings.owed", { amount: paid(owed, currency) })) : null;
}

function termsOf(terms) {
  return [
    facts([
      [t("money.payout.minimum"), money(terms.minimum_usd)],
      [t("money.payout.fee"), money(terms.fee_usd)],
      [t("money.payout.credit"), money(terms.credit_usd)],
      [t("money.payout.decided"), duration(terms.decides_within_s)],
      [t("money.payout.a_day"), count(terms.limits.payouts_a_day)],
      [t("money.payout.wait"), duration(terms.method_wait_s)],
    ]),
    terms.automatic_usd ? el("p", null, t("money.payout.automatic", { amount: money(terms.automatic_usd) })) : null,
    el("p", { class: "hint" }, t("money.payout.year", { year: money(terms.limits.year_usd), most: money(terms.limits.verified_above_usd) })),
  ];
}

// Each rule with its tick, before anybody asks.
function rulesOf(terms) {
  const values = { minimum: money(terms.minimum_usd), age: duration(terms.first_wait_s), wait: duration(terms.method_wait_s), n: terms.limits.payouts_a_day, year: money(terms.limits.verified_above_usd) };
  const items = terms.rules.map(({ rule, is_met: isMet, met_at: at }) =>
    el(
      "li",
      { data: { rule, met: String(isMet) } },
      badge(isMet ? "good" : "warn", t(isMet ? "money.rule.met" : "money.rule.unmet")),
      " ",
      worded("money.rule", rule, values),
      at ? el("span", { class: "hint block" }, t("money.rule.met_at", { date: date(at) })) : null,
    ),
  );
  return [el("h3", null, t("money.rules")), el("ul", { class: "rules" }, items)];
}

// The state of a payout, with its reason, or the promised time.
function state(row) {
  const hint = row.reason ? worded("money.payout.reason", row.reason) : row.state === "requested" ? t("money.payout.decide_by", { date: date(row.decide_by) }) : null;
  return [payoutState(row.state), hint ? el("span", { class: "hint block" }, hint) : null];
}
