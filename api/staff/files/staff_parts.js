// Parts of all pages of the staff: calls of the API, forms, tables and links. No string is read as HTML.

import { el, replace } from "./dom.js";

const API = "/staff/api/v1";
let fieldsMade = 0; // so that each field has an identifier of its own

// The member who is logged in, the result of the last act (shown once), and the function that shows the page again.
export const state = { me: null, notice: "", show: null };

class Refusal extends Error {
  constructor(status, { code, message }) {
    super(message);
    Object.assign(this, { status, code });
  }
}

export async function ask(method, path, body) {
  const headers = { "X-Requested-By": "console" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method === "POST") headers["Idempotency-Key"] = crypto.randomUUID?.() ?? String(Math.random());
  const answer = await fetch(API + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const parsed = await answer.json();
  if (answer.ok) return parsed;
  throw refused(answer.status, parsed.error);
}

// Sends a file as it is.
export async function send(path, file) {
  const headers = { "X-Requested-By": "console", "Content-Type": "text/csv" };
  const answer = await fetch(API + path, { method: "POST", headers, body: file });
  const parsed = await answer.json();
  if (answer.ok) return parsed;
  throw refused(answer.status, parsed.error);
}

function refused(status, error) {
  if (error.code === "unauthorized") state.me = null;
  return new Refusal(status, error);
}

// Saves a file under a known name, or the one that the service gives it; returns the name. An S3 store sends it as a download:
// a page may not read a file of another origin.
export async function save(path, known) {
  const answer = await fetch(API + path, { headers: { "X-Requested-By": "console" }, redirect: "manual" });
  if (answer.type === "opaqueredirect") return followed((await ask("GET", `${path}/address`)).url, known);
  if (!answer.ok) throw refused(answer.status, (await answer.json()).error);
  const [, given = "file"] = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition")) ?? [];
  const address = URL.createObjectURL(await answer.blob());
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  return followed(address, known ?? given);
}

function followed(address, name) {
  const leads = el("a", { href: address, download: name, rel: "noreferrer", hidden: true });
  document.body.append(leads);
  leads.click();
  leads.remove();
  return name;
}

export const may = (action) => state.me.may.includes(action);
export const moment = (text) => text && el("time", { datetime: text }, `${text.slice(0, 10)} ${text.slice(11, 19)}`);
export const count = (number) => number.toLocaleString("en");
export const heading = (text) => el("h1", { tabindex: "-1" }, text);
export const link = (hash, ...text) => el("a", { href: `#${hash}` }, ...text);
export const ofUser = (id) => `/user/${encodeURIComponent(id)}`;
export const card = (...content) => el("section", { class: "card" }, ...content);
export const folded = (title, ...content) => el("details", { class: "card" }, el("summary", {}, title), ...content);
export const at = (text) => encodeURIComponent(text);

// Shows the result of an act above the page, which is loaded again.
export async function done(result) {
  state.notice = result;
  await state.show();
}

function control(id, name, { rows, options, ...props }) {
  if (options) return el("select", { id, name, ...props }, options.map(([value, text = value]) => el("option", { value }, text)));
  return el(rows ? "textarea" : "input", { id, name, required: true, ...(rows ? { rows } : {}), ...props });
}

// A form whose fields are [name, label, properties]; `act` gets their values, and its error is shown. `consequence`
// gets the values after each change, and returns what the act would do. Where an act wants the second factor again,
// the form has a field for its code.
export function form(fields, button, act, consequence) {
  const problem = el("p", { role: "alert", class: "error" });
  const before = consequence && el("output", { class: "hint" });
  const submit = el("button", { class: "button primary", type: "submit" }, button);
  const factor = el("div", {});
  const inputs = fields.map(([name, label, props = {}]) => {
    const id = `${name}-${++fieldsMade}`;
    const input = control(id, name, props);
    return [name, el("div", { class: "field" }, el("label", { for: id }, label), input), input];
  });
  const values = () => Object.fromEntries(inputs.map(([name, , input]) => [name, input.files ? input.files[0] : input.value]));
  function askFactor() {
    const id = `factor-${++fieldsMade}`;
    replace(factor, el("div", { class: "field" }, el("label", { for: id }, "Code of your second factor"),
      el("input", { id, name: "factor", required: true, autocomplete: "one-time-code", maxlength: 64 })));
    factor.querySelector("input").focus();
  }
  async function send(event) {
    event.preventDefault();
    const wasIn = state.me !== null;
    submit.disabled = true;
    problem.textContent = "";
    try {
      const code = factor.querySelector("input");
      if (code) {
        await ask("POST", "/factor", { code: code.value });
        replace(factor);
      }
      await act(values());
    } catch (error) {
      problem.textContent = error.message;
      if (error.code === "factor_expired") askFactor();
      if (wasIn && !state.me) await state.show(); // the login has ended meanwhile
    } finally {
      submit.disabled = false;
    }
  }
  const node = el("form", { on: { submit: send } }, inputs.map(([, field]) => field), before, factor, problem, submit);
  if (consequence) {
    const update = () => replace(before, consequence(values()));
    node.addEventListener("input", update);
    update();
  }
  return node;
}

// A table of rows, each with the cells of `heads`: {title: cell(row)}.
export function table(title, rows, heads) {
  const body = rows.map((row) => el("tr", {}, Object.entries(heads).map(([name, cell]) =>
    el("td", { "data-label": name }, el("span", {}, cell(row) ?? "–")))));
  const head = el("tr", {}, Object.keys(heads).map((name) => el("th", { scope: "col" }, name)));
  const content = rows.length ? el("div", { class: "scroll", role: "group", "aria-label": title, tabindex: "0" },
    el("table", { class: "table" }, el("thead", {}, head), el("tbody", {}, body))) : el("p", { class: "hint" }, "none");
  return card(el("h2", {}, title), content);
}

// A button that opens a form in its place, and shows the result of the act there.
export function actButton(words, act, fields = [["reason", `Reason to ${words.toLowerCase()}`, { maxlength: 500 }]]) {
  const place = el("span", {});
  const button = el("button", { class: "button", type: "button", on: { click: () => {
    replace(place, form(fields, words, async (body) => replace(place, await act(body))));
    place.querySelector("input, textarea, select")?.focus();
  } } }, words);
  replace(place, button);
  return place;
}

// What the nodes have done with an order, in words.
export function cut(result) {
  const answered = result.nodes - result.silent.length;
  const silent = result.silent.length ? `; silent: ${result.silent.join(", ")}` : "";
  return `${answered} of ${result.nodes} nodes answered within ${result.seconds} s, ${result.connections} connections cut${silent}`;
}

// The author of an act.
export const authorOf = (each) => each.staff ?? (each.unix_user ? `${each.unix_user}@machine` : each.via);

export function logTable(acts, title = "History") {
  return table(title, acts, {
    "at (UTC)": (each) => moment(each.at),
    author: authorOf,
    act: (each) => each.action,
    subject: (each) => (each.user_id ? link(ofUser(each.user_id), each.user_id) : each.subject_id),
    changes: (each) => Object.entries(each.changes).map(([name, { old, new: now }]) => `${name}: ${old ?? "–"} → ${now ?? "–"}`).join(", ") || null,
    text: (each) => each.text,
  });
}
