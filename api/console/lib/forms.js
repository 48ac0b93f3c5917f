// Forms: each field has its label, its hint and its refusal beside it.

import { ApiError } from "./api.js";
import { el, replace } from "./dom.js";
import { t, time } from "./words.js";

let forms = 0;

// form({fields, submit, send, note}): `send(values)` is called with the filled-in values (numbers as numbers, boxes as
// booleans, nothing for empty fields); its errors are shown. Texts are translated already. A field: {name, label, type,
// value, hint, options: [[value, text]], ...attributes}.
export function form({ fields, submit, send, note, kind = "primary" }) {
  forms += 1;
  const made = fields.map((field) => madeOf(field, `form${forms}-${field.name}`));
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const button = el("button", { type: "submit", class: `button ${kind}` }, submit);
  const node = el(
    "form",
    { class: "form", novalidate: true, on: { submit: (event) => sent(event) } },
    made.map((each) => each.row),
    problem,
    el("div", { class: "actions" }, button),
    note ? el("p", { class: "hint" }, note) : null,
  );

  async function sent(event) {
    event.preventDefault();
    if (button.disabled) return;
    for (const each of made) each.say("");
    say(problem, "");
    const wrong = made.filter((each) => !each.isValid());
    if (wrong.length) return wrong[0].input.focus();
    button.disabled = true;
    node.setAttribute("aria-busy", "true");
    try {
      await send(Object.fromEntries(made.map((each) => [each.name, each.value()])), node);
    } catch (error) {
      if (error.name === "AbortError") return; // the page was left meanwhile
      if (!(error instanceof ApiError)) throw error;
      shown(error);
    } finally {
      button.disabled = false;
      node.removeAttribute("aria-busy");
    }
  }

  function shown(error) {
    const at = made.find((each) => each.name === error.field);
    const text = refusal(error);
    if (!at) return say(problem, text);
    at.say(text);
    at.input.focus();
  }

  return node;
}

// The text of a refusal, with the time of the next attempt.
export function refusal(error) {
  if (error.retryAfter === null || error.retryAfter < 2) return error.message;
  const at = new Date(Date.now() + error.retryAfter * 1000);
  return `${error.message} ${t("common.try_again_at", { time: time(at.toISOString()) })}`;
}

function madeOf({ name, label, type = "text", value, hint, options, ...attributes }, id) {
  const about = [hint ? `${id}-hint` : null, `${id}-problem`].filter(Boolean).join(" ");
  const shared = { id, name, "aria-describedby": about, ...attributes };
  const input = control(type, value, options, shared);
  const problem = el("p", { id: `${id}-problem`, class: "problem", hidden: true });
  const isBox = type === "checkbox";
  const caption = el("label", { for: id }, label, isBox || attributes.required ? null : el("span", { class: "optional" }, ` ${t("common.optional")}`));
  const row = el(
    "div",
    { class: isBox ? "field box" : "field" },
    isBox ? [input, caption] : [caption, type === "password" ? shownOrHidden(input) : input],
    hint ? el("p", { id: `${id}-hint`, class: "hint" }, hint) : null,
    problem,
  );
  function tell(text) {
    say(problem, text);
    input.setAttribute("aria-invalid", text ? "true" : "false");
  }
  return {
    name,
    input,
    row,
    say: tell,
    value: () => valueOf(input, type),
    // The fault of the input, in the browser's own words and its reader's language.
    isValid() {
      if (input.checkValidity()) return true;
      tell(complaint(input));
      return false;
    },
  };
}

function control(type, value, options, shared) {
  if (type === "select") {
    const choices = options.map(([choice, text]) => el("option", { value: choice }, text));
    return el("select", { value, ...shared }, choices);
  }
  if (type === "textarea") return el("textarea", { value, rows: 6, ...shared });
  if (type === "checkbox") return el("input", { type, checked: Boolean(value), ...shared });
  // Without a step, a browser takes whole numbers alone.
  return el("input", { type, value, step: type === "number" ? "any" : null, ...shared });
}

// A password can be looked at: typing one blindly on a telephone is how people end up with another one.
function shownOrHidden(input) {
  const eye = el("button", { type: "button", class: "button quiet", "aria-pressed": "false", on: { click: turned } }, t("common.show"));
  function turned() {
    const isShown = input.type === "password";
    input.type = isShown ? "text" : "password";
    eye.setAttribute("aria-pressed", String(isShown));
  }
  return el("div", { class: "with-button" }, input, eye);
}

function complaint(input) {
  const { validity, minLength, maxLength, min, max } = input;
  if (validity.valueMissing) return t("form.missing");
  if (validity.tooShort) return t("form.too_short", { n: minLength });
  if (validity.tooLong) return t("form.too_long", { n: maxLength });
  if (validity.rangeUnderflow) return t("form.too_small", { min });
  if (validity.rangeOverflow) return t("form.too_large", { max });
  if (validity.typeMismatch && input.type === "email") return t("form.no_email");
  return validity.badInput ? t("form.no_number") : t("form.wrong");
}

function valueOf(input, type) {
  if (type === "checkbox") return input.checked;
  if (type === "file") return input.files[0];
  if (input.value === "") return undefined;
  return type === "number" || type === "range" ? Number(input.value) : input.value;
}

function say(node, text) {
  replace(node, text);
  node.hidden = !text;
}
