// Parts that the pages of traffic share.

import { ApiError } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { badge, link, meter, sessionName, table } from "../../lib/view.js";
import { bytes, count, date, percent, t } from "../../lib/words.js";

export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
export const OF_SESSIONS = ["session.created", "session.halted", "session.resumed", "session.exhausted", "session.ended", "session.expired"];
const KIND_OF_STATUS = { active: "good", ended: "info", exhausted: "warn", expired: "warn" };

export const state = (status) => badge(KIND_OF_STATUS[status] ?? "info", t(`traffic.state.${status}`));
// An active session may be halted.
export const stateOf = ({ status, halted }) => (halted ? badge("warn", t("traffic.state.halted")) : state(status));

// The sentence about a halt: its reason and its end.
export function haltWords({ reason, until }) {
  const why = reason || t("traffic.halted.unknown");
  return until ? t("traffic.halted.until", { reason: why, until: date(until) }) : t("traffic.halted.open", { reason: why });
}

export const sessionLink = (id) => link(`/console/sessions/${id}`, sessionName(id));

// The used and the remaining part of a purchase.
export function usedBar({ bytes_used: used, quota_bytes: quota }) {
  const text = t("traffic.used_left", { used: bytes(used), left: bytes(quota - used), share: percent(quota ? used / quota : null) });
  return el("span", { class: "is-live" }, meter(used, quota, text));
}

// Reasons of refused connections, the most frequent first, each with its remedy.
export function refused(refusals) {
  const rows = Object.entries(refusals).toSorted((one, other) => other[1] - one[1]);
  const columns = [
    { key: "reason", label: t("traffic.reason"), cell: ([reason]) => worded("traffic.refused", reason) },
    { key: "count", label: t("traffic.times"), number: true, cell: ([, times]) => count(times) },
    { key: "fix", label: t("traffic.fix"), cell: ([reason]) => worded("traffic.fix", reason) },
  ];
  return table({ caption: t("traffic.refused_caption"), columns, rows, empty: { text: t("traffic.refused_none") } });
}

// A reason that a newer server has told is shown as it is.
export function worded(prefix, reason, values) {
  const key = `${prefix}.${reason}`;
  const text = t(key, values);
  return text === key ? (prefix.endsWith("fix") ? null : reason) : text;
}

// Sessions bought while this page was open: the password of each is shown once, and is kept nowhere else.
const bought = new Map();
export const remember = (id, proxy) => bought.set(id, proxy);
export const remembered = (id) => bought.get(id) ?? null;

// A repeated request may fail: it is repeated.
export function unlessRefused(error) {
  if (!(error instanceof ApiError) && error.name !== "AbortError") throw error;
}

// Calls `act` at most once in `milliseconds`, and once more behind the last call.
export function paced(act, milliseconds, signal) {
  let timer = null;
  let isWanted = false;
  signal.addEventListener("abort", () => clearTimeout(timer));
  return function call() {
    if (signal.aborted) return;
    if (timer !== null) {
      isWanted = true;
      return;
    }
    isWanted = false;
    timer = setTimeout(() => {
      timer = null;
      if (isWanted) call();
    }, milliseconds);
    act().catch(unlessRefused);
  };
}

// The same for figures that a frame changes: it comes before the sums contain it, and may be the last for long.
export function chasing(act, milliseconds, signal) {
  const again = paced(act, milliseconds, signal);
  return function call() {
    again();
    again();
  };
}
