// A program on another machine requests access: its name, and yes or no.

import { ApiError, get, post } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { form, refusal } from "../../lib/forms.js";
import { button, facts, link, notice } from "../../lib/view.js";
import { ago, t } from "../../lib/words.js";

export const words = "entry";
export const title = "entry.device.title";

export async function render(main, page) {
  const place = el("div");
  main.append(place);
  const code = page.query.get("user_code");
  if (code) await asked(place, code, page);
  else typed(place, page);
}

function typed(place, page, problem) {
  const entering = form({
    fields: [{ name: "code", label: t("entry.device.code"), hint: t("entry.device.code.hint"), required: true, maxlength: 20, autocomplete: "off", autocapitalize: "characters", spellcheck: "false" }],
    submit: t("entry.device.look"),
    send: ({ code }) => asked(place, code, page),
  });
  replace(place, problem ? notice("bad", problem) : null, el("p", null, t("entry.device.text")), entering);
}

async function asked(place, code, page) {
  const wanted = code.trim().toUpperCase();
  const path = `/auth/device/${encodeURIComponent(wanted)}`;
  let request;
  try {
    request = await get(path, null, { signal: page.signal });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) throw error;
    return typed(place, page, refusal(error));
  }
  replace(
    place,
    el("p", null, t("entry.device.question")),
    facts([
      [t("entry.device.who"), request.client_name],
      [t("entry.device.network"), request.network],
      [t("entry.device.when"), ago(request.created_at)],
      [t("entry.device.code"), el("code", null, wanted)],
    ]),
    el("h2", null, t("entry.device.may")),
    el("ul", null, request.scopes.map((scope) => el("li", null, scoped(scope)))),
    notice("warn", t("entry.device.warning")),
    el("div", { class: "actions" }, answer(place, wanted, "approve", "primary"), answer(place, wanted, "deny", "danger")),
  );
  return place.querySelector("button").focus();
}

// A scope in words; one that this page does not know stands for itself.
function scoped(scope) {
  const key = `entry.scope.${scope}`;
  const text = t(key);
  return text === key ? scope : [text, " ", el("code", null, scope)];
}

function answer(place, code, verb, kind) {
  return button(
    t(`entry.device.${verb}`),
    async () => {
      try {
        await post(`/auth/device/${encodeURIComponent(code)}/${verb}`);
        replace(place, notice(verb === "approve" ? "good" : "info", t(`entry.device.${verb}.done`)), link("/console/keys", t("entry.device.keys")));
      } catch (error) {
        if (!(error instanceof ApiError) || error.code !== "fresh_login_needed") throw error;
        const next = encodeURIComponent(`/device?user_code=${code}`);
        replace(place, notice("warn", refusal(error)), link(`/login?next=${next}`, t("entry.login.submit"), { kind: "primary" }));
      }
    },
    { kind },
  );
}
