// Begins a payment: its amount, its limits and its effect are shown before the user goes to the page of the provider.

import { post } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { facts, live, notice } from "../../lib/view.js";
import { money, t } from "../../lib/words.js";
import { added, hosted, isWhole, provider } from "./shared.js";

const USUAL = [10, 25, 50, 100];
const LEAVING_MS = 10_000; // the longest that a browser takes to another site

// The form of the payments that `offer` permits; `balanceOf()` returns the USD in the wallet now.
export function paying(offer, balanceOf) {
  const { min_usd: least, debt_usd: debt, day_left_usd: left = null } = offer;
  const most = left === null ? offer.max_usd : Math.min(offer.max_usd, left);
  if (offer.is_disputed) return el("p", null, t("money.pay.disputed"));
  if (most < least) return el("p", null, t("money.pay.ceiling", { left: money(left), min: money(least) }));
  const usual = USUAL.filter((each) => least <= each && each <= most);
  const bill = live(el("div", { class: "bill" }));
  const node = form({ fields: fields(offer, most, usual[0] ?? least), submit: t("money.pay.submit"), send: begin, note: t("money.pay.note", { n: offer.refund_days }) });
  const input = node.querySelector("[name=amount_usd]");

  function reckoned() {
    const amount = Number(input.value);
    const isGood = input.value !== "" && least <= amount && amount <= most && isWhole(amount);
    update(
      bill,
      facts([
        [t("money.pay.you_pay"), el("strong", null, money(isGood ? amount : null))],
        debt ? [t("money.pay.debt"), money(isGood ? Math.min(debt, amount) : null)] : null,
        [t("money.pay.now"), money(balanceOf())],
        [t("money.pay.then"), money(isGood ? added(balanceOf(), Math.max(0, amount - debt)) : null)],
      ]),
    );
  }
  const chosen = (amount) => {
    input.value = amount;
    reckoned();
  };
  input.after(el("div", { class: "acts usual", role: "group", "aria-label": t("money.pay.usual") }, usual.map((each) => preset(each, chosen))));
  node.addEventListener("input", reckoned);
  node.querySelector(".actions").before(bill);
  reckoned();
  return node;
}

const preset = (amount, chosen) => el("button", { type: "button", class: "button quiet", on: { click: () => chosen(amount) } }, money(amount));

function fields({ providers, min_usd: least, day_left_usd: left }, most, value) {
  const limits = { min: money(least), max: money(most) };
  const hint = t(left === undefined ? "money.pay.amount_hint" : "money.pay.day_hint", limits);
  return [
    { name: "amount_usd", type: "number", label: t("money.pay.amount"), value, min: least, max: most, step: 0.01, inputmode: "decimal", required: true, hint },
    providers.length > 1 ? { name: "provider", type: "select", label: t("money.pay.by"), required: true, options: providers.map((each) => [each, provider(each)]) } : null,
  ].filter(Boolean);
}

async function begin(values, node) {
  const { payment } = await post("/api/payments", values, { once: true });
  const address = hosted(payment.url);
  if (!address) return go(`/console/wallet/pay/${payment.id}`);
  node.querySelector(".bill").append(notice("info", t("money.pay.leaving")));
  location.assign(address);
  await left();
}

// Done when the reader has come back, so that a second press begins no second payment.
function left() {
  return new Promise((resolve) => {
    addEventListener("pageshow", resolve, { once: true });
    setTimeout(resolve, LEAVING_MS);
  });
}
