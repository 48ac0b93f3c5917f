// Money of one user, and the acts that wait for a second person.

import { actButton, ask, at, done, folded, form, heading, link, may, moment, ofUser, state, table } from "./staff_parts.js";
import { el } from "./dom.js";

const MICRO = 1_000_000;
const CURRENCIES = [["usd"], ["credit"]];
const REFERENCE = { maxlength: 64, pattern: "[A-Za-z0-9._:\\/\\-]{1,64}" };
const AMOUNT = { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?" };

const micro = (text) => Math.round(Number(text) * MICRO);

// The balance before and after an act that adds `sign` times the amount.
function change(balances, currency, sign, amount) {
  const { available } = balances.find((each) => each.currency === currency);
  const after = (micro(available) + sign * micro(amount || 0)) / MICRO;
  if (Number.isNaN(after)) return "The amount is a number such as 7.42.";
  const short = after < 0 ? ": more than is available" : "";
  return `available ${currency} before: ${available}, after: ${after}${short}`;
}

// The result of an act that moves money, in words.
function moved(result) {
  if (result.state === "waits") return `waits for a second person until ${result.expires_at}: request ${result.id}`;
  const word = result.state === "done" ? "done" : "was done before";
  return `${word}: ${result.amount} ${result.currency}, ${result.id}`;
}

function amounts(page) {
  const { balances } = page;
  const path = `/users/${page.user_id}`;
  const why = ["reason", "Reason for the staff", { maxlength: 500 }];
  const currency = ["currency", "Currency", { options: CURRENCIES }];
  const send = (word, more = {}) => async ({ amount, ...body }) =>
    done(moved(await ask("POST", `${path}/${word}`, { ...body, ...more, amount: Number(amount) })));
  return [
    may("money.deposit") && folded("Pay money in", form([["amount", "Amount paid in", AMOUNT], currency,
      ["reference", "Reference of the payment", REFERENCE], why], "Pay in", send("deposits"),
    (value) => change(balances, value.currency, 1, value.amount))),
    may("money.refund") && folded("Refund a deposit", form([["amount", "Amount to refund", AMOUNT],
      ["deposit", "Reference of the deposit", REFERENCE], ["reference", "Reference of this refund", REFERENCE], why],
    "Refund", send("refunds", { currency: "usd" }), (value) => change(balances, "usd", -1, value.amount))),
    may("money.correct") && folded("Correct a balance", form([["direction", "Direction", { options: [["add"], ["take"]] }],
      ["amount", "Amount to correct", AMOUNT], currency, ["reference", "Reference of this correction", REFERENCE], why],
    "Correct", send("corrections"), (value) => change(balances, value.currency, value.direction === "add" ? 1 : -1, value.amount))),
    may("debt.forgive") && balances.some((each) => each.owed) && folded("Forgive a debt", form([["amount", "Amount to forgive", AMOUNT], currency,
      ["reference", "Reference of this act", REFERENCE], why], "Forgive", send("forgive"),
    (value) => `owed ${value.currency}: ${balances.find((each) => each.currency === value.currency).owed}`)),
  ];
}

function terms(page) {
  const number = { inputmode: "numeric", pattern: "[0-9]*", required: false };
  const why = ["reason", "Reason for the staff", { maxlength: 500 }];
  return [
    may("user.limit") && folded("Limits", el("p", { class: "hint" }, "0 is no limit; an empty field stays as it is."), form([
      ["sessions", "Active sessions", number], ["jobs", "Waiting and running jobs", number], ["devices", "Worker tokens", number], why,
    ], "Change limits", async ({ reason, ...values }) => {
      const given = Object.entries(values).filter(([, value]) => value !== "").map(([name, value]) => [name, Number(value)]);
      await ask("POST", `/users/${page.user_id}/limits`, { ...Object.fromEntries(given), reason });
      await done("the limits are changed");
    })),
    may("user.price") && folded("Price", form([
      ["percent", "Percent of the service's prices, empty for all of it", { inputmode: "numeric", pattern: "[1-9][0-9]{0,3}", required: false }], why,
    ], "Change price", async ({ percent, reason }) => {
      await ask("POST", `/users/${page.user_id}/price`, { price_percent: percent ? Number(percent) : null, reason });
      await done("the price is changed");
    })),
  ];
}

export async function moneyPage(name, cursor) {
  const page = await ask("GET", `/users/${at(name)}/money${cursor ? `?cursor=${at(cursor)}` : ""}`);
  return [
    heading(`Money of ${page.username}`),
    el("p", {}, link(ofUser(page.user_id), page.username), " · ",
      page.balances.map((each) => `${each.available} ${each.currency} + ${each.held} held${each.owed ? `, ${each.owed} owed` : ""}`).join(" · ")),
    amounts(page),
    terms(page),
    table("Transactions", page.transactions, { "at (UTC)": (each) => moment(each.at), kind: (each) => each.kind,
      amount: (each) => `${each.amount} ${each.currency}`, reference: (each) => each.reference, id: (each) => each.id }),
    page.next_cursor && el("p", {}, link(`/money/${at(page.user_id)}/${at(page.next_cursor)}`, "Older transactions")),
  ];
}

// The money that goes to the house with an account, as the approval gives it up.
const waived = (each) => each.waived.map(({ amount, currency }) => `${amount} ${currency}`).join(" + ") || null;

export const approvalCells = {
  "asked at (UTC)": (each) => moment(each.asked_at),
  by: (each) => each.asked_email ?? each.asked_by,
  act: (each) => each.action,
  user: (each) => link(ofUser(each.user_id), each.username),
  amount: (each) => (each.amount === null ? waived(each) : `${each.amount} ${each.currency}`),
  "reference or job": (each) => each.payload.reference ?? each.payload.job ?? each.payload.payout ?? each.payload.device ?? (each.payload.waives ? "the money that is left goes to the house" : null),
  reason: (each) => each.reason,
};

export async function approvalsPage() {
  const [open, all] = await Promise.all([ask("GET", "/approvals"), ask("GET", "/approvals?state=all&limit=20")]);
  const isOwn = (each) => each.asked_by === `staff:${state.me.id}`;
  const refuse = (each) => actButton(isOwn(each) ? "Withdraw" : "Refuse", async (body) => {
    const { is_withdrawn: own } = await ask("POST", `/approvals/${each.id}/refuse`, body);
    return own ? "withdrawn" : "refused";
  });
  const mayApprove = (each) => !isOwn(each) && (each.amount !== null || may(each.action));
  const approve = (each) => mayApprove(each) && actButton(each.amount === null ? `Approve ${each.action}${waived(each) ? `, ${waived(each)}` : ""}` : `Approve ${each.amount} ${each.currency}`,
    async (body) => {
      const result = await ask("POST", `/approvals/${each.id}/approve`, body);
      return each.amount === null ? "done" : moved(result);
    }, [["reason", "Reason to approve", { maxlength: 500, required: false }]]);
  return [
    heading("Approvals"),
    table("Waiting", open.approvals, { ...approvalCells, "until (UTC)": (each) => moment(each.expires_at), acts: (each) => [approve(each), " ", refuse(each)] }),
    table("Newest", all.approvals, { ...approvalCells, state: (each) => each.state, "decided by": (each) => each.decided_by }),
  ];
}
