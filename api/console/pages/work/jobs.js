// The jobs that I have put up, newest first.

import { get } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { go } from "../../lib/router.js";
import { link } from "../../lib/view.js";
import { ago, t } from "../../lib/words.js";
import { JOB_STATES, OF_JOBS, jobType, list, paid, parted, state, warned } from "./shared.js";

export const words = "work";
export const title = "work.jobs.title";

const columns = () => [
  { key: "title", label: t("work.job"), cell: (row) => link(`/console/jobs/${row.id}`, row.title) },
  { key: "status", label: t("work.state"), cell: (row) => [state(row.status), warned(row), row.deploy_id ? [" ", link(`/console/deploys/${row.deploy_id}`, t("work.of_deploy"))] : null] },
  { key: "type", label: t("work.kind"), cell: (row) => jobType(row.job_type) },
  { key: "created", label: t("work.created"), cell: (row) => ago(row.created_at) },
  { key: "attempts", label: t("work.attempts"), number: true },
  { key: "price", label: t("work.price"), number: true, cell: (row) => (row.paid === undefined ? paid(row.cost, row.payment_type) : t("work.paid_of", { paid: paid(row.paid, row.payment_type) })) },
];

export async function render(main, page) {
  const status = JOB_STATES.includes(page.query.get("status")) ? page.query.get("status") : "";
  const jobs = list({
    caption: t("work.jobs.caption"),
    columns: columns(),
    empty: { text: t(status ? "work.jobs.none" : "work.jobs.empty"), action: link("/console/jobs/new", t("work.jobs.post"), { kind: "primary" }) },
  });
  const part = (cursor) => get("/api/jobs", { status, limit: 50, cursor }, { signal: page.signal });
  const next = await parted(page, main, { part, key: "jobs", show: jobs.show, types: OF_JOBS });
  main.append(
    el("div", { class: "actions above" }, link("/console/jobs/new", t("work.jobs.post"), { kind: "primary" }), link("/console/market", t("menu.market"), { kind: "quiet" })),
    chooser(t("work.state"), ["", ...JOB_STATES].map((each) => [each, each ? t(`work.state.${each}`) : t("work.all")]), status, (value) =>
      go(value ? `/console/jobs?status=${value}` : "/console/jobs", { replace: true }),
    ),
    jobs.node,
    next,
  );
}

// A choice with an immediate effect.
export function chooser(label, options, value, onChoice) {
  const choices = options.map(([each, text]) => el("option", { value: each }, text));
  const select = el("select", { value, on: { change: () => onChoice(select.value) } }, choices);
  return el("label", { class: "chooser" }, el("span", null, label), select);
}
