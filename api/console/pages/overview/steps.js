// The first steps of a new user, in order, until all of them are done.

import { post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { badge, button, card, link, toast } from "../../lib/view.js";
import { t } from "../../lib/words.js";

// steps({me, hasMail, hasBought, hasUsed}): a card, or null when there is nothing left to do.
export function steps({ me, hasMail, hasBought, hasUsed }) {
  const hasMoney = hasBought || me.usd_balance > 0;
  const todo = [
    ...(hasMail ? [["confirm", me.email_verified, () => button(t("overview.step.confirm.action"), resend)]] : []),
    ["money", hasMoney, () => [link("/console/wallet", t("overview.step.money.pay")), " · ", link("/console/devices", t("overview.step.money.earn"))]],
    ["buy", hasBought, () => link("/console/sessions/new", t("overview.step.buy.action"), { kind: hasMoney ? "primary" : undefined })],
    ["line", hasUsed, () => link("/console/sessions", t("overview.step.line.action"))],
  ];
  if (todo.every(([, isDone]) => isDone)) return null;
  const items = todo.map(([name, isDone, action]) =>
    el(
      "li",
      { data: { step: name, done: String(isDone) } },
      badge(isDone ? "good" : "info", t(isDone ? "overview.step.done" : "overview.step.todo")),
      " ",
      el("span", null, t(`overview.step.${name}`)),
      isDone ? null : el("div", { class: "actions" }, action()),
    ),
  );
  return card(t("overview.steps"), el("ol", { class: "overview-steps" }, items));
}

async function resend() {
  await post("/auth/verify/resend");
  toast("good", t("overview.step.confirm.sent"));
}
