// The pages of the staff: log in, search, one user with notes, the log, and the members. No string is read as HTML.

import { el, replace } from "./dom.js";

const API = "/staff/api/v1";
const app = document.querySelector("#app");
let me = null; // the member who is logged in
let fieldsMade = 0; // so that each field has an identifier of its own
let notice = ""; // the result of the last act, shown once

class Refusal extends Error {
  constructor(status, { code, message }) {
    super(message);
    Object.assign(this, { status, code });
  }
}

async function ask(method, path, body) {
  const headers = { "X-Requested-By": "console" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method === "POST") headers["Idempotency-Key"] = crypto.randomUUID?.() ?? String(Math.random());
  const answer = await fetch(API + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const parsed = await answer.json();
  if (answer.ok) return parsed;
  if (parsed.error.code === "unauthorized") me = null;
  throw new Refusal(answer.status, parsed.error);
}

const may = (action) => me.may.includes(action);
const moment = (text) => text && el("time", { datetime: text }, `${text.slice(0, 10)} ${text.slice(11, 19)}`);
const count = (number) => number.toLocaleString("en");
const heading = (text) => el("h1", { tabindex: "-1" }, text);
const link = (hash, ...text) => el("a", { href: `#${hash}` }, ...text);
const ofUser = (id) => `/user/${encodeURIComponent(id)}`;

// A form whose fields are [name, label, properties]; `act` gets their values, and its error is shown.
function form(fields, button, act) {
  const problem = el("p", { role: "alert", class: "error" });
  const submit = el("button", { class: "button primary", type: "submit" }, button);
  const inputs = fields.map(([name, label, props = {}]) => {
    const { rows, ...others } = props;
    const id = `${name}-${++fieldsMade}`;
    const input = el(rows ? "textarea" : "input", { id, name, required: true, ...(rows ? { rows } : {}), ...others });
    return [name, el("div", { class: "field" }, el("label", { for: id }, label), input), input];
  });
  async function send(event) {
    event.preventDefault();
    const wasIn = me !== null;
    submit.disabled = true;
    problem.textContent = "";
    try {
      await act(Object.fromEntries(inputs.map(([name, , input]) => [name, input.value])));
    } catch (error) {
      problem.textContent = error.message;
      if (wasIn && !me) await show(); // the login has ended meanwhile
    } finally {
      submit.disabled = false;
    }
  }
  return el("form", { on: { submit: send } }, inputs.map(([, field]) => field), problem, submit);
}

// A table of rows, each with the cells of `heads`: {title: cell(row)}.
function table(title, rows, heads) {
  const body = rows.map((row) => el("tr", {}, Object.entries(heads).map(([name, cell]) =>
    el("td", { "data-label": name }, el("span", {}, cell(row) ?? "–")))));
  const head = el("tr", {}, Object.keys(heads).map((name) => el("th", { scope: "col" }, name)));
  const content = rows.length ? el("div", { class: "scroll", role: "group", "aria-label": title, tabindex: "0" },
    el("table", { class: "table" }, el("thead", {}, head), el("tbody", {}, body))) : el("p", { class: "hint" }, "none");
  return el("section", { class: "card" }, el("h2", {}, title), content);
}

function logTable(acts) {
  return table("History", acts, {
    "at (UTC)": (each) => moment(each.at),
    author: (each) => each.staff ?? (each.unix_user ? `${each.unix_user}@machine` : each.via),
    act: (each) => each.action,
    subject: (each) => (each.user_id ? link(ofUser(each.user_id), each.user_id) : each.subject_id),
    text: (each) => each.text,
  });
}

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

// What the nodes have done with an order, in words.
function cut(done) {
  const answered = done.nodes - done.silent.length;
  const silent = done.silent.length ? `; silent: ${done.silent.join(", ")}` : "";
  return `${answered} of ${done.nodes} nodes answered within ${done.seconds} s, ${done.connections} connections cut${silent}`;
}

// A button that asks for the reason of an act, and shows its result in its place.
function actButton(words, act) {
  const place = el("span", {});
  const button = el("button", { class: "button", type: "button", on: { click: () => replace(place, form(
    [["reason", `Reason to ${words.toLowerCase()}`, { maxlength: 500 }]], words, async (body) => replace(place, await act(body)))) } }, words);
  replace(place, button);
  return place;
}

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
    notice = cut(await ask("POST", `/users/${user.id}/suspend`, { parts, shown, reason, until }));
    await show();
  });
  if (suspend) suspend.prepend(el("fieldset", {}, el("legend", {}, "Parts"), boxes));
  const resume = may("user.resume") && suspended.length ? form([["why", "Reason to resume", { maxlength: 500 }]], "Resume all", async ({ why }) => {
    notice = cut(await ask("POST", `/users/${user.id}/resume`, { reason: why }));
    await show();
  }) : null;
  return [rows, resume && el("section", { class: "card" }, resume),
    suspend && el("details", { class: "card" }, el("summary", {}, "Suspend this user"), suspend)];
}

