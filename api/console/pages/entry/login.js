// Log in; afterwards one is where one wanted to go.

import { post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go, local } from "../../lib/router.js";
import { link } from "../../lib/view.js";
import { t } from "../../lib/words.js";

export const words = "entry";
export const title = "entry.login.title";

export function render(main, page) {
  const next = local(page.query.get("next"));
  main.append(
    form({
      fields: [
        { name: "email", label: t("entry.email"), type: "email", autocomplete: "username", required: true, maxlength: 254 },
        { name: "password", label: t("entry.password"), type: "password", autocomplete: "current-password", required: true },
      ],
      submit: t("entry.login.submit"),
      send: async (values) => {
        await post("/auth/login", { ...values, keep: "cookie" });
        await go(next, { replace: true });
      },
    }),
    el("p", { class: "links" }, link("/forgot", t("entry.login.forgot")), link("/register", t("entry.login.register"))),
  );
}
