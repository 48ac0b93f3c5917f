// The automatic top-up: a card is saved on the page of the provider, and pays below a threshold. It is off until its user
// switches it on, and shows what it has paid in this month.

import { del, post, put } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { ask, badge, button, facts, notice, toast } from "../../lib/view.js";
import { money, t } from "../../lib/words.js";
import { worded } from "../traffic/shared.js";
import { Part, hosted } from "./shared.js";

const PATH = "/api/top-up";
const KINDS = { on: "good", off: "info", paused: "warn", disabled: "bad" };

// The part of the wallet about the top-up; `refresh()` shows it anew. Nothing is shown where it is not offered.
export class Topping extends Part {
  constructor(page) {
    super(page, PATH);
    this.card = null;
    this.node = el("section", { class: "card", hidden: true, "aria-label": t("money.top_up") }, el("h2", null, t("money.top_up")), el("p", null, t("money.top_up.text")), this.state, this.form.node, this.acts);
  }

  show(found) {
    this.node.hidden = !found.is_offered;
    if (!found.is_offered) return;
    const { card = null, state } = found;
    this.card = card;
    update(this.state, said(found));
    this.form.showOf({ ...found, month_spent_usd: null, next_at: null, refusals: null }, () => (card ? this.planning(found) : null));
    update(
      this.acts,
      button(t(card ? "money.top_up.other_card" : "money.top_up.save_card"), () => saving(), { kind: card ? "quiet" : "primary" }),
      state === "off" ? null : button(t("money.top_up.end"), () => this.done(del(PATH), "money.top_up.ended"), { kind: "quiet" }),
      card ? button(t("money.top_up.remove"), () => this.removing(), { kind: "quiet" }) : null,
    );
  }

  planning({ threshold_usd: threshold, amount_usd: amount, month_usd: month, month_max_usd: most, state }) {
    const usd = { type: "number", step: 0.01, inputmode: "decimal", required: true };
    const fields = [
      { ...usd, name: "threshold_usd", label: t("money.top_up.threshold"), value: threshold ?? 5, min: 0.01 },
      { ...usd, name: "amount_usd", label: t("money.top_up.amount"), value: amount ?? 20, min: 0.01 },
      { ...usd, name: "month_usd", label: t("money.top_up.month"), value: month ?? most, min: 0.01, max: most, hint: t("money.top_up.month_hint", { max: money(most) }) },
    ];
    const submit = t(state === "on" ? "money.top_up.change" : "money.top_up.begin");
    return form({ fields, submit, note: t("money.top_up.note"), send: (values) => this.done(put(PATH, values), "money.top_up.is_on") });
  }

  async removing() {
    const { card } = this;
    if (!(await ask({ title: t("money.top_up.remove_of", { card }), text: t("money.top_up.remove.text"), action: t("money.top_up.remove") }))) return;
    await this.done(del(`${PATH}/card`), "money.top_up.removed");
  }

  async done(request, text) {
    await request;
    toast("good", t(text));
    await this.refresh();
  }
}

async function saving() {
  const { url } = await post(`${PATH}/card`, {});
  const address = hosted(url);
  if (address) location.assign(address);
}

const said = ({ state, card = null, month_spent_usd: spent, month_usd: month }) => [
  state === "paused" || state === "disabled" ? notice(KINDS[state], worded("money.top_up.says", state)) : null,
  facts([
    [t("money.state"), badge(KINDS[state] ?? "info", worded("money.top_up.state", state))],
    [t("money.top_up.card"), card ?? t("money.top_up.no_card")],
    month ? [t("money.top_up.spent"), t("money.top_up.spent_of", { spent: money(spent), month: money(month) })] : null,
  ]),
];
