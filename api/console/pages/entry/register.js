// Open an account; a referral link brings its code along.

import { ApiError, get, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { worded } from "../../lib/letter.js";
import { facts, links, valid, versions } from "../../lib/site.js";
import { link, notice } from "../../lib/view.js";
import { t } from "../../lib/words.js";

export const words = "entry";
export const title = "entry.register.title";

export async function render(main, page) {
  const [key, site] = await Promise.all([worded(page.signal), facts()]);
  const ref = page.query.get("ref");
  if (site.registration === "closed") {
    main.append(
      notice("info", t("entry.register.closed")),
      el("p", { class: "links" }, t("entry.register.known"), link("/login", t("entry.login.submit"))),
    );
    return;
  }
  const invitation = { name: "invitation", label: t("entry.invitation"), autocomplete: "off", required: true, maxlength: 64, value: page.query.get("invitation") ?? "", hint: t("entry.invitation.hint") };
  const texts = valid(site, { toAccept: true });
  const agree = { name: "agrees", type: "checkbox", label: t("entry.accept"), required: true };
  main.append(
    ref ? notice("info", t("entry.register.invited", { code: ref })) : "",
    form({
      fields: [
        ...(site.registration === "invited" ? [invitation] : []),
        { name: "username", label: t("entry.username"), autocomplete: "nickname", required: true, maxlength: 50, hint: t("entry.username.hint") },
        { name: "email", label: t("entry.email"), type: "email", autocomplete: "username", required: true, maxlength: 254, hint: t(key("entry.email.hint")) },
        { name: "password", label: t("entry.password"), type: "password", autocomplete: "new-password", required: true, minlength: 8, maxlength: 128, hint: t("entry.password.hint") },
        ...(texts.length ? [agree] : []),
      ],
      submit: t("entry.register.submit"),
      send: ({ agrees, ...values }) => registered(main, agrees ? { ...values, accepted: versions(texts) } : values, ref),
    }),
    texts.length ? el("p", { class: "links" }, links(texts)) : "",
    el("p", { class: "links" }, t("entry.register.known"), link("/login", t("entry.login.submit"))),
  );
}

async function registered(main, values, ref) {
  const body = ref ? { ...values, ref, keep: "cookie" } : { ...values, keep: "cookie" };
  const answer = await post("/auth/register", body, { once: true });
  await kept(values);
  await go("/verify", { replace: true });
  if (answer.referral_applied === false) {
    document.querySelector("main h1").after(notice("warn", t("entry.register.wrong_code", { code: ref })));
  }
}

// An answer that was lost and asked for again opens the account once, and brings no cookie.
async function kept({ email, password }) {
  try {
    await get("/auth/me");
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
    await post("/auth/login", { email, password, keep: "cookie" });
  }
}
