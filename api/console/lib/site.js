// The service as its operator presents it: the name and the logo are in the shell, the rest the API knows.

import { get } from "./api.js";
import { el } from "./dom.js";
import { t } from "./words.js";

const shown = document.querySelector('meta[name="application-name"]');

// The name of the service.
export const name = () => shown.content;

// The address of its logo; "" without one.
export const logo = () => shown.dataset.logo;

let asked = null;

// The public facts of the service: its contact, the mode of registration, its texts. Asked for once, or `anew`; after a
// failure again.
export function facts({ anew = false } = {}) {
  if (anew) asked = null;
  asked ??= get("/api/site").catch((error) => {
    asked = null;
    throw error;
  });
  return asked;
}

// The texts that are valid; with `toAccept` those that users accept.
export const valid = ({ texts }, { toAccept = false } = {}) => texts.filter((each) => each.is_valid && !(toAccept && each.kind === "imprint"));

// The versions of these texts, as the API takes them.
export const versions = (texts) => Object.fromEntries(texts.map((each) => [each.kind, each.version]));

// Links to texts, each in a tab of its own, so that a form keeps its values.
export const links = (texts) => texts.map((each) => el("a", { href: each.url, target: "_blank", rel: "noopener" }, t(`frame.text.${each.kind}`)));
