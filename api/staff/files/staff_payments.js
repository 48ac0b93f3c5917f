// Payments by providers: listed, looked at, and decided if they are doubtful.

import { actButton, ask, at, card, done, form, heading, link, may, moment, ofUser, table } from "./staff_parts.js";
import { el } from "./dom.js";

const STATES = ["doubtful", "open", "paid", "expired", "failed"];
const user = (id) => link(ofUser(id), id);

const cells = {
  payment: (each) => link(`/payment/${at(each.id)}`, each.id),
  user: (each) => user(each.user_id),
  "at (UTC)": (each) => moment(each.created_at),
  provider: (each) => each.provider,
  state: (each) => each.status,
  usd: (each) => each.amount_usd,
  doubt: (each) => each.doubt || null,
};

export async function paymentsPage(wanted = "doubtful", cursor = "") {
  const query = new URLSearchParams({ status: wanted, cursor, limit: 50 });
  const { payments, next_cursor: next } = await ask("GET", `/payments?${query}`);
  return [
    heading(`Payments: ${wanted}`),
    el("p", {}, STATES.map((each) => [link(`/payments/${each}`, each), " "])),
    table("Payments", payments, cells),
    next && el("p", {}, link(`/payments/${at(wanted)}/${at(next)}`, "Older payments")),
  ];
}

function decision(payment) {
  if (payment.status !== "doubtful") return null;
  const path = `/payments/${at(payment.id)}`;
  const credit = may("payment.credit") && card(el("h2", {}, "Accept it"), form([
    ["amount", "Amount that arrived, in USD", { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?", value: String(payment.amount_usd) }],
    ["why", "Reason to accept it", { maxlength: 500 }],
  ], "Accept", async ({ amount, why }) => {
    const result = await ask("POST", `${path}/credit`, { amount: Number(amount), reason: why });
    await done(result.state === "waits" ? `waits for a second person: request ${result.id}` : `accepted: ${result.amount} ${result.currency}; the daemon asks the provider, and credits them`);
  }, ({ amount }) => `The daemon asks the provider, and credits ${amount} USD.`));
  const end = may("payment.give_up") && card(el("h2", {}, "Give it up"), form([["why", "Reason to give it up", { maxlength: 500 }]], "Give up", async ({ why }) => {
    await ask("POST", `${path}/give-up`, { reason: why });
    await done("the payment has failed");
  }, () => "The user gets nothing."));
  return [credit, end];
}

export async function paymentPage(id) {
  const { payment, username, provider_id: reference, returns, receipt } = await ask("GET", `/payments/${at(id)}`);
  return [
    heading(`Payment of ${payment.amount_usd} USD`),
    el("p", {}, `${payment.status} · ${payment.provider} ${reference ?? ""} · `, moment(payment.created_at), " (UTC) · user ", link(ofUser(payment.user_id), username),
      receipt ? ` · receipt ${receipt}` : null),
    payment.doubt && el("p", { class: "error" }, payment.doubt),
    may("payment.look") && el("p", {}, actButton("Ask the provider", async (body) => {
      await ask("POST", `/payments/${at(id)}/look`, body);
      return "the daemon asks the provider";
    })),
    table("Refunds and disputes", returns, { id: (each) => each.id, kind: (each) => each.kind, state: (each) => each.status, usd: (each) => each.amount_usd,
      "held, usd": (each) => each.held_usd, "at (UTC)": (each) => moment(each.created_at) }),
    decision(payment),
  ];
}
