// The pieces that pages are made of. Texts come translated.

import { ApiError } from "./api.js";
import { el, replace } from "./dom.js";
import { refusal } from "./forms.js";
import { t } from "./words.js";

// A table; below 64rem each row is a card. `columns`: {key, label, cell(row), number}; without rows it is `empty`:
// {text, action}, with a node of the first step.
export function table({ caption, columns, rows, empty, keyOf }) {
  if (!rows.length && empty) return el("div", { class: "empty" }, el("p", null, empty.text), empty.action ?? null);
  const head = columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : null }, column.label));
  return el(
    "table",
    { class: "table" },
    el("caption", null, caption),
    el("thead", null, el("tr", null, head)),
    el("tbody", null, rows.map((row) => line(row, columns, keyOf))),
  );
}

// One row of such a table, for lists that change while they are looked at.
export function line(row, columns, keyOf) {
  const cells = columns.map((column) =>
    el("td", { class: column.number ? "number" : null, data: { label: column.label, key: column.key } }, cellOf(column, row)),
  );
  return el("tr", { data: keyOf ? { row: keyOf(row) } : {} }, cells);
}

function cellOf(column, row) {
  const value = column.cell ? column.cell(row) : row[column.key];
  if (value === null || value === undefined || value === "") return t("common.unknown");
  return Array.isArray(value) ? el("div", null, value) : value; // one thing beside its label in a card
}

// Names and values: facts([["Price", "$1.00"], ...]).
export function facts(pairs) {
  const rows = pairs.filter(Boolean).map(([label, value]) => el("div", null, el("dt", null, label), el("dd", null, value ?? t("common.unknown"))));
  return el("dl", { class: "facts" }, rows);
}

// A part of a page under a heading of its own.
export function card(title, ...children) {
  return el("section", { class: "card" }, title ? el("h2", null, title) : null, children);
}

// A sentence that stands out; `kind` is info, good, warn or bad.
export function notice(kind, ...text) {
  return el("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" }, text);
}

// A word for a state; `kind` as above.
export const badge = (kind, text) => el("span", { class: `badge ${kind}` }, text);

// A bar of how much of `max` `value` is, with a text that says the same.
export function meter(value, max, label) {
  const share = max > 0 ? Math.min(1, Math.max(0, value / max)) : 0;
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--share", share);
  return el("span", { class: "meter" }, bar, el("span", { class: "meter-text" }, label));
}

export function button(label, onClick, { kind = "", ...attributes } = {}) {
  const node = el("button", { type: "button", class: `button ${kind}`, on: { click: pressed }, ...attributes }, label);
  // Its action takes a moment, and is not begun twice.
  async function pressed(event) {
    if (node.getAttribute("aria-busy") === "true") return;
    node.setAttribute("aria-busy", "true");
    try {
      await onClick(event);
    } catch (error) {
      if (error.name === "AbortError") return; // the page was left meanwhile
      if (!(error instanceof ApiError)) throw error;
      toast("bad", refusal(error));
    } finally {
      node.removeAttribute("aria-busy");
    }
  }
  return node;
}

// The name of a session, in all places.
export const sessionName = (id) => t("common.session", { id: id.slice(-8) });

// A link; `kind` primary or quiet makes it look like a button.
export const link = (path, text, { kind, ...attributes } = {}) => el("a", { href: path, class: kind ? `button ${kind}` : null, ...attributes }, text);

// A text to take along, with a button that copies it.
export function copyable(text, label) {
  const shown = el("code", { class: "copy-text", tabindex: "0", "aria-label": label }, text);
  const copy = el("button", { type: "button", class: "button quiet", "aria-label": t("common.copy_of", { what: label }) }, t("common.copy"));
  copy.addEventListener("click", async () => {
    const isCopied = await copied(text, shown);
    toast("good", t(isCopied ? "common.copied" : "common.selected"));
  });
  return el("div", { class: "copyable" }, shown, copy);
}

// The clipboard is there over https alone; elsewhere the text is selected, for the reader's own keys.
async function copied(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(shown);
    return false;
  }
}

