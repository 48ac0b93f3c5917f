// Things that will stop working soon, and their remedies.

import { el } from "../../lib/dom.js";
import { link, notice, sessionName } from "../../lib/view.js";
import { bytes, date, money, t } from "../../lib/words.js";

const LOW_USD = 1;
const NEARLY_USED = 0.1; // this part of a purchase is left
const DAY_MS = 86_400_000;
const KEY_DAYS = 7;

// warnings({me, sessions}): notices; `sessions` are the active ones.
export function warnings({ me, sessions }) {
  const now = Date.now();
  return [
    sessions.length && me.usd_balance < LOW_USD ? warning("low", { balance: money(me.usd_balance) }, "/console/wallet") : null,
    sessions.filter((each) => each.bytes_left <= each.quota_bytes * NEARLY_USED).map((each) =>
      warning("used", { left: bytes(each.bytes_left), session: sessionName(each.id) }, `/console/sessions/${each.id}`),
    ),
    sessions.filter((each) => new Date(each.expires_at) - now < DAY_MS).map((each) =>
      warning("expires", { when: date(each.expires_at), session: sessionName(each.id) }, `/console/sessions/${each.id}`),
    ),
  ];
}

// The same of API keys.
export function keyWarnings(keys) {
  const soon = Date.now() + KEY_DAYS * DAY_MS;
  return keys
    .filter((each) => each.status === "active" && each.expires_at && new Date(each.expires_at) < soon)
    .map((each) => warning("key", { name: each.name, when: date(each.expires_at) }, "/console/keys"));
}

function warning(name, values, path) {
  const node = notice("warn", `${t(`overview.warning.${name}`, values)} `, link(path, t(`overview.warning.${name}.action`)));
  return el("div", { data: { warning: name } }, node);
}
