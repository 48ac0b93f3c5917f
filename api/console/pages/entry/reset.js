// Choose a new password with the secret of a letter.

import { post } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { link, notice } from "../../lib/view.js";
import { t } from "../../lib/words.js";
import { taken } from "./secret.js";

export const words = "entry";
export const title = "entry.reset.title";

export function render(main, page) {
  const token = taken(page);
  const place = el("div");
  main.append(place);
  if (!token) return replace(place, notice("warn", t("entry.reset.no_link")), link("/forgot", t("entry.forgot.submit"), { kind: "primary" }));
  const choosing = form({
    fields: [{ name: "password", label: t("entry.new_password"), type: "password", autocomplete: "new-password", required: true, minlength: 8, maxlength: 128, hint: t("entry.password.hint") }],
    submit: t("entry.reset.submit"),
    send: async (values) => {
      await post("/auth/password/reset", { ...values, token });
      replace(place, notice("good", t("entry.reset.done")), link("/login", t("entry.login.submit"), { kind: "primary" }));
    },
  });
  return replace(place, el("p", null, t("entry.reset.text")), choosing);
}
