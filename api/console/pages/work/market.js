// The jobs of all users that wait or run: their kinds, their prices, and the command to take one by hand.

import { get } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { go } from "../../lib/router.js";
import { ask, badge, button, copyable, facts, link } from "../../lib/view.js";
import { count, t } from "../../lib/words.js";
import { chooser } from "./jobs.js";
import { JOB_TYPES, OF_JOBS, jobType, list, paid, parted, state } from "./shared.js";

export const words = "work";
export const title = "work.market.title";

const PART = 100;

const perHour = (row) => row.price_credit / row.duration_hrs;
const paidPerHour = (row) => paid(Math.round((row.cost / row.duration_hrs) * 100) / 100, row.payment_type);

const columns = (me) => [
  { key: "title", label: t("work.job"), cell: (row) => [row.title, row.buyer_id === me.id ? [" ", badge("info", t("work.mine"))] : null] },
  { key: "type", label: t("work.kind"), cell: (row) => jobType(row.job_type) },
  { key: "status", label: t("work.state"), cell: (row) => state(row.status) },
  { key: "hours", label: t("work.hours"), number: true, cell: (row) => count(row.duration_hrs) },
  { key: "price", label: t("work.price"), number: true, cell: (row) => paid(row.cost, row.payment_type) },
  { key: "hourly", label: t("work.per_hour"), number: true, cell: paidPerHour },
  { key: "look", label: t("work.look"), cell: (row) => looked(row, me) },
];

export async function render(main, page) {
  const type = JOB_TYPES.includes(page.query.get("type")) ? page.query.get("type") : "";
  const status = ["waiting", "running"].includes(page.query.get("status")) ? page.query.get("status") : "";
  const least = Math.max(Number(page.query.get("least")) || 0, 0);
  const jobs = list({
    caption: t("work.market.caption"),
    columns: columns(page.me),
    empty: { text: t("work.market.empty"), action: link("/console/jobs/new", t("work.jobs.post"), { kind: "primary" }) },
  });
  const part = (cursor) => get("/api/marketplace/jobs", { job_type: type, status, limit: PART, cursor }, { signal: page.signal });
  const show = (rows) => jobs.show(rows.filter((row) => perHour(row) >= least));
  const next = await parted(page, main, { part, key: "jobs", show, types: OF_JOBS });
  function filtered(change) {
    const asked = new URLSearchParams(Object.entries({ type, status, least: least || "", ...change }).filter(([, value]) => value));
    return go(`/console/market${asked.size ? `?${asked}` : ""}`, { replace: true });
  }
  const price = el("input", { type: "number", min: 0, step: "any", value: least || "", on: { change: () => filtered({ least: price.value }) } });
  main.append(
    el("p", null, t("work.market.text")),
    el(
      "div",
      { class: "filters" },
      chooser(t("work.kind"), [["", t("work.all")], ...JOB_TYPES.map((each) => [each, jobType(each)])], type, (value) => filtered({ type: value })),
      chooser(t("work.state"), [["", t("work.all")], ...["waiting", "running"].map((each) => [each, t(`work.state.${each}`)])], status, (value) => filtered({ status: value })),
      el("label", { class: "chooser" }, el("span", null, t("work.market.least")), price),
    ),
    jobs.node,
    next,
  );
}

// A job is accepted by a device, with the token of that; its texts are for devices and its buyer.
function looked(row, me) {
  if (row.buyer_id === me.id) return link(`/console/jobs/${row.id}`, t("work.look"));
  const line = `curl -X POST -H "X-Worker-Token: $(cat proxyctl-token)" ${location.origin}/api/jobs/${row.id}/accept`;
  return button(
    t("work.market.accept"),
    () =>
      ask({
        title: row.title,
        text: [
          facts([
            [t("work.kind"), jobType(row.job_type)],
            [t("work.price"), paid(row.cost, row.payment_type)],
            [t("work.hours"), count(row.duration_hrs)],
          ]),
          el("p", null, t("work.market.by_hand")),
          copyable(line, t("work.market.accept")),
        ],
        action: t("common.close"),
        kind: "quiet",
      }),
    { kind: "quiet", "aria-label": t("work.market.accept_of", { title: row.title }), disabled: row.status !== "waiting" },
  );
}
