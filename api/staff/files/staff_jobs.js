// Disputes: the order, the attempts, the log, both statements, the history of devices, and the decision.

import { actButton, ask, at, card, count, cut, done, form, heading, link, may, moment, ofUser, save, table } from "./staff_parts.js";
import { el, replace } from "./dom.js";

const BROWSER_BYTES = 500_000_000; // a browser may hold this before it is saved
const user = (id) => id && link(ofUser(id), id);

export const disputeCells = {
  job: (each) => link(`/job/${at(each.job_id)}`, each.job_id),
  price: (each) => `${each.price} ${each.currency}`,
  "disputed at (UTC)": (each) => moment(each.disputed_at),
  buyer: (each) => user(each.buyer),
  worker: (each) => user(each.worker),
  reason: (each) => each.reason,
};

function decision(job, price) {
  if (!may("job.decide")) return null;
  const named = (percent) => {
    const back = Math.round(price * percent * 10_000) / 1_000_000;
    return `The buyer gets ${back} of ${price} ${job.currency} back; the rest is paid. Each side may appeal once.`;
  };
  const percentOf = ({ decision: word, percent }) => ({ uphold: 0, reverse: 100 })[word] ?? Number(percent);
  return card(el("h2", {}, "Decision"), form([
    ["decision", "Decision", { options: [["uphold", "Uphold the payment"], ["reverse", "Reverse the payment"], ["split", "Split it"]] }],
    ["percent", "Percent for the buyer, of a split", { inputmode: "numeric", pattern: "[1-9][0-9]?", value: "50" }],
    ["reason", "Reason, which buyer and worker read", { rows: 2, maxlength: 500 }],
  ], "Decide", async (value) => {
    const body = { reason: value.reason, ...(value.decision === "split" ? { percent: Number(value.percent) } : {}) };
    const result = await ask("POST", `/jobs/${at(job.id)}/${value.decision}`, body);
    await done(result.state === "waits" ? `waits for a second person: request ${result.approval}` : `decided: ${result.decision}`);
  }, (value) => named(percentOf(value))));
}

// The log as text, with the number of each line; hits of the search are marked.
function logOf(job) {
  const lines = el("pre", { class: "log", tabindex: "0", role: "group", "aria-label": "Lines of the log" });
  const search = form([
    ["text", "Search the log, empty for its end", { maxlength: 200, required: false }],
    ["stream", "Stream", { options: [["stdout"], ["stderr"]] }],
    ["attempt", "Attempt, empty for the newest", { inputmode: "numeric", pattern: "[1-9][0-9]{0,5}", required: false }],
  ], "Show the log", async ({ text, stream, attempt }) => {
    const body = { text, stream, attempt: attempt ? Number(attempt) : null };
    replace(lines); // a refusal shows none of another attempt
    const found = await ask("POST", `/jobs/${at(job.id)}/log`, body);
    replace(lines, found.lines.length ? found.lines.map((each) =>
      el("span", {}, `${String(each.number).padStart(6)}  `, each.is_hit ? el("mark", {}, each.text) : each.text, "\n")) : "no lines");
  });
  return card(el("h2", {}, "Log"), search, lines);
}

// A button that saves a file; nothing of a stranger's file is shown in a page.
function saving(job, file) {
  if (!file.whole_at) return "has not arrived";
  if (file.bytes > BROWSER_BYTES) return "too large for a browser: use the staff API";
  const problem = el("span", { role: "alert", class: "error" });
  const button = el("button", { class: "button", type: "button", "aria-label": `Save ${file.name}`, on: { click: async () => {
    button.disabled = true;
    problem.textContent = "";
    try {
      await save(`/jobs/${at(job.id)}/files/${at(file.id)}`, file.name);
    } catch (error) {
      problem.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  } } }, "Save");
  return el("span", {}, button, " ", problem);
}

export async function jobPage(id) {
  const page = await ask("GET", `/jobs/${at(id)}`);
  const { job } = page;
  const price = page.statements.filter((each) => each.state === "disputed").reduce((sum, each) => sum + each.price, 0);
  return [
    heading(`Job ${job.title}`),
    el("p", {}, `${job.type} · ${job.status} · ${job.price} ${job.currency} · ${job.hours} h · buyer `, user(job.buyer)),
    ["waiting", "running"].includes(job.status) && may("job.cancel") && el("p", {}, actButton("Cancel this job", async (body) =>
      cut(await ask("POST", `/jobs/${at(job.id)}/cancel`, body)))),
    table("Statements", page.statements, { attempt: (each) => each.attempt, state: (each) => each.state, price: (each) => each.price,
      earned: (each) => each.earned, refunded: (each) => each.refunded, worker: (each) => user(each.worker),
      "disputed at (UTC)": (each) => moment(each.disputed_at), "the buyer says": (each) => each.reason }),
    table("Answers of the workers", page.answers, { worker: (each) => user(each.worker), "answered at (UTC)": (each) => moment(each.answered_at),
      "the worker says": (each) => each.answer }),
    card(el("h2", {}, "Order and result"), Object.entries({ description: job.description, requirements: job.requirements, payload: job.payload,
      result: job.result, failure: job.failure }).filter(([, text]) => text).map(([name, text]) => [el("h3", {}, name), el("pre", { class: "log" }, text)])),
    table("Attempts", page.attempts, { attempt: (each) => each.attempt, device: (each) => each.device, "began (UTC)": (each) => moment(each.began_at),
      "ended (UTC)": (each) => moment(each.ended_at), outcome: (each) => each.outcome, "exit code": (each) => each.exit_code,
      failure: (each) => each.failure, "the device says": (each) => each.reason }),
    logOf(job),
    table("Files", page.files, { name: (each) => each.name, kind: (each) => each.kind, attempt: (each) => each.attempt,
      size: (each) => `${count(each.bytes)} bytes`, sha256: (each) => each.sha256,
      ...(may("job.file") && page.statements.some((each) => each.disputed_at) ? { file: (each) => saving(job, each) } : {}) }),
    table("Devices", page.devices, { device: (each) => each.device, owner: (each) => user(each.owner), attempts: (each) => each.attempts,
      completed: (each) => each.completed, failed: (each) => each.failed, lost: (each) => each.lost,
      samples: (each) => `${each.samples_right} of ${each.samples} right`,
      "disputes of its owner": (each) => `${each.disputes}, ${each.reversed} reversed, ${each.split} split` }),
    el("p", {}, `Disputes of the buyer: ${page.buyer.disputes}, ${page.buyer.reversed} reversed, ${page.buyer.split} split.`),
    price ? decision(job, price) : null,
  ];
}
