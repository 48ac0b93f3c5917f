// Asks for a payout: its worth, its fee and the promised time are shown before.

import { post } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { ask, facts, live, notice, toast } from "../../lib/view.js";
import { money, t } from "../../lib/words.js";
import { paid } from "../work/shared.js";
import { added, duration } from "./shared.js";

const CENTS = 100;
const MICRO = 1_000_000;

// The form of a payout of what is withdrawable by `terms`, to one of `methods`; `again()` shows the page anew.
export function requesting(terms, methods, again) {
  const currencies = ["credit", "usd"].filter((each) => terms.withdrawable[each]?.amount > 0);
  const ready = methods.filter((each) => terms.methods.includes(each.kind) && new Date(each.usable_at) <= new Date());
  if (!terms.rules.every((each) => each.is_met) || !currencies.length || !ready.length) return notice("info", t("money.payout.not_yet"));
  const bill = live(el("div", { class: "bill" }));
  const node = form({ fields: fields(terms, currencies, ready), submit: t("money.payout.ask"), send });
  const input = (name) => node.querySelector(`[name=${name}]`);
  const currency = () => input("currency")?.value ?? currencies[0];
  const priced = () => priceOf(terms, currency(), Number(input("amount").value));

  function reckoned() {
    const price = priced();
    update(
      bill,
      facts([
        [t("money.payout.worth"), money(price?.usd)],
        [t("money.payout.fee"), money(terms.fee_usd)],
        [t("money.payout.net"), el("strong", null, money(price?.net))],
        [t("money.payout.decided"), duration(terms.decides_within_s)],
      ]),
    );
  }

  async function send({ amount, method_id: methodId }) {
    const price = priced();
    const values = { amount: paid(amount, currency()), net: money(price?.net), method: ready.find((each) => each.id === methodId).shown };
    const isSure = await ask({ title: t("money.payout.sure", values), text: t("money.payout.sure.text", values), action: t("money.payout.ask"), kind: "primary" });
    if (!isSure) return;
    await post("/api/payouts", { amount, currency: currency(), method_id: methodId }, { once: true });
    toast("good", t("money.payout.asked"));
    await again();
  }

  input("currency")?.addEventListener("change", () => {
    const { amount } = terms.withdrawable[currency()];
    Object.assign(input("amount"), { max: amount, value: amount });
  });
  node.addEventListener("input", reckoned);
  node.addEventListener("change", reckoned);
  node.querySelector(".actions").before(bill);
  reckoned();
  return node;
}

function fields({ withdrawable, minimum_usd: least }, currencies, ready) {
  const { amount: most } = withdrawable[currencies[0]];
  return [
    currencies.length > 1 ? { name: "currency", type: "select", label: t("money.payout.from"), required: true, options: currencies.map((each) => [each, paid(withdrawable[each].amount, each)]) } : null,
    { name: "amount", type: "number", label: t(currencies.length > 1 ? "money.wallet.amount" : `money.payout.amount.${currencies[0]}`), value: most, min: 0, max: most, inputmode: "decimal", required: true, hint: t("money.payout.amount_hint", { least: money(least) }) },
    { name: "method_id", type: "select", label: t("money.method"), required: true, options: ready.map((each) => [each.id, each.shown]) },
  ].filter(Boolean);
}

// The worth of an amount in whole cents, as the server rounds it: down; null below the smallest payout.
function priceOf({ credit_usd: rate, fee_usd: fee, minimum_usd: least }, currency, amount) {
  const worth = currency === "usd" ? amount : amount * rate;
  const usd = Math.floor(Math.round(worth * MICRO) / (MICRO / CENTS)) / CENTS;
  return usd > 0 && usd >= least && usd > fee ? { usd, net: added(usd, -fee) } : null;
}
