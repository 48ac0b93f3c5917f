// Parts that the pages of keys, webhooks and events share.

import { ApiError } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { refusal } from "../../lib/forms.js";
import { button, card, notice } from "../../lib/view.js";
import { t } from "../../lib/words.js";

// The types of events that the server tells of, as its catalogue has them.
export const TYPES = [
  "session.created",
  "session.low",
  "session.halted",
  "session.resumed",
  "session.exhausted",
  "session.ended",
  "session.expiring",
  "session.expired",
  "wallet.deposited",
  "wallet.refunded",
  "wallet.corrected",
  "payment.begun",
  "payment.expired",
  "payment.failed",
  "payment.doubtful",
  "payment.paid",
  "payment.refund_begun",
  "payment.refunded",
  "payment.refund_failed",
  "payment.disputed",
  "payment.dispute_decided",
  "card.saved",
  "card.removed",
  "top_up.changed",
  "top_up.refused",
  "payout.requested",
  "payout.cancelled",
  "payout.approved",
  "payout.rejected",
  "payout.sent",
  "payout.paid",
  "payout.failed",
  "payout_method.added",
  "payout_method.removed",
  "account.limits_changed",
  "job.created",
  "job.accepted",
  "job.requeued",
  "job.completed",
  "job.paid",
  "job.failed",
  "job.cancelled",
  "job.disputed",
  "job.decided",
  "deploy.ready",
  "deploy.finished",
  "deploy.cancelled",
  "device.created",
  "device.online",
  "device.offline",
  "device.revoked",
  "referral.earned",
  "goodness.rewarded",
  "case.decided",
  "key.created",
  "key.revoked",
  "key.expiring",
  "key.limit_reached",
  "login.new_network",
  "password.changed",
  "account.suspended",
  "account.resumed",
  "account.closed",
  "account.reopened",
  "webhook.created",
  "webhook.changed",
  "webhook.disabled",
  "test.ping",
];
export const EVERY = "*";

// A word in the reader's language; one that this page does not know stands for itself.
export function worded(stem, word) {
  const key = `access.${stem}.${word}`;
  const text = t(key);
  return text === key ? word : text;
}

export const typed = (type) => worded("type", type);

// Boxes as fields of a form; several may be ticked, and `chosen` are.
export const boxes = (stem, all, chosen) =>
  all.map((each) => ({ name: each, type: "checkbox", label: worded(stem, each), hint: each, value: chosen.includes(each) }));

export const ticked = (all, values) => all.filter((each) => values[each]);

// Puts those fields of a form that are boxes of `names` under one heading.
export function grouped(form, names, legend, hint) {
  const rows = names.map((name) => form.elements[name].closest(".field"));
  const group = el("fieldset", { class: "choices" }, el("legend", null, legend), hint ? el("p", { class: "hint" }, hint) : null);
  rows[0].before(group);
  group.append(el("div", { class: "choices-list" }, rows));
  return form;
}

// A refusal of the page's own: it finds the missing value without asking the server.
export const incomplete = (text) => new ApiError(400, { code: "invalid_field", message: "" }, text);

// Shows a card in `place`, with its first field focused, or its heading. Returns a function that closes it and gives
// the focus back.
export function unfold(place, heading, content, { label, onClose }) {
  const before = document.activeElement;
  const close = () => {
    place.replaceChildren();
    onClose?.();
    if (before.isConnected) before.focus();
  };
  replace(place, card(heading, content, el("div", { class: "actions" }, button(label, close, { kind: "quiet" }))));
  const head = place.querySelector("h2");
  head.tabIndex = -1;
  (place.querySelector("input, select, textarea") ?? head).focus();
  return close;
}

// Calls `load()` again; a refusal is shown in `place`, and the shown parts stay.
export async function again(place, load) {
  try {
    await load();
    place.replaceChildren();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof ApiError)) throw error;
    place.replaceChildren(notice("warn", refusal(error)));
  }
}
