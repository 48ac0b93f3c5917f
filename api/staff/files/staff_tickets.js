// Complaints: tickets, and the customer who used an exit at a time.

import { ask, at, card, count, done, folded, form, heading, link, logTable, may, moment, ofUser, table } from "./staff_parts.js";
import { el, replace } from "./dom.js";

const options = (text) => ({ options: text.split(" ").map((each) => [each, each.replaceAll("_", " ")]) });
const CATEGORIES = options("abuse scan spam break_in phishing child_abuse");
const STATES = options("contacted suspended legal");
const OUTCOMES = options("no_match not_ours unfounded customer_warned customer_closed");

export const ticketCells = {
  ticket: (each) => link(`/ticket/${each.number}`, `A-${each.number}`),
  category: (each) => each.category,
  state: (each) => each.state,
  "due (UTC)": (each) => [moment(each.due_at), each.is_overdue ? " overdue" : null],
  user: (each) => each.user_id && link(ofUser(each.user_id), each.user_id),
};

const given = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "")
  .map(([name, value]) => [name, name === "source_port" || name === "within" ? Number(value) : value]));

function figures(facts) {
  const to = facts.host ? (facts.port ? `${facts.host.includes(":") ? `[${facts.host}]` : facts.host}:${facts.port}` : facts.host) : "";
  return [
    ["exit_address", "Exit address", { maxlength: 64, value: facts.exit_address ?? "" }],
    ["at", "Time with its zone, as 2026-11-23T14:03:22Z", { maxlength: 40, value: facts.at ?? "" }],
    ["to", "Destination, as 198.51.100.7:22", { maxlength: 320, required: false, value: to }],
    ["source_port", "Source port", { inputmode: "numeric", pattern: "[0-9]{0,5}", required: false, value: facts.source_port ? String(facts.source_port) : "" }],
  ];
}

function answerOf(found) {
  const { customer } = found;
  return [
    customer ? el("p", {}, "One customer: ", link(ofUser(customer.id), customer.username), ` ${customer.email}`)
      : el("p", {}, `No single customer: the possible connections have ${found.users} users.`),
    found.ask && el("p", {}, `Ask the complainant: ${found.ask}`),
    found.gaps.map((each) => el("p", { class: "hint" }, each)),
    el("p", {}, `Devices seen at this address: ${found.devices.join(", ") || "none"}`),
    table(found.has_more ? "Connections (and more)" : "Connections", found.connections, { match: (each) => each.match,
      "began (UTC)": (each) => moment(each.started_at), "ended (UTC)": (each) => moment(each.ended_at), session: (each) => each.session,
      device: (each) => each.device, port: (each) => each.port, "source port": (each) => each.source_port,
      bytes: (each) => `${count(each.bytes_up)} up, ${count(each.bytes_down)} down` }),
    el("p", { class: "hint" }, `${found.others} other connections at that time`),
  ];
}

function lookUp(facts, ticket) {
  if (!may("search.exit")) return null;
  const place = el("div", { role: "status" });
  return card(el("h2", {}, "Look up the exit"), form([...figures(facts),
    ["within", "Error of the time, in seconds", { inputmode: "numeric", pattern: "[0-9]{1,4}", value: "60" }]], "Look up", async (values) => {
    replace(place, answerOf(await ask("POST", "/exit-use", { ...given(values), ...(ticket ? { ticket } : {}) })));
  }), place);
}

export async function ticketsPage(wanted) {
  const [{ tickets }, rules] = await Promise.all([ask("GET", `/tickets${wanted ? `?state=${at(wanted)}` : ""}`),
    may("rule.read") ? ask("GET", "/rules") : { rules: [] }]);
  return [
    heading("Complaints"),
    el("p", {}, link("/tickets", "open"), " · ", link("/tickets/closed", "closed")),
    table("Tickets", tickets, { ...ticketCells, outcome: (each) => each.outcome }),
    may("ticket.open") && folded("Open a ticket", form([["text", "The complaint, and its reporter", { rows: 3, maxlength: 4000 }],
      ["category", "Category", CATEGORIES], ...figures({}).map(([name, label, props]) => [name, label, { ...props, required: false }])], "Open", async (values) => {
      const { ticket } = await ask("POST", "/tickets", given(values));
      location.hash = `#/ticket/${ticket.number}`;
    })),
    lookUp({}),
    may("rule.read") && table("Rules", rules.rules, { rule: (each) => each.rule, mode: (each) => each.mode,
      above: (each) => `${each.more_than} ${each.of}`, "tickets in 30 days": (each) => each.tickets_30_days }),
  ];
}

export async function ticketPage(number) {
  const { ticket, facts, history } = await ask("GET", `/tickets/${at(number)}`);
  const send = (word, fields, button) => form(fields, button, async (body) => {
    const changed = (await ask("POST", `/tickets/${ticket.number}/${word}`, body)).ticket;
    await done(`the ticket is ${changed.state.replaceAll("_", " ")}`);
  });
  const isOpen = ticket.closed_at === null;
  return [
    heading(`Ticket A-${ticket.number}`),
    el("p", {}, `${ticket.category} · ${ticket.state} · due `, moment(ticket.due_at), ticket.outcome ? ` · ${ticket.outcome}` : "",
      ticket.user_id ? [" · ", link(ofUser(ticket.user_id), ticket.user_id)] : null),
    table("Figures", Object.entries(facts), { figure: ([name]) => name, value: ([, value]) => String(value) }),
    isOpen ? lookUp(facts, ticket.number) : null,
    isOpen && may("ticket.move") ? folded("Move", send("move", [["state", "State", STATES], ["reason", "Note for the staff", { rows: 2, maxlength: 4000 }]], "Move")) : null,
    isOpen && may("ticket.answer") ? folded("Answer", el("p", { class: "hint" }, "This records the answer and sends nothing. It never names the customer."),
      send("answer", [["text", "The answer that was sent", { rows: 3, maxlength: 4000 }]], "Record answer")) : null,
    isOpen && may("ticket.close") ? folded("Close", send("close", [["outcome", "Outcome", OUTCOMES], ["reason", "Note for the staff", { rows: 2, maxlength: 4000 }]], "Close")) : null,
    logTable(history),
  ];
}
