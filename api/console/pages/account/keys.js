// API keys: the permissions of programs that act in my place, their end, their addresses and their limits.

import { get, patch, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { follow } from "../../lib/stream.js";
import { ask, badge, button, card, meter, secret } from "../../lib/view.js";
import { ago, credits, date, money, t } from "../../lib/words.js";
import { paced } from "../traffic/shared.js";
import { list } from "../work/shared.js";
import { again, boxes, grouped, incomplete, ticked, unfold, worded } from "./access.js";

export const words = "access";
export const title = "access.keys.title";

const PACE_MS = 1_000; // however many events come
const OF_KEYS = ["key.created", "key.revoked", "key.expiring", "key.limit_reached"];
// Events about the creations of keys.
const OF_MADE = ["device.created", "device.revoked", "webhook.created", "webhook.changed", "webhook.disabled"];
const SCOPES = [
  "account:read",
  "sessions:read",
  "sessions:write",
  "usage:read",
  "jobs:read",
  "jobs:write",
  "devices:read",
  "devices:write",
  "wallet:read",
  "webhooks:write",
  "events:read",
  "assistant:use",
];
// A request that tries the first of its scopes.
const TRIED = [
  ["account:read", "/auth/me"],
  ["usage:read", "/api/usage/summary"],
  ["sessions:read", "/api/bandwidth/sessions"],
  ["wallet:read", "/api/wallet"],
  ["jobs:read", "/api/jobs"],
  ["devices:read", "/api/worker/devices"],
  ["events:read", "/api/events"],
  ["webhooks:write", "/api/webhooks"],
];
const NEVER = "never";
const LIFETIMES_DAYS = [1, 7, 30, 90, 180, 365];
const OVERLAPS_HOURS = [0, 1, 24, 72, 168];
const PERIODS = ["day", "month", "lifetime"];
const KIND_OF_STATUS = { active: "good", expired: "warn", revoked: "bad" };

export async function render(main, page) {
  const keys = new Keys(page.signal);
  follow({ types: [...OF_KEYS, ...OF_MADE], onEvent: paced(() => keys.refresh(), PACE_MS, page.signal), refresh: () => keys.refresh(), signal: page.signal });
  await keys.load();
  const creating = grouped(form(creatingOf(keys)), SCOPES, t("access.keys.scopes"), t("access.keys.scopes.hint"));
  main.append(el("p", null, t("access.keys.text")), keys.node, card(t("access.keys.new"), creating));
}

class Keys {
  constructor(signal) {
    Object.assign(this, { signal, rows: [] });
    this.problem = el("div");
    this.place = el("div"); // where one of them is changed or replaced
    this.list = list({ caption: t("access.keys.caption"), columns: this.columns(), empty: { text: t("access.keys.empty") } });
    this.node = el("div", null, this.problem, this.list.node, this.place);
  }

  async load() {
    this.rows = (await get("/api/keys", null, { signal: this.signal })).keys;
    this.list.show(this.rows);
  }

  refresh() {
    return again(this.problem, () => this.load());
  }

  columns() {
    return [
      { key: "name", label: t("access.name"), cell: (row) => [row.name, el("code", { class: "block" }, `${row.prefix}…`)] },
      { key: "status", label: t("access.status"), cell: status },
      { key: "scopes", label: t("access.keys.may"), cell: may },
      { key: "used", label: t("access.keys.used"), cell: used },
      { key: "spent", label: t("access.keys.spent"), cell: spent },
      { key: "acts", label: t("access.acts"), cell: (row) => this.acts(row) },
    ];
  }

  acts(row) {
    const { id, name } = row;
    const act = (word, does, kind) => button(t(`access.act.${word}`), () => does(this.row(id)), { kind, "aria-label": t(`access.act_on.${word}`, { name }) });
    if (row.status !== "active") return madeBy(row) ? act("end_made", (now) => this.endMade(now), "danger") : null;
    return el("span", { class: "acts" }, act("edit", (row) => this.edit(row), "quiet"), act("roll", (row) => this.roll(row), "quiet"), act("revoke", (row) => this.revoke(row), "danger"));
  }

  edit(row) {
    const editing = form({
      fields: [named(row.name), ...bounds(row)],
      submit: t("common.save"),
      send: async (values) => {
        await patch(`/api/keys/${row.id}`, { name: values.name, ...bounded(values) });
        close();
        await this.refresh();
      },
    });
    const close = unfold(this.place, t("access.act_on.edit", { name: row.name }), editing, { label: t("common.cancel") });
  }

  roll(row) {
    const rolling = form({
      fields: [{ name: "overlap_hours", label: t("access.keys.overlap"), type: "select", value: "24", required: true, hint: t("access.keys.overlap.hint"), options: OVERLAPS_HOURS.map((n) => [n, n ? t("access.hours", { n }) : t("access.keys.at_once")]) }],
      submit: t("access.act.roll"),
      send: async ({ overlap_hours: hours }) => {
        const made = await post(`/api/keys/${row.id}/roll`, { overlap_hours: Number(hours) }, { once: true });
        close();
        await shownOnce(made, row.scopes);
        await this.refresh();
      },
    });
    const close = unfold(this.place, t("access.act_on.roll", { name: row.name }), rolling, { label: t("common.cancel") });
  }

  // Its creations are counted once it makes nothing more.
  async revoke({ id, name }) {
    if (!(await ask({ title: t("access.act_on.revoke", { name }), text: t("access.keys.revoke.text"), action: t("access.act.revoke") }))) return;
    await post(`/api/keys/${id}/revoke`);
    await this.load();
    const row = this.row(id);
    if (madeBy(row)) await this.endMade(row);
  }

  async endMade({ id, created_webhooks: webhooks, created_devices: devices }) {
    const text = t("access.keys.made.text", { webhooks, devices });
    if (!(await ask({ title: t("access.keys.made.title"), text, action: t("access.keys.made.end") }))) return;
    await post(`/api/keys/${id}/revoke`, { with_created: true });
    await this.refresh();
  }

  row(id) {
    return this.rows.find((row) => row.id === id);
  }
}

function creatingOf(keys) {
  return {
    fields: [
      { ...named(), hint: t("access.keys.name.hint") },
      ...boxes("scope", SCOPES, []),
      { name: "expires", label: t("access.keys.expires"), type: "select", value: "90", required: true, hint: t("access.keys.expires.hint"), options: [...LIFETIMES_DAYS.map((n) => [n, t("access.days", { n })]), [NEVER, t("access.keys.never")]] },
      ...bounds({ allow_ips: [], spend_limit_usd: null, spend_limit_credit: null, spend_period: "month" }),
    ],
    submit: t("access.keys.create"),
    send: async (values, node) => {
      const scopes = ticked(SCOPES, values);
      if (!scopes.length) throw incomplete(t("access.keys.no_scope"));
      const days = values.expires === NEVER ? null : Number(values.expires);
      const made = await post("/api/keys", { name: values.name, scopes, expires_in_days: days, ...bounded(values) }, { once: true });
      node.reset();
      await shownOnce(made, scopes);
      await keys.refresh();
    },
  };
}

const named = (value) => ({ name: "name", label: t("access.name"), value, required: true, maxlength: 100, autocomplete: "off" });

const bounds = (row) => [
  { name: "allow_ips", label: t("access.keys.addresses"), type: "textarea", rows: 2, value: row.allow_ips.join("\n"), hint: t("access.keys.addresses.hint"), spellcheck: "false" },
  { name: "spend_limit_usd", label: t("access.keys.limit_usd"), type: "number", min: 0, step: "any", value: row.spend_limit_usd, hint: t("access.keys.limit.hint") },
  { name: "spend_limit_credit", label: t("access.keys.limit_credit"), type: "number", min: 0, step: "any", value: row.spend_limit_credit },
  { name: "spend_period", label: t("access.keys.period"), type: "select", value: row.spend_period, required: true, options: PERIODS.map((each) => [each, t(`access.period.${each}`)]) },
];

const bounded = (values) => ({
  allow_ips: (values.allow_ips ?? "").split(/[\s,;]+/).filter(Boolean),
  spend_limit_usd: values.spend_limit_usd ?? null,
  spend_limit_credit: values.spend_limit_credit ?? null,
  spend_period: values.spend_period,
});

// The key itself, and a line that tries it where one of its scopes lets it read something.
function shownOnce({ key }, scopes) {
  const tried = TRIED.find(([scope]) => scopes.includes(scope));
  const line = tried && `curl -H 'Authorization: Bearer ${key}' '${location.origin}${tried[1]}'`;
  return secret({
    title: t("access.keys.secret"),
    value: [[t("access.keys.secret"), key], ...(line ? [[t("access.keys.line"), line]] : [])],
    note: t("access.keys.secret.note"),
  });
}

const madeBy = ({ created_webhooks: webhooks, created_devices: devices }) => webhooks + devices;

function status(row) {
  const { status: now, expires_at: expires, revoked_at: revoked, created_by: source, created_webhooks: webhooks, created_devices: devices } = row;
  const until = expires ? t("access.keys.until", { date: date(expires) }) : t("access.keys.never");
  const note = now === "revoked" ? t("access.keys.revoked_at", { date: date(revoked) }) : until;
  return [badge(KIND_OF_STATUS[now], t(`access.key_status.${now}`)), aside(note), source === "device" ? aside(t("access.keys.by_device")) : null, madeBy(row) ? aside(t("access.keys.made", { webhooks, devices })) : null];
}

function may({ scopes, allow_ips: addresses }) {
  const from = addresses.length ? aside(t("access.keys.from", { addresses: addresses.join(", ") })) : null;
  return [scopes.map((each) => el("span", { class: "block" }, worded("scope", each))), from];
}

function used({ last_used_at: at, last_used_network: network }) {
  return at ? [ago(at), network ? aside(t("access.keys.whence", { network })) : null] : t("access.keys.unused");
}

function spent(row) {
  const usd = share(row.spent_usd, row.spend_limit_usd, money);
  const credit = share(row.spent_credit, row.spend_limit_credit, credits);
  return [usd, credit, aside(t(`access.period.${row.spend_period}`))];
}

function share(sum, limit, written) {
  if (limit === null) return el("span", { class: "block" }, t("access.keys.no_limit", { sum: written(sum) }));
  return meter(sum, limit, t("access.keys.of_limit", { sum: written(sum), limit: written(limit) }));
}

const aside = (text) => el("span", { class: "hint block" }, text);
