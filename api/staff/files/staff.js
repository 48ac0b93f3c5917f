// The pages of the staff: log in, queue, search, one user with notes, and the log. Other pages have files
// of their own. No string is read as HTML.

import { el, replace } from "./dom.js";
import { caseCells, casePage, casesPage, openCases } from "./staff_cases.js";
import { disputeCells, jobPage } from "./staff_jobs.js";
import { mePage, staffPage } from "./staff_members.js";
import { approvalCells, approvalsPage, moneyPage } from "./staff_money.js";
import { paymentPage, paymentsPage } from "./staff_payments.js";
import { payoutCells, payoutPage, payoutsPage } from "./staff_payouts.js";
import { actButton, ask, at, authorOf, card, count, cut, done, folded, form, heading, link, logTable, may, moment, ofUser, save, state, table } from "./staff_parts.js";
import { sitePage } from "./staff_site.js";
import { ticketCells, ticketPage, ticketsPage } from "./staff_tickets.js";

const app = document.querySelector("#app");

function loginPage() {
  return [heading("Staff login"), form([
    ["email", "E-mail address", { type: "email", autocomplete: "username", maxlength: 254 }],
    ["password", "Password", { type: "password", autocomplete: "current-password", maxlength: 128 }],
    ["code", "Code", { autocomplete: "one-time-code", maxlength: 64 }],
  ], "Log in", async (proof) => {
    await ask("POST", "/login", proof);
    await show();
  })];
}

async function searchPage(text) {
  if (!text) return [heading("Search"), el("p", {}, "Search for an e-mail address, a name, an identifier, a key or a payment.")];
  const { found } = await ask("POST", "/search", { text });
  return [heading("Search"), found.length ? found.map((each) => table(each.has_more ? `${each.by} (and more)` : each.by, each.hits, {
    kind: (hit) => hit.kind,
    user: (hit) => link(ofUser(hit.user_id), hit.username),
    address: (hit) => hit.email,
    match: (hit) => hit.matched,
  })) : el("p", {}, "Nothing is found.")];
}

const PARTS = ["logins", "keys", "sessions", "devices", "purchases"];

function suspension(user, suspended) {
  const rows = table("Suspended", suspended, { part: (each) => each.part, reason: (each) => each.shown,
    "since (UTC)": (each) => moment(each.since), "until (UTC)": (each) => moment(each.until) });
  const boxes = PARTS.map((part) => el("label", { class: "part" }, el("input", { type: "checkbox", value: part, checked: true }), ` ${part}`));
  const suspend = may("user.suspend") && form([
    ["hours", "Hours, empty for no end", { inputmode: "numeric", pattern: "[1-9][0-9]{0,3}", required: false, value: "24" }],
    ["shown", "Reason for the user", { maxlength: 500 }],
    ["reason", "Reason for the staff", { maxlength: 500 }],
  ], "Suspend", async ({ hours, shown, reason }) => {
    const parts = boxes.map((box) => box.firstChild).filter((box) => box.checked).map((box) => box.value);
    const until = hours ? new Date(Date.now() + hours * 3_600_000).toISOString() : null;
    await done(cut(await ask("POST", `/users/${user.id}/suspend`, { parts, shown, reason, until })));
  });
  if (suspend) suspend.prepend(el("fieldset", {}, el("legend", {}, "Parts"), boxes));
  const resume = may("user.resume") && suspended.length ? form([["why", "Reason to resume", { maxlength: 500 }]], "Resume all", async ({ why }) => {
    await done(cut(await ask("POST", `/users/${user.id}/resume`, { reason: why })));
  }) : null;
  return [rows, resume && card(resume),
    suspend && el("details", { class: "card" }, el("summary", {}, "Suspend this user"), suspend)];
}

function sessionActs(session) {
  if (session.status !== "active" || !may("session.halt")) return null;
  return [["Halt", "halt"], ["Go on", "go"], ["End", "end"]].map(([words, act]) =>
    actButton(words, async (body) => cut(await ask("POST", `/sessions/${session.id}/${act}`, body))));
}

