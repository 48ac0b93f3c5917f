// Webhooks: my servers, the events that they receive, and their state.

import { get, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { follow } from "../../lib/stream.js";
import { badge, card, link, secret } from "../../lib/view.js";
import { date, t } from "../../lib/words.js";
import { list } from "../work/shared.js";
import { EVERY, TYPES, again, boxes, grouped, incomplete, ticked, typed } from "./access.js";

export const words = "access";
export const title = "access.hooks.title";

const TEST = "test.ping"; // it is sent by hand only
const CHOSEN = TYPES.filter((each) => each !== TEST);

export async function render(main, page) {
  const problem = el("div");
  const hooks = list({ caption: t("access.hooks.caption"), columns: columns(), empty: { text: t("access.hooks.empty") } });
  const load = async () => hooks.show((await get("/api/webhooks", null, { signal: page.signal })).webhooks);
  const refresh = () => again(problem, load);
  follow({ types: ["webhook.created", "webhook.changed", "webhook.disabled"], onEvent: refresh, refresh, signal: page.signal });
  await load();
  main.append(el("p", null, t("access.hooks.text")), problem, hooks.node, card(t("access.hooks.new"), creating()));
}

const columns = () => [
  { key: "url", label: t("access.hooks.url"), cell: (row) => [link(`/console/webhooks/${row.id}`, row.url), row.description ? el("span", { class: "hint block" }, row.description) : null] },
  { key: "types", label: t("access.hooks.types"), cell: told },
  { key: "status", label: t("access.status"), cell: state },
  { key: "created", label: t("access.created"), cell: (row) => date(row.created_at) },
];

// The events that an endpoint receives.
export const told = ({ types }) => (types.includes(EVERY) ? t("access.hooks.every") : types.map(typed).join(", "));

// Whether it is sent anything, and why not; or since when nothing has arrived there.
export function state({ status, disabled_reason: reason, failing_since: since }) {
  if (status === "disabled") return [badge("bad", t("access.hooks.disabled")), el("span", { class: "hint block" }, t(`access.hooks.because.${reason}`))];
  if (since) return [badge("warn", t("access.hooks.failing")), el("span", { class: "hint block" }, t("access.hooks.failing_since", { date: date(since) }))];
  return badge("good", t("access.hooks.enabled"));
}

// A form of an endpoint; `send` is called with the fields of the API.
export function hookForm({ hook, submit, send }) {
  const { url = "", description = "", types = [] } = hook ?? {};
  const every = { name: "every", type: "checkbox", label: t("access.hooks.every"), hint: t("access.hooks.every.hint"), value: types.includes(EVERY) };
  const made = form({
    fields: [
      { name: "url", label: t("access.hooks.url"), value: url, required: true, maxlength: 2000, inputmode: "url", autocomplete: "off", spellcheck: "false", hint: t("access.hooks.url.hint") },
      { name: "description", label: t("access.hooks.description"), value: description, maxlength: 200, autocomplete: "off" },
      every,
      ...boxes("type", CHOSEN, types),
    ],
    submit,
    send: async (values) => {
      const wanted = values.every ? [EVERY] : ticked(CHOSEN, values);
      if (!wanted.length) throw incomplete(t("access.hooks.no_type"));
      await send({ url: values.url, description: values.description ?? "", types: wanted });
    },
  });
  grouped(made, ["every", ...CHOSEN], t("access.hooks.types"));
  // A choice of everything needs no other.
  const chosen = () => CHOSEN.forEach((each) => (made.elements[each].disabled = made.elements.every.checked));
  made.elements.every.addEventListener("change", chosen);
  chosen();
  return made;
}

function creating() {
  return hookForm({
    submit: t("access.hooks.create"),
    send: async (body) => {
      const made = await post("/api/webhooks", body, { once: true });
      await signing(made.secret);
      await go(`/console/webhooks/${made.webhook.id}`);
    },
  });
}

// Shows the secret that signs deliveries.
export const signing = (value) => secret({ title: t("access.hooks.secret"), value, note: t("access.hooks.secret.note") });
