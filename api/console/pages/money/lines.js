// The lines of a term of the earnings, such as everything that was paid out: they add up to the term.

import { get } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { follow } from "../../lib/stream.js";
import { card, link } from "../../lib/view.js";
import { date, t } from "../../lib/words.js";
import { paced, worded } from "../traffic/shared.js";
import { paid } from "../work/shared.js";
import { Lines, PACE_MS, signed, subject } from "./shared.js";

export const words = "money";
export const title = "money.lines.title";

export async function render(main, page) {
  const { currency = "credit", term = "earned" } = Object.fromEntries(page.query);
  const sum = el("p", { class: "identity" });
  const list = new Lines(page, { path: "/api/earnings/lines", key: "lines", query: { currency, term }, caption: t("money.lines.caption"), columns: columns(currency), empty: { text: t("money.lines.empty") } });
  const refresh = async () => {
    const [earned] = await Promise.all([get("/api/earnings", null, { signal: page.signal }), list.refresh()]);
    update(sum, worded("money.earnings", term, { amount: paid(earned[currency][term].amount, currency) }));
  };
  await refresh();
  main.append(card(t("money.lines"), sum, el("p", { class: "hint" }, t("money.lines.hint")), list.node, el("p", { class: "links" }, link("/console/earnings", t("money.lines.back")))));
  follow({ onEvent: paced(refresh, PACE_MS, page.signal), refresh, signal: page.signal });
}

const columns = (currency) => [
  { key: "at", label: t("money.when"), cell: (row) => date(row.created_at) },
  { key: "kind", label: t("money.wallet.kind"), cell: (row) => worded("money.kind", row.kind) },
  { key: "for", label: t("money.wallet.for"), cell: subject },
  { key: "amount", label: t("money.wallet.amount"), number: true, cell: (row) => signed({ ...row, currency }) },
];
