// The places for payouts: they are masked, and a new one waits.

import { del, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { ask, badge, button, link, table, tabs, toast } from "../../lib/view.js";
import { date, t } from "../../lib/words.js";
import { worded } from "../traffic/shared.js";
import { duration, hosted } from "./shared.js";

const STRIPE = "stripe";
const plain = { autocomplete: "off", spellcheck: "false" };
// The fields of each kind, as the API takes them; the server checks an IBAN by its check digits.
const FIELDS = {
  bank: () => [
    { name: "holder", label: t("money.method.holder"), required: true, maxlength: 100, autocomplete: "name" },
    { name: "iban", label: "IBAN", required: true, maxlength: 42, ...plain },
    { name: "bic", label: "BIC", maxlength: 11, ...plain },
  ],
  paypal: () => [{ name: "email", type: "email", label: t("money.method.email"), required: true, maxlength: 254, autocomplete: "email" }],
  manual: () => [{ name: "text", type: "textarea", label: t("money.method.text"), required: true, maxlength: 500, hint: t("money.method.text_hint") }],
};

// The methods of a user, and the forms of the ways that are offered; `again()` shows the page anew.
export function methodsOf(terms, methods, again) {
  const kinds = terms.methods.filter((each) => each in FIELDS || each === STRIPE);
  const columns = [
    { key: "shown", label: t("money.method"), cell: (row) => row.shown },
    { key: "kind", label: t("money.wallet.kind"), cell: (row) => worded("money.method", row.kind) },
    { key: "usable", label: t("money.state"), cell: usable },
    { key: "acts", label: t("money.payout.acts"), cell: (row) => [row.kind === STRIPE && kinds.includes(STRIPE) ? connecting(t("money.method.continue")) : null, removing(row, again)] },
  ];
  return [
    table({ caption: t("money.methods.caption"), columns, rows: methods, empty: { text: t("money.methods.empty") } }),
    kinds.length ? adding(kinds, terms, again) : null,
  ];
}

const usable = ({ usable_at: at }) => (new Date(at) <= new Date() ? badge("good", t("money.method.ready")) : [badge("info", t("money.method.waits")), el("span", { class: "hint block" }, t("money.rule.met_at", { date: date(at) }))]);

function removing(row, again) {
  return button(
    t("money.method.remove"),
    async () => {
      if (!(await ask({ title: t("money.method.remove_of", { shown: row.shown }), text: t("money.method.remove.text"), action: t("money.method.remove") }))) return;
      await del(`/api/payouts/methods/${row.id}`);
      await again();
    },
    { kind: "quiet", "aria-label": t("money.method.remove_of", { shown: row.shown }) },
  );
}

// A button to the page of Stripe, where the user fills the account in.
function connecting(words) {
  return button(
    words,
    async () => {
      const address = hosted((await post("/api/payouts/connect", {})).url);
      if (address) location.assign(address);
    },
    { kind: "quiet" },
  );
}

function adding(kinds, terms, again) {
  const made = (kind) =>
    form({
      fields: FIELDS[kind](),
      submit: t("money.method.add"),
      send: async (values) => {
        const { method } = await post("/api/payouts/methods", { kind, ...values });
        toast("good", t("money.method.added", { shown: method.shown }));
        await again();
      },
    });
  const connect = () => el("div", null, el("p", null, t("money.method.connect.text")), connecting(t("money.method.connect")));
  const forms = kinds.map((kind) => [worded("money.method", kind), kind === STRIPE ? connect() : made(kind)]);
  return el(
    "details",
    null,
    el("summary", null, t("money.method.new")),
    el("p", null, t("money.method.new.text", { wait: duration(terms.method_wait_s) })),
    el("p", null, t("money.method.login"), " ", link("/login?next=/console/earnings", t("money.method.login.action"))),
    tabs(forms, t("money.payout.ways")),
  );
}
