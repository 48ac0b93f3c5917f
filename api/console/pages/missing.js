// There is no page here.

import { el } from "../lib/dom.js";
import { link } from "../lib/view.js";
import { t } from "../lib/words.js";

export const words = "common";
export const title = "missing.title";

export function render(main) {
  main.append(el("p", null, t("missing.text")), el("p", null, link("/console", t("missing.home"), { kind: "primary" })));
}
