// An event as a sentence, and the page of its subject.

import { sessionName } from "./view.js";
import { bytes, credits, date, load, money, t } from "./words.js";

const PLACES = {
  session: (id) => `/console/sessions/${id}`,
  wallet: () => "/console/wallet",
  job: (id) => `/console/jobs/${id}`,
  deploy: (id) => `/console/deploys/${id}`,
  device: (id) => `/console/devices/${id}`,
  referral: () => "/console/referrals",
  goodness: () => "/console/assistant",
  key: () => "/console/keys",
  login: () => "/console/account",
  webhook: (id) => `/console/webhooks/${id}`,
};

// Loads the sentences; before the others are called.
export const ready = () => load("events");

// The sentence. A type that this page does not know stands there by its name.
export function happened({ type, data }) {
  const key = type === "job.created" && data.deploy_id ? "event.job.created.deploy" : `event.${type}`;
  const text = t(key, written(data));
  return text === key ? type : text;
}

// The path of the page that shows more, or null.
export function happenedPath({ type, subject_id: id }) {
  const place = PLACES[type.slice(0, type.indexOf("."))];
  return place && id ? place(encodeURIComponent(id)) : null;
}

// Figures as their reader writes them; the name of a field gives its kind.
function written(data) {
  const values = data.session_id ? { session: sessionName(data.session_id) } : {};
  for (const [name, value] of Object.entries(data)) {
    if (name.endsWith("_bytes") || name.startsWith("bytes_")) values[name] = bytes(value);
    else if (name.endsWith("_usd")) values[name] = money(value);
    else if (name.endsWith("_credit")) values[name] = credits(value);
    else if (name.endsWith("_at")) values[name] = date(value);
    else values[name] = value;
  }
  if ("amount" in data) values.amount = data.currency === "usd" ? money(data.amount) : credits(data.amount);
  return values;
}
