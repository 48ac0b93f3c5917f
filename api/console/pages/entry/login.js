// Log in; afterwards one is where one wanted to go.

import { post } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go, local } from "../../lib/router.js";
import { facts, links, valid, versions } from "../../lib/site.js";
import { link, toast } from "../../lib/view.js";
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
        try {
          await entered(values, next);
        } catch (error) {
          if (error.code !== "terms_not_accepted") throw error;
          return asked(main, values, next);
        }
      },
    }),
    el("p", { class: "links" }, link("/forgot", t("entry.login.forgot")), link("/register", t("entry.login.register"))),
  );
}

// Logs in, and says so where the login has opened a closed account again.
async function entered(values, next) {
  const { reopened } = await post("/auth/login", { ...values, keep: "cookie" });
  if (reopened) toast("good", t("entry.login.reopened"));
  await go(next, { replace: true });
}

// The texts have changed since this user agreed: the login goes on with a consent.
async function asked(main, values, next) {
  const texts = valid(await facts({ anew: true }), { toAccept: true });
  replace(
    main,
    el("h1", { tabindex: "-1" }, t("entry.accept.title")),
    el("p", null, t("entry.accept.text")),
    el("p", { class: "links" }, links(texts)),
    form({
      fields: [{ name: "agrees", type: "checkbox", label: t("entry.accept"), required: true }],
      submit: t("entry.accept.submit"),
      send: async () => {
        await entered({ ...values, accepted: versions(texts) }, next);
      },
    }),
  );
  main.querySelector("h1").focus();
}
