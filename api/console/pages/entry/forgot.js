// Request a letter to choose a new password; the answer is the same for every address.

import { post } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { worded } from "../../lib/letter.js";
import { link, notice } from "../../lib/view.js";
import { t } from "../../lib/words.js";

export const words = "entry";
export const title = "entry.forgot.title";

export async function render(main, page) {
  const key = await worded(page.signal);
  const place = el("div");
  const asking = form({
    fields: [{ name: "email", label: t("entry.email"), type: "email", autocomplete: "username", required: true, maxlength: 254 }],
    submit: t(key("entry.forgot.submit")),
    send: async (values) => {
      await post("/auth/password/forgot", values);
      replace(place, notice("good", t(key("entry.forgot.done"))));
    },
  });
  replace(place, el("p", null, t(key("entry.forgot.text"))), asking);
  main.append(place, el("p", { class: "links" }, link("/login", t("entry.back"))));
}
