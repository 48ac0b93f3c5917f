// The acts of the staff about me, newest first.

import { get } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { more, shown, table } from "../../lib/view.js";
import { credits, date, money, t } from "../../lib/words.js";
import { worded } from "../traffic/shared.js";

const LIMIT = 10;
const UNSAID = ["login", "shown"]; // of the log alone: a login of the staff, and a hash of the reason
const AMOUNTS = { usd: money, available_usd: money, debt_usd: money, credit: credits, available_credit: credits, debt_credit: credits };

// The place of the list, and `load()`, which requests its first part.
export function acts({ signal }) {
  const node = el("div");
  let rows = [];
  let cursor;
  async function part() {
    const answer = await get("/auth/me/acts", { limit: LIMIT, cursor }, { signal });
    rows = [...rows, ...answer.acts];
    cursor = answer.next_cursor;
    const list = table({ caption: t("account.acts.caption"), columns: columns(), rows, empty: { text: t("account.acts.empty") } });
    return [list, cursor ? more(longer) : null];
  }
  async function longer() {
    replace(node, await part());
    return true; // its button is replaced
  }
  return { node, load: () => shown(node, part) };
}

const columns = () => [
  { key: "when", label: t("account.acts.when"), cell: (row) => date(row.created_at) },
  { key: "action", label: t("account.acts.action"), cell: (row) => worded("account.act", row.action) },
  { key: "reason", label: t("account.acts.reason"), cell: (row) => row.reason },
  { key: "changes", label: t("account.acts.changes"), cell: changed },
];

function changed({ changes }) {
  const said = Object.entries(changes).filter(([name, { old, new: now }]) => !UNSAID.includes(name) && (old !== null || now !== null));
  return said.length ? said.map(([name, { old, new: now }]) => el("span", { class: "block" }, `${name}: ${value(name, old)} → ${value(name, now)}`)) : null;
}

function value(name, each) {
  if (each === null) return t("common.unknown");
  if (typeof each === "number" && (name === "until" || name.endsWith("_at"))) return date(new Date(each * 1000).toISOString());
  return typeof each === "number" && AMOUNTS[name] ? AMOUNTS[name](each) : String(each);
}
