// Cases: failed canaries, failed samples, rewards for photos and appeals, each with its evidence and one decision.

import { ask, at, card, done, form, heading, link, may, moment, ofUser, table } from "./staff_parts.js";
import { el } from "./dom.js";

const KINDS = [["canary", "Failed canaries"], ["sample", "Failed samples"], ["reward", "Rewards for photos"], ["appeal", "Appeals"]];
const user = (id) => id && link(ofUser(id), id);

export const caseCells = {
  case: (each) => link(`/case/${at(each.kind)}/${at(each.id)}`, each.id),
  kind: (each) => each.kind,
  "at (UTC)": (each) => moment(each.at),
  user: (each) => user(each.user_id),
  device: (each) => each.device,
  summary: (each) => each.summary,
  "due (UTC)": (each) => moment(each.due_at),
  decision: (each) => each.decision ?? (each.is_open ? "open" : "pardoned"),
};

// Open cases for the queue: the appeals that are due first, and the newest failures.
export async function openCases() {
  const paths = ["/appeals?limit=50", "/cases/canary?limit=50", "/cases/sample?limit=50"];
  const pages = await Promise.all(paths.map((path) => ask("GET", path)));
  return pages.flatMap((page) => page.cases).filter((each) => each.is_open);
}

export async function casesPage(kind = "canary", name = "", before = "") {
  const query = new URLSearchParams({ user: name, cursor: before, limit: 50 });
  const { cases, next_cursor: next } = await ask("GET", `/cases/${at(kind)}?${query}`);
  const [, title] = KINDS.find(([word]) => word === kind) ?? [kind, "Cases"];
  return [
    heading(title),
    el("p", {}, KINDS.map(([word, words]) => [link(`/cases/${word}`, words), " "])),
    table(title, cases, caseCells),
    next && el("p", {}, link(`/cases/${at(kind)}/${at(name)}/${at(next)}`, "Older cases")),
  ];
}

// What making a case void does.
function consequence(page) {
  const { amount, currency, kind } = page;
  const moved = amount < 0 ? `${-amount} ${currency} are taken back.` : amount > 0 ? `The user gets up to ${amount} ${currency}.` : "";
  const given = { canary: "The finding bars the device no more.", sample: "The reputation comes back.", reward: "", appeal: "The first decision stays as it is." }[kind];
  return [given, moved].filter(Boolean).join(" ");
}

function decision(page) {
  if (!page.is_open || !may("case.decide")) return null;
  return card(el("h2", {}, "Decision"), form([
    ["decision", "Decision", { options: [["uphold", "Uphold"], ["void", "Make void"]] }],
    ...(page.kind === "appeal" ? [["percent", "Percent of the whole claim that the appellant gets in all",
      { inputmode: "numeric", pattern: "[1-9][0-9]?|100", value: "100" }]] : []),
    ["reason", "Reason, which the user reads", { rows: 2, maxlength: 500 }],
  ], "Decide", async ({ decision: word, reason, percent }) => {
    const body = word === "void" && percent ? { reason, percent: Number(percent) } : { reason };
    const result = await ask("POST", `/cases/${at(page.kind)}/${at(page.id)}/${word}`, body);
    await done(result.state === "waits" ? `waits for a second person: request ${result.id}` : `decided: ${word}`);
  }, (value) => `${value.decision === "void" ? consequence(page) : "Nothing changes."} A decision is final.`));
}

export async function casePage(kind, id) {
  const { case: page, facts, history } = await ask("GET", `/cases/${at(kind)}/${at(id)}`);
  return [
    heading(`Case ${page.summary}`),
    el("p", {}, `${page.kind} · `, moment(page.at), " (UTC) · user ", user(page.user_id), page.device && ` · device ${page.device}`,
      ` · ${caseCells.decision(page)}`),
    page.kind === "reward" && el("p", { class: "hint" }, "The service keeps no photo, and tells users so before they send one. If the evidence leaves a doubt, ask the user for the photo, and compare its SHA-256."),
    table("Evidence", facts, { name: (each) => each.name,
      value: (each) => (each.name === "job" ? link(`/job/${at(each.value)}`, each.value) : each.value) }),
    table("History", history, { "at (UTC)": (each) => moment(each.at), what: (each) => each.what, detail: (each) => each.detail }),
    decision(page),
  ];
}