function sessionActs(session) {
  if (session.status !== "active" || !may("session.halt")) return null;
  return [["Halt", "halt"], ["Go on", "go"], ["End", "end"]].map(([words, act]) =>
    actButton(words, async (body) => cut(await ask("POST", `/sessions/${session.id}/${act}`, body))));
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
    el("p", {}, `${user.email} · ${user.verified_at ? "verified" : "not verified"} · since ${user.created_at.slice(0, 10)}`),
    el("p", {}, page.balances.map((each) => `${each.available} ${each.currency} + ${each.held} held`).join(" · ")),
    el("p", {}, `open: ${open.sessions} sessions · ${open.jobs} jobs · ${open.devices} devices · ${open.keys} keys`),
    table("Notes", page.notes, { "at (UTC)": (each) => moment(each.at), author: (each) => each.author, note: (each) => each.text }),
    note && el("section", { class: "card" }, note),
    suspension(user, page.suspended),
    table("Sessions", page.sessions, { session: (each) => each.id, state: (each) => each.status,
      used: (each) => `${count(each.used_bytes)} of ${count(each.quota_bytes)} bytes`, "expires (UTC)": (each) => moment(each.expires_at),
      acts: sessionActs }),
    table("Devices", page.devices, { device: (each) => each.name, type: (each) => each.type, "last seen (UTC)": (each) => moment(each.last_seen_at) }),
    table("Jobs", page.jobs, { job: (each) => each.title, state: (each) => each.status, price: (each) => `${each.price} ${each.currency}` }),
    table("Keys", page.keys, { key: (each) => each.prefix, name: (each) => each.name, "last used (UTC)": (each) => moment(each.last_used_at),
      acts: (each) => (each.revoked_at || !may("key.revoke") ? null : actButton("Revoke", async (body) => {
        await ask("POST", `/users/keys/${each.id}/revoke`, body);
        return "revoked";
      })) }),
    table("Logins", page.logins, { "at (UTC)": (each) => moment(each.at), network: (each) => each.network, program: (each) => each.program }),
    table("Money", page.transactions, { "at (UTC)": (each) => moment(each.at), kind: (each) => each.kind,
      amount: (each) => `${each.amount} ${each.currency}`, reference: (each) => each.reference }),
    logTable(page.log),
  ];
}

async function logPage() {
  const { acts } = await ask("GET", "/log");
  return [heading("Log"), logTable(acts)];
}

async function staffPage() {
  const { staff } = await ask("GET", "/staff");
  return [heading("Staff"), table("Members", staff, { address: (each) => each.email, role: (each) => each.role,
    state: (each) => (each.locked_at ? "locked" : "active"), "recovery codes": (each) => each.codes_left })];
}

const PAGES = { "": searchPage, search: searchPage, user: userPage, log: logPage, staff: staffPage };

async function logOut() {
  await ask("POST", "/logout").catch(() => {});
  location.hash = "";
  await show();
}

function search(event) {
  event.preventDefault();
  const text = event.target.elements.q.value.trim();
  const hash = `#/search/${encodeURIComponent(text)}`;
  if (location.hash === hash) show();
  else location.hash = hash;
}

function frame(content) {
  const bar = el("header", { class: "top" }, el("a", { class: "brand", href: "#" }, "proxyd staff"),
    el("form", { role: "search", class: "search", on: { submit: search } }, el("label", { for: "q", class: "visually-hidden" }, "Search for"),
      el("input", { id: "q", name: "q", type: "search", maxlength: 254, required: true }),
      el("button", { class: "button", type: "submit" }, "Search")),
    el("nav", { "aria-label": "Pages" }, may("log.read") && link("/log", "Log"), " ", may("staff.list") && link("/staff", "Staff")),
    el("p", { class: "me" }, `${me.email} · ${me.role} `, el("button", { class: "button", type: "button", on: { click: logOut } }, "Log out")));
  const result = notice && el("p", { class: "notice", role: "status" }, notice);
  notice = "";
  return [bar, el("main", { id: "main" }, result, content)];
}

let turn = 0; // of the newest page: an older answer is dropped

async function show() {
  const mine = ++turn;
  const [, name = "", argument = ""] = location.hash.replace("#", "").split("/");
  let content;
  try {
    me = (await ask("GET", "/me")).member;
    content = await (PAGES[name] ?? searchPage)(decodeURIComponent(argument));
  } catch (error) {
    content = [heading("Failed"), el("p", { role: "alert" }, error.message)];
  }
  if (mine !== turn) return;
  replace(app, me ? frame(content) : el("main", { class: "bare" }, loginPage()));
  document.querySelector("h1").focus();
}

addEventListener("hashchange", show);
show();
