// My deploys: how many replicas of each can be used.

import { get } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { link, meter } from "../../lib/view.js";
import { ago, t } from "../../lib/words.js";
import { OF_DEPLOYS, gpus, list, paid, parted, state, warned } from "./shared.js";

export const words = "work";
export const title = "work.deploys.title";

export const replicas = (row) => meter(row.ready_replicas, row.replicas, t("work.ready_of", { ready: row.ready_replicas, n: row.replicas }));

const columns = () => [
  { key: "name", label: t("work.deploy"), cell: (row) => link(`/console/deploys/${row.id}`, row.job_name) },
  { key: "status", label: t("work.state"), cell: (row) => [state(row.status), warned(row)] },
  { key: "replicas", label: t("work.replicas"), cell: replicas },
  { key: "gpu", label: t("work.gpus"), cell: gpus },
  { key: "created", label: t("work.created"), cell: (row) => ago(row.created_at) },
  { key: "cost", label: t("work.cost"), number: true, cell: (row) => paid(row.paid ?? row.cost, row.payment_type) },
];

export async function render(main, page) {
  const order = () => link("/console/deploys/new", t("work.deploys.order"), { kind: "primary" });
  const deploys = list({ caption: t("work.deploys.caption"), columns: columns(), empty: { text: t("work.deploys.empty"), action: order() } });
  const part = (cursor) => get("/api/deploy/jobs", { limit: 50, cursor }, { signal: page.signal });
  const next = await parted(page, main, { part, key: "deploys", show: deploys.show, types: OF_DEPLOYS });
  main.append(el("div", { class: "actions above" }, order()), deploys.node, next);
}
