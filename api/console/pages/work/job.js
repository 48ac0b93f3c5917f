// One of my jobs: how far it is, its attempts, its log as it is written, what came of it.

import { ApiError, get, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { save } from "../../lib/saving.js";
import { ask, badge, button, card, copyable, facts, link, meter, notice, table } from "../../lib/view.js";
import { bytes, count, date, percent, t } from "../../lib/words.js";
import { logOf } from "./log.js";
import { OF_JOBS, appealOf, cancelling, current, english, inShort, jobType, paid, place, saveArtifact, state } from "./shared.js";
import { plain } from "./terminal.js";

export const words = "work";
export const title = "work.job";

const OPEN = new Set(["waiting", "running"]);
const BROWSER_BYTES = 2_000_000_000; // a browser may hold this before it is saved

export async function render(main, page) {
  const url = `/api/jobs/${page.params.id}`;
  const parts = { head: place(), attempts: place(), result: place(), acts: place(), app: place(), spec: place() };
  const asked = { signal: page.signal };
  async function load() {
    const [{ job }, { attempts }, { artifacts }] = await Promise.all([get(url, null, asked), get(`${url}/attempts`, null, asked), get(`${url}/artifacts`, { limit: 100 }, asked)]);
    return { job, attempts, artifacts, app: await appOf(job, url, asked) };
  }
  let log = null;
  let shown = null;
  function show(data) {
    shown = data;
    const { job, attempts, artifacts, app } = data;
    main.querySelector("h1").textContent = job.title;
    parts.head.show(steps(job, attempts), overview(job, attempts));
    parts.attempts.show(attemptsOf(attempts));
    parts.result.show(resultOf(job, artifacts, log));
    parts.acts.showOf([job.status, job.review?.state], () => acts(job, url, () => refresh()));
    parts.app.showOf(app, () => (app ? card(t("work.app"), appLinks(app)) : null));
    parts.spec.showOf(job.payload, () => specOf(job));
  }
  const refresh = await current(page, main, load, show, OF_JOBS);
  // The log of a job that is over ends at once, and changes only how the result is shown.
  log = logOf(page.params.id, page.signal, () => (OPEN.has(shown.job.status) ? refresh() : show(shown)));
  main.append(
    parts.head.node,
    parts.acts.node,
    parts.app.node,
    card(t("work.result"), parts.result.node),
    card(
      t("work.log"),
      log.node,
      el("div", { class: "actions" }, button(t("work.log.save"), () => save(`${url}/log/raw`, `${page.params.id}.log`), { kind: "quiet" })),
    ),
    card(t("work.attempts"), parts.attempts.node),
    parts.spec.node,
  );
}

// waiting → taken → begun → ready → over, with when each was reached.
function steps(job, attempts) {
  const last = attempts.at(-1);
  const isNow = last && !last.outcome;
  const reached = OPEN.has(job.status) && !isNow ? null : last;
  const all = [
    ["posted", job.created_at],
    ["taken", reached?.accepted_at],
    ["begun", reached?.started_at],
    ...(reached?.ready_at || job.payload?.ports?.length ? [["ready", reached?.ready_at]] : []),
    ["over", job.finished_at],
  ];
  const done = all.map(([, at]) => Boolean(at));
  const now = OPEN.has(job.status) ? done.indexOf(false) : -1;
  const items = all.map(([name, at], index) =>
    el("li", { class: at ? "done" : null, "aria-current": index === now ? "step" : null }, el("span", null, t(`work.step.${name}`)), el("span", { class: "hint block" }, at ? date(at) : index === now ? t("work.step.now") : t("common.unknown"))),
  );
  return el("ol", { class: "steps", "aria-label": t("work.steps") }, items);
}

function overview(job, attempts) {
  return [
    facts([
      [t("work.state"), state(job.status)],
      [t("work.kind"), jobType(job.job_type)],
      [t("work.price"), paid(job.cost, job.payment_type)],
      job.paid === undefined ? null : [t("work.paid"), paid(job.paid, job.payment_type)],
      job.paid === undefined || job.left === undefined ? null : [t("work.left"), paid(job.left, job.payment_type)],
      [t("work.hours"), count(job.duration_hrs)],
      [t("work.attempts"), count(job.attempts)],
      job.deploy_id ? [t("work.deploy"), link(`/console/deploys/${job.deploy_id}`, t("work.of_deploy"))] : null,
    ]),
    job.status === "waiting" && job.payload === undefined ? notice("warn", t("work.job.manual")) : null,
    (job.warnings ?? []).map((each) => notice("warn", english(each), " ", link("/console/supply", t("menu.supply")))),
    job.failure_reason ? failed(job, attempts) : null,
    job.review ? reviewOf(job.review) : null,
    job.copies ? copiesOf(job) : null,
  ];
}

// The reason of its failure, in the reader's language; the report of its device is unfolded.
function failed(job, attempts) {
  const last = attempts.findLast((each) => each.reason === job.failure_reason);
  const why = last?.kind ? t(`work.failure.${last.kind}`) : t("work.job.failed.unknown");
  const code = last?.exit_code ? ` · ${t("work.exit_code", { n: last.exit_code })}` : "";
  return [
    notice(OPEN.has(job.status) ? "warn" : "bad", t("work.job.failed", { why: why + code })),
    el("details", null, el("summary", null, t("work.job.said")), el("pre", { lang: "en", tabindex: "0", "aria-label": t("work.job.said") }, plain(job.failure_reason))),
  ];
}

function reviewOf({ state: word, until, reason }) {
  return notice(word === "disputed" ? "warn" : "info", t(`work.review.${word}`, { date: date(until) }), reason ? ` ${reason}` : "");
}

function copiesOf(job) {
  const columns = [
    { key: "job", label: t("work.job"), cell: (row) => link(`/console/jobs/${row.job_id}`, row.job_id) },
    { key: "status", label: t("work.state"), cell: (row) => state(row.status) },
    { key: "agrees", label: t("work.agrees"), cell: (row) => (row.agrees === undefined ? t("common.unknown") : t(row.agrees ? "common.yes" : "common.no")) },
  ];
  return table({ caption: t(`work.copies.${job.copies.state}`), columns, rows: job.copies.jobs });
}

function attemptsOf(attempts) {
  const columns = [
    { key: "attempt", label: t("work.attempt"), number: true },
    { key: "outcome", label: t("work.state"), cell: (row) => [state(row.outcome ?? "running"), row.state ? ` ${phase(row.state)}` : null] },
    { key: "progress", label: t("work.progress"), cell: (row) => (row.progress === undefined ? null : meter(row.progress, 1, percent(row.progress))) },
    { key: "accepted", label: t("work.accepted"), cell: (row) => date(row.accepted_at) },
    { key: "ended", label: t("work.ended"), cell: (row) => date(row.ended_at) },
    { key: "why", label: t("work.reason"), cell: why },
    { key: "reputation", label: t("work.reputation"), number: true, cell: (row) => percent(row.reputation.score) },
  ];
  return table({ caption: t("work.attempts.caption"), columns, rows: attempts, empty: { text: t("work.attempts.empty") } });
}

function why({ kind, reason, exit_code, outputs_left_out: lost }) {
  const left = lost ? [t("work.left_out", { n: count(lost.files), size: bytes(lost.bytes) }), ...lost.reasons] : [];
  const code = exit_code ? t("work.exit_code", { n: exit_code }) : null;
  // A device begins with the same status, in English.
  const said = exit_code ? reason?.replace(new RegExp(`^it ended with the status ${exit_code}(; |$)`), "") : reason;
  const parts = [said ? inShort(said) : null, code, ...left].filter(Boolean);
  if (!kind && !parts.length) return null;
  return [kind ? badge("warn", t(`work.failure.${kind}`)) : null, ` ${parts.join(" · ")}`];
}

// The phase that its device reports; programs may have words of their own.
function phase(word) {
  const text = t(`work.phase.${word}`);
  return text.startsWith("work.") ? word : text;
}

function resultOf(job, artifacts, log) {
  const columns = [
    { key: "name", label: t("work.file") },
    { key: "kind", label: t("work.kind"), cell: (row) => t(`work.artifact.${row.kind}`) },
    { key: "size", label: t("work.size"), number: true, cell: (row) => bytes(row.size_bytes) },
    { key: "until", label: t("work.kept_until"), cell: (row) => date(row.expires_at) },
    { key: "save", label: t("work.download"), cell: (row) => download(row) },
  ];
  const files = artifacts.length ? table({ caption: t("work.files"), columns, rows: artifacts }) : null;
  const result = job.result && plain(job.result);
  if (result && log?.endsWith(result)) return [el("p", null, t("work.result.in_log")), files];
  if (result) return [el("pre", { tabindex: "0", "aria-label": t("work.result") }, result), files];
  if (files) return files;
  return el("p", null, t(OPEN.has(job.status) ? "work.result.later" : "work.result.none"));
}

function download(file) {
  if (!file.is_whole) return t("work.arriving");
  if (file.size_bytes > BROWSER_BYTES) return copyable(`curl -L -OJ -H "Authorization: Bearer $TOKEN" ${location.origin}/api/artifacts/${file.id}`, t("work.download"));
  return button(t("work.download"), () => saveArtifact(file), { kind: "quiet", "aria-label": t("work.download_of", { name: file.name }) });
}

// The buyer's possible actions on it now.
function acts(job, url, refresh) {
  const cancel = button(
    t("work.job.cancel"),
    async () => {
      const cost = await cancelling([job.id]);
      const text = t("work.job.cancel.cost", { pays: paid(cost.pays, cost.currency), returns: paid(cost.returns, cost.currency) });
      if (!(await ask({ title: t("work.job.cancel"), text, action: t("work.job.cancel") }))) return;
      await post(`${url}/cancel`);
      await refresh();
    },
    { kind: "danger" },
  );
  if (OPEN.has(job.status)) return el("div", { class: "actions above" }, cancel);
  if (job.review?.state === "upheld") return appealOf(url, t("work.review.appeal"));
  if (job.review?.state !== "held") return null;
  return card(
    t("work.review"),
    el("p", null, t("work.review.text")),
    el(
      "div",
      { class: "actions" },
      button(
        t("work.review.accept"),
        async () => {
          await post(`${url}/confirm`);
          await refresh();
        },
        { kind: "primary" },
      ),
    ),
    el(
      "details",
      null,
      el("summary", null, t("work.review.dispute")),
      form({
        fields: [{ name: "reason", label: t("work.review.reason"), type: "textarea", required: true, maxlength: 2000 }],
        submit: t("work.review.dispute"),
        kind: "danger",
        send: async (values) => {
          await post(`${url}/dispute`, values);
          await refresh();
        },
      }),
    ),
  );
}

// Where it is opened, if it listens and this service has apps; null else.
async function appOf(job, url, asked) {
  if (job.status !== "running" || !job.payload?.ports?.some((port) => port.protocol !== "tcp")) return null;
  try {
    return (await get(`${url}/app`, null, asked)).app;
  } catch (error) {
    if (error instanceof ApiError && error.status && error.status < 500) return null;
    throw error;
  }
}

// The addresses of an app; the key in them opens it once, so they are for its owner alone.
export function appLinks(app) {
  const ports = app.ports.map((port) => el("li", null, el("a", { href: port.url, target: "_blank", rel: "noopener noreferrer" }, t("work.app.open", { name: port.name }))));
  return [
    el("p", null, badge(app.is_ready ? "good" : "warn", t(app.is_ready ? "work.app.ready" : "work.app.not_ready"))),
    app.key ? el("ul", null, ports) : el("p", null, t("work.app.no_key")),
    facts([
      [t("work.app.requests"), count(app.requests)],
      [t("work.app.traffic"), `${bytes(app.received_bytes)} / ${bytes(app.sent_bytes)}`],
    ]),
  ];
}

function specOf(job) {
  if (!job.payload) return null;
  const what = { payload: job.payload, resources: job.resources };
  return el("details", null, el("summary", null, t("work.spec")), el("pre", { tabindex: "0", "aria-label": t("work.spec") }, JSON.stringify(what, null, 2)));
}
