// My machines: their work, their reports, their earnings today, and the reasons without earnings.

import { get, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { badge, card, link, secret } from "../../lib/view.js";
import { ago, credits, money, percent, t } from "../../lib/words.js";
import { OF_DEVICES, OF_JOBS, current, degrees, gigabytes, list, some } from "./shared.js";

export const words = "work";
export const title = "work.devices.title";

const TYPES = ["desktop", "mini_pc", "server", "phone"];
const KIND_OF_WORK = { working: "good", waiting: "info", wants_none: "info", not_asking: "warn", never_seen: "warn", offline: "bad", revoked: "bad" };

const KIND_OF_EXIT = { online: "good", resting: "info", offline: "bad", paused: "warn", terms_changed: "warn", revoked: "bad", barred: "bad" };
const ATTACHED = new Set(["online", "resting"]);
const NO_WORKER = new Set(["never_seen", "not_asking"]);

const work = (word) => badge(KIND_OF_WORK[word], t(`work.work.${word}`));
export const exitState = (word) => badge(KIND_OF_EXIT[word], t(`work.exit.${word}`));
export const isExit = ({ exit }) => Boolean(exit) && exit !== "revoked";
// An exit whose owner runs no worker: of work there is nothing to say.
export const isExitAlone = (device) => isExit(device) && NO_WORKER.has(device.work);

// The state of a device, in a badge for each of its roles.
export function roles(device) {
  const asExit = isExit(device) ? exitState(device.exit) : null;
  if (isExitAlone(device)) return [asExit];
  return [work(device.work), asExit ? [" ", t("work.as_exit"), ": ", asExit] : null];
}

// The same in a sentence.
export const rolesWhy = (device) => t(isExitAlone(device) ? `work.exit.why.${device.exit}` : `work.why.${device.work}`);

export const heard = (device, written) => (ATTACHED.has(device.exit) ? t("work.seen.attached") : written(device.last_heartbeat_at));

// The hardware of a machine in one line: "RTX 4090 · 16 cores · 64 GB".
export function hardware({ gpu_name, cpu_cores, ram_gb }) {
  const parts = [gpu_name, cpu_cores ? t("work.cores", { n: cpu_cores }) : "", ram_gb ? gigabytes(ram_gb) : ""];
  return parts.filter(Boolean).join(" · ") || t("common.unknown");
}

// The commands that make this machine the device whose token is in the file `proxyctl-token`.
export function commands(token) {
  const store = `(umask 077; printf '%s\\n' '${token}' > proxyctl-token)`;
  const setup = `proxyctl worker setup --api ${location.origin} --token-file proxyctl-token`;
  return {
    worker: [...(token ? [store] : []), setup, "proxyctl worker run"].join("\n"),
    exit: [...(token ? [store] : []), `proxyctl exit consent --api ${location.origin} --token-file proxyctl-token`, "proxyctl exit run"].join("\n"),
  };
}

function sensors({ cpu_temp, gpu_temp, cpu_pct, ram_pct }) {
  const parts = [
    cpu_temp === undefined ? null : `CPU ${degrees(cpu_temp)}`,
    gpu_temp === undefined ? null : `GPU ${degrees(gpu_temp)}`,
    cpu_pct === undefined ? null : `CPU ${percent(cpu_pct / 100)}`,
    ram_pct === undefined ? null : `RAM ${percent(ram_pct / 100)}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

const columns = () => [
  { key: "hostname", label: t("work.device"), cell: (row) => link(`/console/devices/${row.id}`, row.hostname) },
  { key: "work", label: t("work.state"), cell: (row) => [roles(row), el("span", { class: "hint block" }, rolesWhy(row))] },
  { key: "seen", label: t("work.seen"), cell: (row) => heard(row, ago) },
  { key: "hardware", label: t("work.hardware"), cell: hardware },
  { key: "sensors", label: t("work.sensors"), cell: sensors },
  {
    key: "earned",
    label: t("work.earned_today"),
    number: true,
    cell: (row) => [
      row.earn_today || !(isExit(row) || row.earn_today_usd) ? el("span", { class: "block" }, credits(row.earn_today)) : null,
      isExit(row) || row.earn_today_usd ? el("span", { class: "block" }, money(row.earn_today_usd)) : null,
    ],
  },
];

export async function render(main, page) {
  const devices = list({
    caption: t("work.devices.caption"),
    columns: columns(),
    empty: { text: t("work.devices.empty") },
  });
  const revoked = list({ caption: t("work.devices.revoked"), columns: columns().slice(0, 2) });
  const gone = el("details", { hidden: true }, el("summary", null, t("work.devices.revoked")), revoked.node);
  const load = () => some("/api/worker/devices", "devices", {}, { signal: page.signal });
  await current(page, main, load, ({ rows }) => {
    const over = rows.filter((row) => row.work === "revoked");
    devices.show(rows.filter((row) => row.work !== "revoked"));
    revoked.show(over);
    gone.hidden = !over.length;
  }, [...OF_DEVICES, ...OF_JOBS]);
  main.append(devices.node, card(t("work.devices.new"), el("p", null, t("work.devices.new.text")), registering()), gone);
}

function registering() {
  return form({
    fields: [
      { name: "name", label: t("work.name"), required: true, maxlength: 200, hint: t("work.devices.name.hint") },
      { name: "device_type", label: t("work.kind"), type: "select", value: "desktop", required: true, options: TYPES.map((each) => [each, t(`work.device_type.${each}`)]) },
      { name: "min_price_usd", label: t("work.min_price"), type: "number", min: 0, step: "any", hint: t("work.min_price.hint") },
    ],
    submit: t("work.devices.register"),
    send: async (values) => {
      const made = await post("/api/worker/token/create", values, { once: true });
      const lines = commands(made.token);
      await secret({
        title: t("work.devices.token"),
        value: [
          [t("work.devices.token"), made.token],
          [t("work.devices.line.worker"), lines.worker],
          [t("work.devices.line.exit"), lines.exit],
        ],
        note: `${t("work.devices.line.note")} ${t("work.proxyctl")}`,
      });
      await go(`/console/devices/${made.token_id}`);
    },
  });
}

export const running = (deviceId, signal) =>
  get(`/api/worker/devices/${deviceId}/jobs`, { limit: 100 }, { signal }).then(({ jobs }) => jobs.filter((job) => job.outcome === undefined));