// The end of an account: closed for 14 days, or erased for ever by two persons.
function leaving(user) {
  if (user.closure?.state === "erased" || !may("user.close")) return null;
  const fields = [["waived", "The user gives up the money that is left", { options: [["no"], ["yes"]] }], ["why", "Reason, which names no person", { maxlength: 500 }]];
  const send = (word, words) => form(fields, words, async ({ waived, why }) => {
    const result = await ask("POST", `/users/${user.id}/${word}`, { reason: why, waived: waived === "yes" });
    await done(result.state === "waits" ? `waits for a second person: request ${result.id}` : word === "close" ? "the account is closed" : "the account is erased");
  });
  return [
    may("user.export") && folded("Export all data", el("p", { class: "hint" }, "The file has all data of the user in the clear."),
      form([], "Download export", async () => done(`saved ${await save(`/users/${user.id}/export`)}`))),
    folded("Close this account", el("p", { class: "hint" }, "Logins, keys and tokens end. A login within 14 days opens it again."), send("close", "Close account")),
    folded("Erase this account", el("p", { class: "hint" }, "Nothing brings it back."), send("erase", "Erase account")),
  ];
}

// The page on which an open problem is looked at.
const PROBLEMS = { complaint: "ticket", "dispute of the buyer": "job", "dispute with the worker": "job", appeal: "case/appeal", payout: "payout",
  "doubtful payment": "payment", "dispute of a payment": "payment" };

function problemOf({ kind, id }, user) {
  if ((kind === "appeal" && !may("case.view")) || (kind === "payout" && !may("payout.view"))) return id;
  if (Object.hasOwn(PROBLEMS, kind)) return link(`/${PROBLEMS[kind]}/${at(id)}`, id);
  if (kind === "waits for a second person") return may("approval.list") ? link("/approvals", id) : id;
  return kind === "debt" ? link(`/money/${at(user.id)}`, id) : id;
}

// Bars an exit that has cheated, or all of its owner; unpaid earnings go back to the buyers.
function clawBack(device) {
  return actButton("Claw back", async ({ exits, reason }) => {
    const { devices, earnings, refunded_usd: refunded, waiting } = await ask("POST", `/devices/${device.id}/claw-back`,
      { reason, with_owner: exits === "all" });
    const waits = waiting.map((each) => `; waits for a second person: request ${each.id}`).join("");
    return `barred: ${devices.length}; ${earnings} earnings reversed, ${refunded} USD refunded to buyers${waits}`;
  }, [["exits", "Exits", { options: [["one", "this one"], ["all", "all of the owner"]] }], ["reason", "Reason to claw back", { maxlength: 500 }]]);
}

function deviceActs(device) {
  if (!may("device.bar")) return null;
  return [...[["Bar as an exit", "bar"], ["Pardon", "pardon"]].map(([words, act]) =>
    actButton(words, async (body) => cut(await ask("POST", `/devices/${device.id}/${act}`, body)))), may("device.claw_back") && clawBack(device)];
}

// The end of an account in words; an account that was opened again is open.
function closing(closure) {
  if (!closure || closure.state === "taken_back") return null;
  const words = closure.state === "erased" ? ["erased: ", moment(closure.erased_at)]
    : ["closed since ", moment(closure.closed_at), ", erased after ", moment(closure.erased_after)];
  return el("p", { class: "error" }, "This account is ", words, " (UTC)");
}

