// One deploy: its replicas, how far the newest revision is, where it is opened, and its end.

import { ApiError, get, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { ask, badge, button, card, facts, link, notice, table } from "../../lib/view.js";
import { count, date, t } from "../../lib/words.js";
import { replicas } from "./deploys.js";
import { appLinks } from "./job.js";
import { OF_DEPLOYS, OF_JOBS, cancelling, current, english, gpus, paid, place, state } from "./shared.js";

export const words = "work";
export const title = "work.deploy";

const OPEN = new Set(["queued", "running"]);
const KIND_OF_ROLLOUT = { available: "good", progressing: "info", stuck: "bad", paused: "warn", over: "info" };

export async function render(main, page) {
  const url = `/api/deploy/job/${page.params.id}`;
  const asked = { signal: page.signal };
  const parts = { head: place(), acts: place(), apps: place(), replicas: place(), revisions: place() };
  async function load() {
    const { deploy } = await get(url, null, asked);
    const hasRollout = deploy.revision !== undefined;
    const [revisions, apps] = await Promise.all([
      hasRollout ? get(`${url}/revisions`, null, asked) : null,
      hasRollout && OPEN.has(deploy.status) ? get(`${url}/apps`, null, asked).catch(without) : null,
    ]);
    return { deploy, revisions: revisions?.revisions ?? [], apps };
  }
  const refresh = await current(page, main, load, ({ deploy, revisions, apps }) => {
    main.querySelector("h1").textContent = deploy.job_name;
    parts.head.show(overview(deploy));
    parts.acts.showOf([deploy.status, deploy.state, deploy.replicas, deploy.revision], () => acts(deploy, url, () => refresh()));
    parts.apps.showOf(apps && [apps.app.url, apps.app.key, apps.app.is_ready, apps.app.ports], () => (apps ? card(t("work.app"), appLinks(apps.app)) : null));
    parts.replicas.show(replicasOf(deploy));
    parts.revisions.showOf([revisions, deploy.status], () => revisionsOf(revisions, deploy, url, () => refresh()));
  }, [...OF_DEPLOYS, ...OF_JOBS]);
  main.append(parts.head.node, parts.acts.node, parts.apps.node, card(t("work.replicas"), parts.replicas.node), parts.revisions.node);
}

// No app, or none at this service, is no failure of the page.
function without(error) {
  if (error instanceof ApiError && error.status && error.status < 500) return null;
  throw error;
}

function overview(deploy) {
  return [
    facts([
      [t("work.state"), state(deploy.status)],
      [t("work.replicas"), replicas(deploy)],
      deploy.state ? [t("work.rollout"), [badge(KIND_OF_ROLLOUT[deploy.state], t(`work.rollout.${deploy.state}`)), " ", t("work.revision", { n: deploy.revision })]] : null,
      deploy.state ? [t("work.updated"), t("work.updated_of", { updated: deploy.updated_replicas, available: deploy.available_replicas, n: deploy.replicas })] : null,
      [t("work.gpus"), gpus(deploy)],
      [t("work.hours"), count(deploy.duration_hrs)],
      [t("work.cost"), paid(deploy.cost, deploy.payment_type)],
      deploy.paid === undefined ? null : [t("work.paid"), paid(deploy.paid, deploy.payment_type)],
      [t("work.created"), date(deploy.created_at)],
      deploy.image ? [t("work.post.image"), deploy.image] : null,
      deploy.command ? [t("work.order.command"), deploy.command] : null,
    ]),
    deploy.status === "queued" && deploy.revision === undefined ? notice("warn", t("work.job.manual")) : null,
    (deploy.warnings ?? []).map((each) => notice("warn", english(each), " ", link("/console/supply", t("menu.supply")))),
    deploy.problem ? notice(deploy.state === "stuck" ? "bad" : "warn", english(deploy.problem)) : null,
  ];
}

function replicasOf(deploy) {
  const columns = [
    { key: "number", label: t("work.replica"), number: true },
    { key: "job", label: t("work.job"), cell: (row) => link(`/console/jobs/${row.id}`, t("work.replica.look", { n: row.number })) },
  ];
  const rows = deploy.job_ids.map((id, index) => ({ id, number: index + 1 }));
  return table({ caption: t("work.replicas.caption"), columns, rows, empty: { text: t("work.replicas.none") } });
}

function acts(deploy, url, refresh) {
  if (!OPEN.has(deploy.status)) return null;
  const does = (label, path, kind) =>
    button(
      label,
      async () => {
        await post(`${url}/${path}`);
        await refresh();
      },
      { kind },
    );
  const restart = button(t("work.deploy.restart"), async () => {
    const cost = await cancelling(deploy.job_ids);
    const text = t("work.deploy.restart.cost", { pays: paid(cost.pays, deploy.payment_type), returns: paid(cost.returns, deploy.payment_type) });
    if (!(await ask({ title: t("work.deploy.restart"), text, action: t("work.deploy.restart") }))) return;
    await post(`${url}/restart`, {}, { once: true });
    await refresh();
  });
  const cancel = button(
    t("work.deploy.cancel"),
    async () => {
      const cost = await cancelling(deploy.job_ids);
      const currency = deploy.payment_type;
      const text = t("work.job.cancel.cost", { pays: paid(cost.pays, currency), returns: paid(cost.returns, currency) });
      if (!(await ask({ title: t("work.deploy.cancel"), text, action: t("work.deploy.cancel") }))) return;
      await post(`${url}/cancel`);
      await refresh();
    },
    { kind: "danger" },
  );
  if (deploy.state === undefined) return el("div", { class: "actions above" }, cancel);
  const isPaused = deploy.state === "paused";
  return card(
    t("work.deploy.change"),
    form({
      fields: [{ name: "replicas", label: t("work.replicas"), type: "number", required: true, min: 0, max: 100, step: 1, value: deploy.replicas, hint: t("work.deploy.scale.hint") }],
      submit: t("work.deploy.scale"),
      send: async (values) => {
        if (!(await ask({ title: t("work.deploy.scale"), text: scaling(deploy, values.replicas), action: t("work.deploy.scale"), kind: "primary" }))) return;
        await post(`${url}/scale`, values);
        await refresh();
      },
    }),
    el("div", { class: "actions" }, isPaused ? does(t("work.deploy.resume"), "resume") : does(t("work.deploy.pause"), "pause"), restart, cancel),
  );
}

// The cost of another number of replicas: each costs the same as a present one.
function scaling({ cost, replicas: now, payment_type: currency }, n) {
  const more = now > 0 ? (cost / now) * (n - now) : null;
  if (n < now) return t("work.deploy.scale.fewer", { n, now });
  return t("work.deploy.scale.more", { n, now, cost: more === null ? t("common.unknown") : paid(Math.round(more * 1e6) / 1e6, currency) });
}

function revisionsOf(revisions, deploy, url, refresh) {
  if (!revisions.length) return null;
  const back = (row) =>
    button(
      t("work.rollback"),
      async () => {
        const title = t("work.rollback.to", { n: row.revision });
        if (!(await ask({ title, text: t("work.rollback.text"), action: t("work.rollback") }))) return;
        await post(`${url}/rollback`, { revision: row.revision }, { once: true });
        await refresh();
      },
      { kind: "quiet", "aria-label": t("work.rollback.to", { n: row.revision }) },
    );
  const columns = [
    { key: "revision", label: t("work.revision.number"), number: true, cell: (row) => count(row.revision) },
    { key: "state", label: t("work.state"), cell: (row) => badge(KIND_OF_ROLLOUT[row.state], t(`work.rollout.${row.state}`)) },
    { key: "cause", label: t("work.reason") },
    { key: "created", label: t("work.created"), cell: (row) => date(row.created_at) },
    { key: "image", label: t("work.post.image"), cell: (row) => row.image || row.command },
    { key: "back", label: t("work.rollback"), cell: (row) => (OPEN.has(deploy.status) && row.revision !== deploy.revision ? back(row) : null) },
  ];
  return card(t("work.revisions"), table({ caption: t("work.revisions.caption"), columns, rows: revisions }));
}