// Asks before something is done: true for yes. `title` is the question, `action` the word on the button.
export function ask({ title, text, action, kind = "danger" }) {
  return new Promise((resolve) => {
    const yes = el("button", { type: "submit", value: "yes", class: `button ${kind}` }, action);
    const no = el("button", { type: "submit", value: "no", class: "button quiet", autofocus: true }, t("common.cancel"));
    const body = el("form", { method: "dialog" }, el("h2", null, title), el("div", null, text), el("div", { class: "actions" }, yes, no));
    opened(body, title, (answer) => resolve(answer === "yes"));
  });
}

// Shows a secret only once; done when its reader confirms that it is stored.
export function secret({ title, value, note }) {
  return new Promise((resolve) => {
    const stored = el("button", { type: "submit", value: "yes", class: "button primary" }, t("common.stored"));
    const values = Array.isArray(value) ? value : [[title, value]];
    const body = el(
      "form",
      { method: "dialog" },
      el("h2", null, title),
      notice("warn", t("common.only_once")),
      values.map(([label, text]) => [el("p", { class: "label" }, label), copyable(text, label)]),
      note ? el("p", null, note) : null,
      el("div", { class: "actions" }, stored),
    );
    const dialog = opened(body, title, resolve);
    dialog.setAttribute("closedby", "none"); // not by a stray Escape, which older browsers heed
    dialog.addEventListener("cancel", (event) => event.preventDefault());
  });
}

function opened(body, label, onClose) {
  const before = document.activeElement;
  const dialog = el("dialog", { "aria-label": label }, body);
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
    onClose(dialog.returnValue);
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// A button for the next part of a list; `load()` returns whether there is more behind it.
export function more(load) {
  const node = el("p", { class: "more" });
  const next = button(t("common.more"), async () => {
    if (!(await load())) node.remove();
  });
  node.append(next);
  return node;
}

// Parts of a page, one of them shown: tabs([["Python", node], ...], "Languages").
export function tabs(parts, label) {
  const panels = parts.map(([, content], index) => el("div", { role: "tabpanel", hidden: index > 0, tabindex: "0" }, content));
  const heads = parts.map(([title], index) =>
    el("button", { type: "button", role: "tab", class: "tab", "aria-selected": String(index === 0), tabindex: index ? "-1" : "0", on: { click: () => chosen(index) } }, title),
  );
  function chosen(index) {
    heads.forEach((head, each) => {
      head.setAttribute("aria-selected", String(each === index));
      head.tabIndex = each === index ? 0 : -1;
      panels[each].hidden = each !== index;
    });
    heads[index].focus();
  }
  function moved(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    chosen((heads.indexOf(document.activeElement) + by + heads.length) % heads.length);
  }
  return el("div", { class: "tabs" }, el("div", { role: "tablist", "aria-label": label, on: { keydown: moved } }, heads), panels);
}

// Makes a node one whose changes are read out.
export function live(node) {
  node.setAttribute("aria-live", "polite");
  return node;
}

// A word at the edge of the screen, gone after a while; read out.
export function toast(kind, text) {
  const place = document.getElementById("toasts");
  const node = el("p", { class: `toast ${kind}` }, text);
  place.append(node);
  setTimeout(() => node.remove(), 6000);
}

// The place of a page that could not be loaded, with a button to try again; for a missing page a new attempt is
// useless.
export function failure(error, retry) {
  const text = error instanceof ApiError ? refusal(error) : t("common.failed");
  const onward = error.status === 404 ? link("/console", t("missing.home")) : button(t("common.retry"), retry);
  return el("div", { class: "empty failed" }, notice("bad", text), onward);
}

// A node that says that something is being fetched.
export const busy = () => el("p", { class: "busy", role: "status" }, t("common.loading"));

// Shows the result of `load()` in a node, busy meanwhile, with a way to try again when it fails.
export async function shown(node, load) {
  replace(node, busy());
  try {
    replace(node, await load());
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof ApiError)) throw error;
    replace(node, failure(error, () => shown(node, load)));
  }
}
