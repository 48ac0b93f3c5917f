// One machine: its report, the reasons for its earnings, its jobs, and its state as an exit.

import { ApiError, get, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { again } from "../../lib/router.js";
import { ask, button, card, copyable, facts, meter, notice, table, toast } from "../../lib/view.js";
import { ago, bytes, count, credits, date, day, money, percent, t } from "../../lib/words.js";
import { commands, exitState, hardware, heard, isExit, isExitAlone, roles, running } from "./devices.js";
import { OF_DEVICES, OF_JOBS, answerTo, appealOf, current, degrees, english, gigabytes, inShort, jobType, list, place, state } from "./shared.js";

export const words = "work";
export const title = "work.device";

const DAYS = 30;
const CONSENTED = new Set(["online", "resting", "offline", "paused"]);
const SHOWN_REASONS = 12;
const ADVISED = new Set(["wants_none", "not_asking", "never_seen", "offline", "revoked"]);

export async function render(main, page) {
  const url = `/api/worker/devices/${page.params.id}`;
  const head = place();
  const why = place();
  const jobs = list({ caption: t("work.device.jobs"), columns: columns(), empty: { text: t("work.device.jobs.empty") } });
  const answers = place();
  const appeals = place();
  const decided = new Map(); // a job stays after its appeal: its date is there
  const earnings = place();
  const exit = place();
  const exitActions = place();
  const run = place();
  const exits = exitsOf(page);
  const load = async () => {
    const asked = { signal: page.signal };
    const [{ device }, done, earned, mine, terms] = await Promise.all([
      get(url, null, asked),
      get(`${url}/jobs`, { limit: 50 }, asked),
      get(`${url}/earnings`, { days: DAYS }, asked),
      exits.mine(),
      exits.terms(),
    ]);
    return { device, jobs: done.jobs, earned: earned.earnings, mine, terms };
  };
  await current(page, main, load, (seen) => {
    main.querySelector("h1").textContent = seen.device.hostname;
    head.show(reported(seen.device));
    why.show(reasons(seen.device));
    jobs.show(seen.jobs);
    const disputed = seen.jobs.filter((job) => job.disputed_at);
    answers.showOf(disputed.map((job) => job.id), () => disputed.map(answerTo));
    for (const job of seen.jobs) if (job.appeal_until) decided.set(job.id, job);
    appeals.showOf([...decided.keys()], () => [...decided.values()].map(appealAbout));
    earnings.show(earnedBy(seen.earned));
    exit.show(asExit(seen.mine, seen.terms));
    run.showOf([isExit(seen.device), isExitAlone(seen.device)], () => lines(seen.device));
    const decides = [seen.mine?.state, seen.mine?.limits, seen.terms.terms_hash, seen.device.work === "revoked"];
    exitActions.showOf(decides, () => actsOn(seen.device, seen.mine, seen.terms));
  }, [...OF_DEVICES, ...OF_JOBS, "job.disputed", "job.decided"]);
  main.append(
    head.node,
    card(t("work.device.why"), why.node),
    card(t("work.device.earnings"), earnings.node),
    card(t("work.device.jobs"), jobs.node, answers.node, appeals.node),
    card(t("work.exit"), exit.node, exitActions.node),
    card(t("work.device.run"), el("p", null, t("work.device.run.text")), run.node, el("p", { class: "hint" }, t("work.proxyctl"))),
    card(t("work.device.revoke"), el("p", null, t("work.device.revoke.text")), button(t("work.device.revoke"), () => revoke(page), { kind: "danger" })),
  );
}

const appealAbout = (job) => appealOf(`/api/jobs/${job.id}`, [t("work.review.appeal"), ": ", job.title]);

// Of an exit alone nothing that only workers report.
function reported(device) {
  const known = [
    [t("work.state"), [roles(device), " ", device.running ? t("work.running", { n: device.running }) : ""]],
    [t("work.seen"), heard(device, (at) => (at ? `${ago(at)} (${date(at)})` : t("work.never")))],
    [t("work.name"), device.name],
    [t("work.kind"), t(`work.device_type.${device.device_type}`)],
    [t("work.created"), day(device.created_at)],
  ];
  if (isExitAlone(device)) return facts(known);
  return facts([
    ...known,
    [t("work.hardware"), hardware(device)],
    [t("work.cpu_temp"), degrees(device.cpu_temp)],
    [t("work.gpu_temp"), degrees(device.gpu_temp)],
    [t("work.cpu_load"), percent(device.cpu_pct === undefined ? undefined : device.cpu_pct / 100)],
    [t("work.ram_load"), percent(device.ram_pct === undefined ? undefined : device.ram_pct / 100)],
    [t("work.reputation"), percent(device.reputation.score)],
    [t("work.min_price"), device.offer ? money(device.offer.min_price_usd) : money(device.min_price_usd)],
  ]);
}

// The lines of its roles; the reader may be copying them.
function lines(device) {
  const line = (role) => [el("p", { class: "label" }, t(`work.devices.line.${role}`)), copyable(commands("")[role], t(`work.devices.line.${role}`))];
  return [isExit(device) ? line("exit") : null, isExitAlone(device) ? null : line("worker")];
}

// The state in one sentence, then the obstacles for the other jobs.
function reasons(device) {
  if (isExitAlone(device)) return el("p", null, t("work.why.exit_alone"));
  const { work: word, suitability, offer, offline_at, last_heartbeat_at } = device;
  const since = offline_at ?? last_heartbeat_at;
  const { waiting, suitable, hindrances, best_price_usd } = suitability;
  const parts = [el("p", null, t(`work.why.${word}`), " ", word === "offline" && since ? t("work.why.since", { date: date(since) }) : "", " ", ADVISED.has(word) ? t(`work.do.${word}`) : "")];
  if (word === "revoked") return parts;
  if (!waiting) return [...parts, notice("info", t("work.why.no_jobs"))];
  parts.push(el("p", null, t("work.why.compared", { n: waiting }), " ", t("work.why.suitable", { n: suitable })));
  const rows = hindrances.slice(0, SHOWN_REASONS);
  if (rows.length) {
    const columns = [
      { key: "reason", label: t("work.why.reason"), cell: (row) => t(`work.hindrance.${row.reason}`) },
      { key: "jobs", label: t("work.why.jobs"), number: true, cell: (row) => meter(row.jobs, waiting, count(row.jobs)) },
    ];
    parts.push(table({ caption: t("work.why.caption"), columns, rows }));
  }
  if (best_price_usd !== undefined) parts.push(el("p", null, t("work.why.best_price", { price: money(best_price_usd) })));
  parts.push(el("p", { class: "hint" }, suitability.is_reported ? t("work.why.reported") : offered(offer)));
  return parts;
}

function offered(offer) {
  return t("work.why.offered", {
    slots: offer.slots,
    cores: offer.cores,
    ram: gigabytes(offer.ram_gb),
    disk: gigabytes(offer.disk_gb),
    gpus: offer.gpus,
    types: offer.job_types.map(jobType).join(", "),
  });
}

function earnedBy(days) {
  if (!days.length) return el("p", null, t("work.device.earnings.empty"));
  const most = Math.max(...days.map((each) => each.earned));
  const columns = [
    { key: "day", label: t("work.day"), cell: (row) => day(`${row.day}T12:00:00Z`) },
    { key: "earned", label: t("work.by_jobs"), number: true, cell: (row) => meter(row.earned, most, credits(row.earned)) },
    { key: "earned_usd", label: t("work.as_exit"), number: true, cell: (row) => (row.bytes ? `${money(row.earned_usd)} (${bytes(row.bytes)})` : money(row.earned_usd)) },
  ];
  return table({ caption: t("work.device.earnings.caption"), columns, rows: days });
}

const columns = () => [
  { key: "title", label: t("work.job") },
  { key: "outcome", label: t("work.state"), cell: (row) => state(row.outcome ?? "running") },
  { key: "type", label: t("work.kind"), cell: (row) => jobType(row.job_type) },
  { key: "accepted", label: t("work.accepted"), cell: (row) => ago(row.accepted_at) },
  { key: "earned", label: t("work.earned"), number: true, cell: (row) => (row.outcome ? credits(row.earned) : t("work.price_of", { price: credits(row.price_credit) })) },
  { key: "reason", label: t("work.reason"), cell: (row) => (row.kind || row.reason ? [row.kind ? t(`work.failure.${row.kind}`) : null, row.reason ? el("span", { class: "hint block", lang: "en" }, inShort(row.reason)) : null] : null) },
];

// --- as an exit ---------------------------------------------------------------------------------

function exitsOf(page) {
  let kept = null;
  return {
    // Of its owner's exits this device; null for a device that is no exit.
    async mine() {
      let cursor;
      do {
        const answer = await get("/api/exits/me", { limit: 1000, cursor }, { signal: page.signal });
        const found = answer.exits.find((each) => each.device_id === page.params.id);
        if (found) return found;
        cursor = answer.next_cursor;
      } while (cursor);
      return null;
    },
    async terms() {
      kept ??= await get("/api/exits/terms", null, { signal: page.signal });
      return kept;
    },
  };
}

function asExit(exit, terms) {
  if (exit) return exitFacts(exit, terms);
  return el("p", null, terms.host ? t("work.exit.text", { n: terms.share_percent }) : t("work.exit.none"));
}

// The possible actions on it now.
function actsOn(device, exit, terms) {
  if (device.work === "revoked" || exit?.state === "barred" || (!exit && !terms.host)) return [];
  if (!exit || !CONSENTED.has(exit.state)) return consenting(device.id, terms);
  const at = { token_id: device.id };
  const turn = exit.state === "paused" ? ["resume", t("work.exit.resume")] : ["pause", t("work.exit.pause")];
  const actions = [
    button(turn[1], async () => {
      await post(`/api/worker/exit/${turn[0]}`, at);
      await again();
    }),
    button(
      t("work.exit.revoke"),
      async () => {
        if (!(await ask({ title: t("work.exit.revoke"), text: t("work.exit.revoke.text"), action: t("work.exit.revoke") }))) return;
        await post("/api/worker/exit/revoke", at);
        await again();
      },
      { kind: "danger" },
    ),
  ];
  return [
    el("div", { class: "actions" }, actions),
    el("details", null, el("summary", null, t("work.exit.limits")), limits(device.id, exit.limits)),
  ];
}

function exitFacts(exit, terms) {
  return [
    facts([
      [t("work.state"), exitState(exit.state)],
      [t("work.exit.country"), exit.country],
      [t("work.exit.today"), `${bytes(exit.bytes_today)}, ${money(exit.earned_today_usd)}`],
      [t("work.exit.total"), `${bytes(exit.bytes_total)}, ${money(exit.earned_usd)}`],
      [t("work.exit.pending"), [money(exit.pending_usd), el("span", { class: "hint block" }, t("work.exit.payout", { n: terms.payout_hold_days }))]],
      exit.taken_back_usd ? [t("work.exit.taken_back"), money(exit.taken_back_usd)] : null,
    ]),
    exit.reason ? notice("warn", english(exit.reason)) : null,
  ];
}

function consenting(deviceId, terms) {
  return el(
    "details",
    null,
    el("summary", null, t("work.exit.consent")),
    el("pre", { class: "terms", tabindex: "0", lang: "en", "aria-label": t("work.exit.terms") }, terms.text),
    form({
      fields: [{ name: "agrees", label: t("work.exit.agree"), type: "checkbox", required: true }],
      submit: t("work.exit.consent"),
      send: async () => {
        await post("/api/worker/exit/consent", { token_id: deviceId, terms_hash: terms.terms_hash });
        await again();
      },
    }),
    el("p", null, t("work.exit.then")),
    copyable(commands("").exit, t("work.devices.line.exit")),
  );
}

function limits(deviceId, now) {
  const whole = { type: "number", min: 0, step: 1, required: true };
  return form({
    fields: [
      { name: "connections", label: t("work.exit.connections"), value: now.connections, ...whole, min: 1 },
      { name: "bytes_per_second", label: t("work.exit.bytes_per_second"), hint: t("work.exit.no_limit"), value: now.bytes_per_second, ...whole },
      { name: "bytes_per_day", label: t("work.exit.bytes_per_day"), hint: t("work.exit.no_limit"), value: now.bytes_per_day, ...whole },
      { name: "min_price_per_gb", label: t("work.exit.min_price"), value: now.min_price_per_gb, type: "number", min: 0, step: "any", required: true },
    ],
    submit: t("common.save"),
    send: async (values) => {
      await post("/api/worker/exit/limits", { token_id: deviceId, limits: values });
      await again();
      toast("good", t("work.saved"));
    },
  });
}

// Says which jobs it loses before it is done.
async function revoke(page) {
  const held = await running(page.params.id, page.signal);
  const text = held.length
    ? [el("p", null, t("work.device.revoke.loses", { n: held.length })), el("ul", null, held.map((job) => el("li", null, job.title)))]
    : el("p", null, t("work.device.revoke.none"));
  if (!(await ask({ title: t("work.device.revoke"), text, action: t("work.device.revoke") }))) return;
  try {
    await post("/api/worker/token/revoke", { token_id: page.params.id });
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "token_not_found") throw error;
  }
  await again();
}
