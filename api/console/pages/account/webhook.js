// One webhook: the deliveries of its events, and buttons that send them again.

import { del, get, patch, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { follow } from "../../lib/stream.js";
import { ask, badge, button, card, facts, more, table, toast } from "../../lib/view.js";
import { ago, count, date, t } from "../../lib/words.js";
import { paced } from "../traffic/shared.js";
import { list, place } from "../work/shared.js";
import { again, typed, unfold } from "./access.js";
import { hookForm, signing, state, told } from "./webhooks.js";

export const words = "access";
export const title = "access.hook.title";

const LIMIT = 25;
const MOST = 500; // rows that are requested again while one waits
const PACE_MS = 1_000; // however many events come
const EVERY_MS = 3_000; // a delivery has no event of its own: while one waits, the page polls
const STATUSES = ["pending", "delivered", "failed"];
const KIND_OF_STATUS = { pending: "info", delivered: "good", failed: "bad" };

export async function render(main, page) {
  const hook = new Hook(page);
  const refresh = () => hook.refresh();
  follow({ onEvent: paced(refresh, PACE_MS, page.signal), refresh, signal: page.signal });
  await hook.load();
  main.querySelector("h1").after(el("p", { class: "address" }, hook.row.url));
  main.append(hook.node);
  const timer = setInterval(() => document.hidden || !hook.isWaiting || refresh(), EVERY_MS);
  page.signal.addEventListener("abort", () => clearInterval(timer));
}

class Hook {
  constructor({ params, signal }) {
    Object.assign(this, { id: params.id, path: `/api/webhooks/${encodeURIComponent(params.id)}`, signal, status: "", length: LIMIT, shown: null });
    this.problem = el("div");
    this.head = place();
    this.editing = place();
    this.detail = el("div");
    this.next = more(() => this.longer());
    this.most = el("p", { class: "hint" }, t("access.hook.most", { n: MOST }));
    this.deliveries = list({ caption: t("access.hook.caption"), columns: this.columns(), empty: { text: t("access.hook.empty") } });
    this.node = el(
      "div",
      null,
      this.problem,
      card(t("access.hook.now"), this.head.node),
      card(t("access.hook.deliveries"), el("div", { class: "filters" }, this.filter()), this.deliveries.node, this.next, this.most),
      this.detail,
      card(t("access.hook.recover"), el("p", null, t("access.hook.recover.text")), this.recovering()),
      card(t("access.hook.change"), this.editing.node),
    );
  }

  async load() {
    const asked = { signal: this.signal };
    const wanted = { status: this.status, limit: this.length };
    const [{ webhooks }, { deliveries, next }] = await Promise.all([get("/api/webhooks", null, asked), get(`${this.path}/deliveries`, wanted, asked)]);
    this.row = webhooks.find((each) => each.id === this.id) ?? this.row;
    this.head.showOf(this.row, () => this.heading());
    const { url, types, description } = this.row;
    this.editing.showOf({ url, types, description }, () => this.changing());
    this.isWaiting = deliveries.some((each) => each.status === "pending");
    this.deliveries.show(deliveries);
    if (this.shown) await this.details(this.shown);
    this.most.hidden = !next || deliveries.length < MOST;
    this.next.hidden = !next || deliveries.length >= MOST;
  }

  refresh() {
    return again(this.problem, () => this.load());
  }

  async longer() {
    this.length += LIMIT;
    await this.load();
    return true; // the button is hidden where there is no more
  }

  heading() {
    const { status, disabled_reason: reason, created_at: created } = this.row;
    const isOn = status === "enabled";
    const switched = isOn ? "disabled" : "enabled";
    return [
      facts([
        [t("access.status"), state(this.row)],
        [t("access.hooks.types"), told(this.row)],
        [t("access.created"), date(created)],
      ]),
      isOn ? null : el("p", null, t(`access.hook.first.${reason}`)),
      el(
        "div",
        { class: "actions" },
        isOn ? button(t("access.hook.test"), () => this.test(), { kind: "primary" }) : null,
        button(t(`access.hook.to.${switched}`), () => this.turn(switched), { kind: isOn ? "" : "primary" }),
        button(t("access.hook.roll"), () => this.roll()),
        button(t("access.hook.delete"), () => this.remove(), { kind: "danger" }),
      ),
    ];
  }

  async test() {
    await post(`${this.path}/test`);
    await this.refresh();
    toast("good", t("access.hook.tested"));
  }

  async turn(status) {
    await patch(this.path, { status });
    await this.refresh();
  }

  async roll() {
    if (!(await ask({ title: t("access.hook.roll"), text: t("access.hook.roll.text"), action: t("access.hook.roll"), kind: "primary" }))) return;
    await signing((await post(`${this.path}/roll`)).secret);
  }

  async remove() {
    if (!(await ask({ title: t("access.hook.delete"), text: t("access.hook.delete.text"), action: t("access.hook.delete") }))) return;
    await del(this.path);
    await go("/console/webhooks", { replace: true });
  }

  changing() {
    return hookForm({
      hook: this.row,
      submit: t("common.save"),
      send: async (body) => {
        await patch(this.path, body);
        await this.refresh();
        toast("good", t("access.hook.changed"));
      },
    });
  }

  recovering() {
    return form({
      fields: [{ name: "since", label: t("access.hook.since"), type: "datetime-local", required: true, hint: t("access.hook.since.hint") }],
      submit: t("access.hook.recover"),
      send: async ({ since }) => {
        const { deliveries } = await post(`${this.path}/recover`, { since: new Date(since).toISOString() });
        toast(deliveries ? "good" : "info", t("access.hook.recovered", { n: deliveries }));
        await this.refresh();
      },
    });
  }

  filter() {
    const all = [["", t("access.hook.all")], ...STATUSES.map((each) => [each, t(`access.delivery.${each}`)])];
    const chosen = async (event) => {
      Object.assign(this, { status: event.target.value, length: LIMIT });
      await this.refresh();
    };
    const choice = el("select", { on: { change: chosen } }, all.map(([value, text]) => el("option", { value }, text)));
    return el("label", { class: "chooser" }, t("access.hook.filter"), choice);
  }

  columns() {
    return [
      { key: "at", label: t("access.at"), cell: (row) => date(row.created_at) },
      { key: "type", label: t("access.type"), cell: (row) => typed(row.type) },
      { key: "status", label: t("access.status"), cell: reached },
      { key: "attempts", label: t("access.hook.attempts"), number: true, cell: (row) => count(row.attempts) },
      { key: "last", label: t("access.hook.last"), cell: (row) => outcome(row.last_status, row.last_error) },
      { key: "acts", label: t("access.acts"), cell: (row) => this.acts(row) },
    ];
  }

  acts({ id, type }) {
    const what = typed(type);
    return el(
      "span",
      { class: "acts" },
      button(t("access.hook.look"), () => this.look(id), { kind: "quiet", "aria-label": t("access.hook.look_at", { what }) }),
      button(t("access.hook.again"), () => this.retry(id), { "aria-label": t("access.hook.send_again", { what }) }),
    );
  }

  async retry(id) {
    await post(`/api/webhooks/deliveries/${id}/retry`);
    await this.refresh();
  }

  async look(id) {
    const content = place();
    const { type, created_at: at } = await this.details({ id, content });
    this.shown = { id, content };
    const heading = t("access.hook.delivery", { what: typed(type), when: date(at) });
    unfold(this.detail, heading, content.node, { label: t("common.close"), onClose: () => (this.shown = null) });
  }

  async details({ id, content }) {
    const { delivery } = await get(`/api/webhooks/deliveries/${id}`, null, { signal: this.signal });
    content.showOf(delivery, () => [attempts(delivery), body(delivery)]);
    return delivery;
  }
}

const reached = ({ status, next_at: next }) => [badge(KIND_OF_STATUS[status], t(`access.delivery.${status}`)), next ? el("span", { class: "hint block" }, upcoming(next)) : null];

// A due delivery is not yet done: its time is never shown as past.
const upcoming = (next) => (Date.parse(next) <= Date.now() ? t("access.hook.next_now") : t("access.hook.next", { when: ago(next) }));

const attempts = ({ tries }) =>
  table({
    caption: t("access.hook.attempts"),
    columns: [
      { key: "number", label: t("access.hook.number"), number: true, cell: (row) => count(row.number) },
      { key: "at", label: t("access.at"), cell: (row) => date(row.started_at) },
      { key: "outcome", label: t("access.hook.outcome"), cell: (row) => outcome(row.status, row.error) },
      { key: "ms", label: t("access.hook.took"), number: true, cell: (row) => t("access.ms", { n: row.ms }) },
      { key: "answer", label: t("access.hook.answer"), cell: (row) => (row.answer ? el("code", null, row.answer) : null) },
    ],
    rows: tries,
    empty: { text: t("access.hook.no_attempt") },
  });

function body({ body: text, event_id: event }) {
  const sent = text === null ? el("p", null, t("access.hook.not_kept")) : el("pre", { tabindex: "0", "aria-label": t("access.hook.body") }, text);
  return [el("p", { class: "label" }, t("access.hook.body")), sent, el("p", { class: "hint" }, t("access.hook.event_id", { id: event }))];
}

// The result of an attempt, with a hint for a failed one.
function outcome(status, error) {
  if (!error) return status ? t("access.hook.answered", { status: String(status) }) : null;
  if (status) return [el("strong", null, t("access.hook.answered", { status: String(status) })), el("span", { class: "hint block" }, t("access.why.status"))];
  const key = `access.why.${error.replaceAll(" ", "_").toLowerCase()}`;
  const why = t(key);
  return why === key ? error : [el("strong", null, error), el("span", { class: "hint block" }, why)];
}
