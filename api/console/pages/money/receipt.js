// A receipt or an invoice, as it is printed.

import { get } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { name } from "../../lib/site.js";
import { button, card, facts, link, table } from "../../lib/view.js";
import { day, money, percent, t } from "../../lib/words.js";
import { save } from "../../lib/saving.js";
import { linesOf } from "./buyer.js";

export const words = "money";
export const title = "money.receipt";

export async function render(main, page) {
  const { receipt } = await get(`/api/payments/${page.params.id}/receipt`, null, { signal: page.signal });
  const kind = receipt.is_invoice ? "invoice" : "receipt";
  main.append(
    card(
      t(`money.${kind}.number`, { number: String(receipt.number) }),
      el("div", { class: "sums" }, party(t("money.receipt.seller"), receipt.seller.length ? receipt.seller : [name()]), party(t("money.receipt.buyer"), receipt.buyer ? linesOf(receipt.buyer) : [receipt.buyer_name, receipt.buyer_email])),
      facts([
        [t("money.receipt.date"), day(receipt.issued_at)],
        [t("money.payment.id"), receipt.payment_id],
      ]),
      lines(receipt),
    ),
    receipt.credit_notes.length ? card(t("money.notes"), notes(receipt)) : "",
    el("div", { class: "actions" }, button(t("money.receipt.print"), () => window.print(), { kind: "primary" }), button(t("money.receipt.pdf"), () => save(`/api/payments/${receipt.payment_id}/receipt.pdf`, `${kind}-${receipt.number}.pdf`)), link(`/console/wallet/pay/${receipt.payment_id}`, t("money.receipt.payment"))),
  );
}

// The credit notes of the refunds, with the particulars of the receipt.
const notes = ({ payment_id: payment, credit_notes: rows, tax_name: taxName, tax_percent: rate }) =>
  table({
    caption: t("money.notes.caption"),
    columns: [
      { key: "number", label: t("money.notes"), cell: (row) => [t("money.note.number", { number: String(row.number) }), row.is_cancelled ? el("span", { class: "hint block" }, t("money.note.cancelled")) : null] },
      { key: "at", label: t("money.receipt.date"), cell: (row) => day(row.issued_at) },
      taxName ? { key: "net", label: t("money.receipt.net"), number: true, cell: (row) => money(row.net_usd) } : null,
      taxName ? { key: "tax", label: t("money.receipt.tax", { name: taxName, rate: percent(rate / 100) }), number: true, cell: (row) => money(row.tax_usd) } : null,
      { key: "amount", label: t("money.receipt.total"), number: true, cell: (row) => money(row.amount_usd) },
      { key: "pdf", label: t("money.receipt.pdf"), cell: (row) => button(t("money.receipt.pdf"), () => save(`/api/payments/${payment}/credit-notes/${row.number}`, `credit-note-${row.number}.pdf`), { kind: "quiet", "aria-label": `${t("money.note.number", { number: String(row.number) })}: ${t("money.receipt.pdf")}` }) },
    ].filter(Boolean),
    rows,
    keyOf: (row) => row.number,
  });

const party = (label, texts) => el("div", null, el("p", { class: "label" }, label), texts.map((each) => el("p", { class: "address" }, each)));

// The net amount and the tax add up to the total. Without a tax there is the total only.
function lines({ amount_usd: amount, net_usd: net, tax_usd: tax, tax_name: taxName, tax_percent: rate }) {
  const row = (label, value, kind) => el("tr", { class: kind }, el("th", { scope: "row" }, label), el("td", { class: "number" }, money(value)));
  const taxed = taxName ? [row(t("money.receipt.net"), net), row(t("money.receipt.tax", { name: taxName, rate: percent(rate / 100) }), tax)] : null;
  return el("table", { class: "receipt" }, el("caption", null, t("money.receipt.what", { service: name() })), el("tbody", null, taxed, row(t("money.receipt.total"), amount, "total")));
}