async function userPage(name) {
  const page = await ask("GET", `/users/${encodeURIComponent(name)}`);
  const { user, open } = page;
  const note = may("user.note") ? form([["text", "New note", { rows: 3, maxlength: 2000 }]], "Write note", async (body) => {
    await ask("POST", `/users/${user.id}/notes`, body);
    await show();
  }) : null;
  return [
    heading(user.username),
    user.is_masked && may("user.reveal") && el("p", {}, actButton("Show e-mail address and networks", async (body) => {
      await ask("POST", `/users/${user.id}/reveal`, body);
      await show();
      return "";
    })),
    el("p", {}, `${user.email} · ${user.verified_at ? "verified" : "not verified"} · since ${user.created_at.slice(0, 10)}`,
      ` · identity ${user.identity_checked ? "checked" : "not checked"}`),
    closing(user.closure),
    el("p", {}, page.balances.map((each) => `${each.available} ${each.currency} + ${each.held} held`).join(" · "), " · ",
      link(`/money/${at(user.id)}`, "Money"), may("case.view") && [" · ", link(`/cases/reward/${at(user.id)}`, "Rewards")]),
    el("p", {}, `open: ${open.sessions} sessions · ${open.jobs} jobs · ${open.devices} devices · ${open.keys} keys`),
    table("Open problems", page.open.problems, { problem: (each) => each.kind, about: (each) => problemOf(each, user), "since (UTC)": (each) => moment(each.at) }),
    table("Notes", page.notes, { "at (UTC)": (each) => moment(each.at), author: (each) => each.author, note: (each) => each.text }),
    note && card(note),
    suspension(user, page.suspended),
    leaving(user),
    table("Sessions", page.sessions, { session: (each) => each.id, "proxy user": (each) => each.proxy_user, state: (each) => each.status,
      used: (each) => `${count(each.used_bytes)} of ${count(each.quota_bytes)} bytes`, "expires (UTC)": (each) => moment(each.expires_at),
      acts: sessionActs }),
    table("Devices", page.devices, { device: (each) => each.name, type: (each) => each.type, "last seen (UTC)": (each) => moment(each.last_seen_at),
      acts: deviceActs }),
    table("Jobs", page.jobs, { job: (each) => link(`/job/${at(each.id)}`, each.title), state: (each) => each.status, price: (each) => `${each.price} ${each.currency}` }),
    table("Keys", page.keys, { key: (each) => each.prefix, name: (each) => each.name, "last used (UTC)": (each) => moment(each.last_used_at),
      acts: (each) => (each.revoked_at || !may("key.revoke") ? null : actButton("Revoke", async (body) => {
        await ask("POST", `/users/keys/${each.id}/revoke`, body);
        return "revoked";
      })) }),
    table("Logins", page.logins, { "at (UTC)": (each) => moment(each.at), network: (each) => each.network, program: (each) => each.program }),
    table("Newest transactions", page.transactions, { "at (UTC)": (each) => moment(each.at), kind: (each) => each.kind,
      amount: (each) => `${each.amount} ${each.currency}`, reference: (each) => each.reference }),
    logTable(page.log),
  ];
}

// The queue: what waits for this member, the first due one first.
async function queuePage() {
  const none = {};
  const [{ tickets = [] }, { disputes = [] }, { approvals = [] }, { acts = [] }, cases, { payouts = [] }] = await Promise.all([
    may("ticket.read") ? ask("GET", "/tickets?limit=20") : none,
    may("job.view") ? ask("GET", "/disputes") : none,
    may("approval.list") ? ask("GET", "/approvals?limit=20") : none,
    may("log.read") ? ask("GET", "/log?action=user.suspend&limit=10") : none,
    may("case.view") ? openCases() : [],
    may("payout.list") ? ask("GET", "/payouts?limit=20") : none,
  ]);
  return [
    heading("Queue"),
    table("Complaints that are due", tickets, ticketCells),
    table("Disputes", disputes, disputeCells),
    may("case.view") && table("Failed checks and appeals", cases, caseCells),
    may("payout.list") && table("Payouts", payouts, payoutCells),
    may("approval.list") && table("Waiting for a second person", approvals, { ...approvalCells, page: () => link("/approvals", "decide") }),
    may("log.read") && table("Newest stops", acts, { "at (UTC)": (each) => moment(each.at), author: authorOf,
      user: (each) => link(ofUser(each.user_id), each.user_id), reason: (each) => each.text }),
  ];
}

