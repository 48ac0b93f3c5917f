// Confirm an address by the secret of a letter, or ask for another letter.

import { ApiError, post } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { refusal } from "../../lib/forms.js";
import { letter, worded } from "../../lib/letter.js";
import { button, link, notice } from "../../lib/view.js";
import { t } from "../../lib/words.js";
import { taken } from "./secret.js";

export const words = "entry";
export const title = "entry.verify.title";

export async function render(main, page) {
  const token = taken(page);
  const key = await worded(page.signal);
  const place = el("div");
  main.append(place);
  // A look at the address confirms nothing: scanners of mail also look. The button does.
  if (token) replace(place, el("p", null, t("entry.verify.ready")), button(t("entry.verify.submit"), () => confirmed(place, token, page, key), { kind: "primary" }));
  else replace(place, el("p", null, t(key("entry.verify.sent"))), again(page, key), onward());
}

async function confirmed(place, token, page, key) {
  try {
    await post("/auth/verify", { token });
    replace(place, notice("good", t("entry.verify.done")), onward());
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    replace(place, notice("bad", refusal(error)), el("p", null, t(key("entry.verify.other"))), again(page, key), onward());
  }
}

const onward = () => el("p", { class: "links" }, link("/console", t("entry.onward"), { kind: "primary" }));

const again = (page, key) =>
  letter(page.signal, {
    again: () => t(key("entry.verify.again")),
    againIn: (n) => t("entry.verify.again_in", { n }),
    sent: () => t(key("entry.verify.sent_again")),
    loggedOut: () => [t("entry.verify.log_in"), " ", link("/login?next=/verify", t("entry.login.submit"))],
  });
