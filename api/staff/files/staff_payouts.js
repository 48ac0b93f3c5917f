// Payouts: listed, looked at with the sources of the earnings, and decided.

import { ask, at, card, done, folded, form, heading, link, may, moment, ofUser, save, send, table } from "./staff_parts.js";
import { el } from "./dom.js";

const STATES = ["requested", "approved", "sent", "paid", "rejected", "failed", "cancelled"];
const CODES = ["method_invalid", "name_mismatch", "identity_needed", "earnings_in_doubt", "circular_earnings", "terms_broken", "not_supported"];
const FORMATS = [["csv", "CSV"], ["pain001", "pain.001.001.09"], ["pain001.03", "pain.001.001.03"]];
const SHOWN_LINES = 20; // that are not booked
const user = (id) => link(ofUser(id), id);

export const payoutCells = {
  payout: (each) => link(`/payout/${at(each.id)}`, each.id),
  user: (each) => user(each.user_id),
  amount: (each) => `${each.amount} ${each.currency}`,
  "sent, usd": (each) => each.net_usd,
  "requested at (UTC)": (each) => moment(each.requested_at),
  "decide by (UTC)": (each) => moment(each.decide_by),
  reason: (each) => each.reason,
};

// The approved payouts leave in one file, which has whole bank accounts.
function batches() {
  if (!may("payout.export")) return null;
  const file = async (id) => done(`batch ${id} is saved as ${await save(`/payout_batches/${at(id)}/file`)}`);
  return [
    folded("Send the approved payouts", el("p", { class: "hint" }, "They count as sent; the file goes to the bank."), form([
      ["format", "Format", { options: FORMATS }],
      ["rate", "EUR for a USD, empty for a file in USD", { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?", required: false }],
    ], "Send and download", async ({ format, rate }) => {
      const { batch } = await ask("POST", "/payout_batches", { format, eur_rate: rate ? Number(rate) : null });
      await (batch ? file(batch.id) : done("no approved payout waits for this format"));
    })),
    folded("Download a batch again", form([["batch", "Batch", { maxlength: 64 }]], "Download", ({ batch }) => file(batch))),
  ];
}

// The list of the bank comes back: each line books the outcome of a payout.
function outcomes() {
  if (!may("payout.import")) return null;
  return folded("Book the outcomes", el("p", { class: "hint" }, "The downloaded table with the columns outcome and reason filled in. Again it changes nothing."),
    form([["list", "Table (CSV)", { type: "file", accept: ".csv,text/csv" }]], "Book", async ({ list }) => {
      const { lines, refused, waiting } = await send("/payout_outcomes", list);
      const left = lines.filter((each) => each.state !== "booked").slice(0, SHOWN_LINES).map((each) => `; line ${each.line}: ${each.result}`);
      await done(`${lines.length - refused - waiting} of ${lines.length} lines are booked, ${refused} refused, ${waiting} wait${left.join("")}`);
    }));
}

export async function payoutsPage(wanted = "requested", cursor = "") {
  const query = new URLSearchParams({ state: wanted, cursor, limit: 50 });
  const { payouts, next_cursor: next } = await ask("GET", `/payouts?${query}`);
  return [
    heading(`Payouts: ${wanted}`),
    el("p", {}, STATES.map((each) => [link(`/payouts/${each}`, each), " "])),
    table("Payouts", payouts, payoutCells),
    next && el("p", {}, link(`/payouts/${at(wanted)}/${at(next)}`, "Newer payouts")),
    batches(),
    outcomes(),
  ];
}

function decision(payout) {
  const approve = may("payout.approve") && payout.state === "requested" && card(el("h2", {}, "Approve"),
    form([["why", "Reason to approve", { maxlength: 500 }]], "Approve", async ({ why }) => {
      const result = await ask("POST", `/payouts/${at(payout.id)}/approve`, { reason: why });
      await done(result.state === "waits" ? `waits for a second person: request ${result.id}` : "the payout is approved");
    }, () => `${payout.net_usd} USD are sent with the next batch.`));
  const reject = may("payout.reject") && ["requested", "approved"].includes(payout.state) && card(el("h2", {}, "Reject"),
    form([["code", "Reason that the user reads", { options: CODES.map((each) => [each, each.replaceAll("_", " ")]) }],
      ["why", "Reason for the log", { maxlength: 500 }]], "Reject", async ({ code, why }) => {
      await ask("POST", `/payouts/${at(payout.id)}/reject`, { code, reason: why });
      await done("the payout is rejected");
    }, () => `${payout.amount} ${payout.currency} return to the user's earnings.`));
  return [approve, reject];
}

function identity({ payout, identity_checked: isChecked }) {
  if (!may("user.verify")) return null;
  const words = isChecked ? "Remove the checked identity" : "Record a checked identity";
  return card(el("h2", {}, "Identity"), form([["why", "How it was checked, without a copy", { maxlength: 500 }]], words, async ({ why }) => {
    await ask("POST", `/users/${at(payout.user_id)}/verify`, { reason: why, is_checked: !isChecked });
    await done("the record is changed");
  }));
}

export async function payoutPage(id) {
  const page = await ask("GET", `/payouts/${at(id)}`);
  const { payout } = page;
  return [
    heading(`Payout of ${payout.net_usd} USD`),
    el("p", {}, `${payout.state} · ${payout.amount} ${payout.currency} · user `, user(payout.user_id),
      ` · identity ${page.identity_checked ? "checked" : "not checked"} · decide by `, moment(payout.decide_by)),
    el("p", {}, `to ${page.method_kind} ${page.method_shown}${page.holder ? ` of ${page.holder}` : ""}, added at `, moment(page.method_added_at)),
    table("Earnings", page.earnings, { currency: (each) => each.currency, earned: (each) => each.earned, available: (each) => each.available,
      "in payout": (each) => each.in_payout, paid: (each) => each.paid }),
    table("Sources of the newest earnings", page.sources, { buyer: (each) => user(each.buyer_id), payments: (each) => each.payments, earned: (each) => each.earned,
      "has deposited": (each) => (each.has_deposited ? "yes" : "no"), "has a bonus": (each) => (each.has_bonus ? "yes" : "no"),
      signs: (each) => each.signs.join(", ") || null, circular: (each) => (each.is_circular ? "yes" : "no") }),
    decision(payout),
    identity(page),
  ];
}