async function logPage(query) {
  const filters = new URLSearchParams(query);
  const { acts, before } = await ask("GET", `/log?${filters}`);
  const older = new URLSearchParams(filters);
  older.set("before", before);
  const field = (name, label) => [name, label, { maxlength: 254, required: false, value: filters.get(name) ?? "" }];
  return [
    heading("Log"),
    card(form([field("user", "User"), field("staff", "Member"), field("action", "Act, such as user.view")], "Filter", async (values) => {
      const wanted = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
      await go(`#/log/${at(wanted)}`);
    })),
    logTable(acts, "Acts"),
    before && el("p", {}, link(`/log/${at(older)}`, "Older acts")),
  ];
}

const PAGES = { "": queuePage, search: searchPage, user: userPage, money: moneyPage, approvals: approvalsPage, job: jobPage, cases: casesPage, case: casePage,
  tickets: ticketsPage, ticket: ticketPage, site: sitePage, log: logPage, staff: staffPage, me: mePage, payouts: payoutsPage, payout: payoutPage, payments: paymentsPage, payment: paymentPage };
const MENU = [["/", "Queue", "staff.self"], ["/tickets", "Complaints", "ticket.read"], ["/approvals", "Approvals", "approval.list"],
  ["/cases", "Cases", "case.view"], ["/payments", "Payments", "payment.view"], ["/payouts", "Payouts", "payout.list"],
  ["/site", "Public side", "site.check"], ["/log", "Log", "log.read"], ["/staff", "Staff", "staff.list"]];

// Opens a page, also the one that is open.
async function go(hash) {
  if (location.hash === hash) await show();
  else location.hash = hash;
}

async function logOut() {
  await ask("POST", "/logout").catch(() => {});
  location.hash = "";
  await show();
}

function search(event) {
  event.preventDefault();
  const text = event.target.elements.q.value.trim();
  go(`#/search/${at(text)}`);
}

function frame(content) {
  const bar = el("header", { class: "top" }, el("a", { class: "brand", href: "#" }, "proxyd staff"),
    el("form", { role: "search", class: "search", on: { submit: search } }, el("label", { for: "q", class: "visually-hidden" }, "Search for"),
      el("input", { id: "q", name: "q", type: "search", maxlength: 254, required: true }),
      el("button", { class: "button", type: "submit" }, "Search")),
    el("nav", { "aria-label": "Pages" }, MENU.filter(([, , action]) => may(action)).map(([hash, words]) => [link(hash, words), " "])),
    el("p", { class: "me" }, link("/me", state.me.email), ` · ${state.me.role} `, el("button", { class: "button", type: "button", on: { click: logOut } }, "Log out")));
  const result = state.notice && el("p", { class: "notice", role: "status" }, state.notice);
  state.notice = "";
  return [bar, el("main", { id: "main" }, result, content)];
}

let turn = 0; // of the newest page: an older answer is dropped

async function show() {
  const mine = ++turn;
  const [, name = "", ...given] = location.hash.replace("#", "").split("/");
  let content;
  try {
    state.me = (await ask("GET", "/me")).member;
    content = await (Object.hasOwn(PAGES, name) ? PAGES[name] : queuePage)(...given.map(decodeURIComponent));
  } catch (error) {
    content = [heading("Failed"), el("p", { role: "alert" }, error.message)];
  }
  if (mine !== turn) return;
  replace(app, state.me ? frame(content) : el("main", { class: "bare" }, loginPage()));
  document.querySelector("h1").focus();
}

// The key / goes to the search, unless it is typed into a field.
function press(event) {
  const field = document.querySelector("#q");
  if (event.key !== "/" || !field || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
}

state.show = show;
addEventListener("hashchange", show);
addEventListener("keydown", press);
show();
