// The particulars of the buyer: the documents of the next payments are invoices with them, and receipts without.

import { del, put } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { button, card, facts, toast } from "../../lib/view.js";
import { country, language, t } from "../../lib/words.js";
import { Part } from "./shared.js";

const PATH = "/api/payments/particulars";

// The lines about a buyer, as an invoice has them.
export const linesOf = ({ name, address, country: code, tax_number: number }) => [name, ...address, country(code), number ? t("money.buyer.tax_number_is", { number }) : null].filter(Boolean);

// The part of the wallet about the particulars; `refresh()` shows it anew. It has the form once it is asked for.
export class Buyer extends Part {
  constructor(page) {
    super(page, PATH);
    this.isOpen = false;
    this.node = card(t("money.buyer"), el("p", null, t("money.buyer.text")), this.state, this.form.node, this.acts);
  }

  show(found) {
    const { particulars } = found;
    update(this.state, particulars ? facts([[t("money.buyer.next"), linesOf(particulars).map((each) => el("p", { class: "address" }, each))]]) : el("p", null, t("money.buyer.none")));
    this.form.showOf({ ...found, isOpen: this.isOpen }, () => (this.isOpen ? this.filling(found) : ""));
    update(
      this.acts,
      this.isOpen ? null : button(t(particulars ? "money.buyer.change" : "money.buyer.set"), () => this.turned(found, true), { kind: "quiet" }),
      this.isOpen ? button(t("common.cancel"), () => this.turned(found, false), { kind: "quiet" }) : null,
      particulars ? button(t("money.buyer.remove"), () => this.done(del(PATH), "money.buyer.removed"), { kind: "quiet" }) : null,
    );
  }

  turned(found, isOpen) {
    this.isOpen = isOpen;
    this.show(found);
    if (isOpen) this.form.node.querySelector("input")?.focus();
  }

  filling({ particulars, countries }) {
    const { name = "", address = [], country: code = "", tax_number: number = "" } = particulars ?? {};
    const named = countries.map((each) => [each, country(each)]).toSorted((one, other) => one[1].localeCompare(other[1], language()));
    const fields = [
      { name: "name", label: t("money.buyer.name"), value: name, required: true, maxlength: 100, autocomplete: "organization" },
      { name: "address", label: t("money.buyer.address"), type: "textarea", value: address.join("\n"), rows: 4, required: true, autocomplete: "street-address", hint: t("money.buyer.address_hint") },
      { name: "country", label: t("money.buyer.country"), type: "select", value: code, options: [["", ""], ...named], required: true, autocomplete: "country" },
      { name: "tax_number", label: t("money.buyer.tax_number"), value: number, maxlength: 30 },
    ];
    const send = (values) => this.done(put(PATH, { ...values, address: values.address.split("\n") }), "money.buyer.is_set");
    return form({ fields, submit: t("money.buyer.save"), note: t("money.buyer.note"), send });
  }

  async done(request, text) {
    const found = await request;
    this.turn += 1; // an answer that is on its way is older
    this.isOpen = false;
    toast("good", t(text));
    this.show(found);
  }
}
