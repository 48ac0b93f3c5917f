// My account: the address, the password, the look of the console, my logins, and the acts of the staff about me.

import { get, post } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { SCHEMES, dressed, scheme } from "../../lib/frame.js";
import { letter, worded } from "../../lib/letter.js";
import { again } from "../../lib/router.js";
import { save } from "../../lib/saving.js";
import { ask, badge, button, card, facts, shown, table, toast } from "../../lib/view.js";
import { LANGUAGES, choose, credits, date, language, money, t } from "../../lib/words.js";
import { acts } from "./acts.js";

export const words = "account";
export const title = "account.title";

export async function render(main, page) {
  const logins = el("div");
  const key = page.me.email_verified ? null : await worded(page.signal);
  const done = acts(page);
  const list = () => shown(logins, () => drawn(page.signal, list));
  main.append(
    card(t("account.profile"), profile(page.me), key ? unconfirmed(page, key) : null),
    card(t("account.password"), el("p", null, t("account.password.text")), password(list)),
    card(t("account.looks"), looks()),
    card(t("account.logins"), el("p", null, t("account.logins.text")), logins),
    card(t("account.acts"), el("p", null, t("account.acts.text")), done.node),
    card(t("account.leave"), el("p", null, t("account.leave.text")), exporting(), closing()),
  );
  await Promise.all([list(), done.load()]);
}

const profile = (me) =>
  facts([
    [t("account.name"), me.username],
    [t("account.address"), me.email_verified ? badge("good", t("account.confirmed")) : badge("warn", t("account.unconfirmed"))],
    [t("account.balance"), [money(me.usd_balance), " · ", credits(me.credit_balance)]],
    [t("account.id"), el("code", null, me.id)],
  ]);

function unconfirmed(page, key) {
  const say = {
    again: () => t(key("account.letter")),
    againIn: (n) => t("account.letter.in", { n }),
    sent: () => t(key("account.letter.sent")),
    loggedOut: () => "",
  };
  return el("div", null, el("p", null, t(key("account.unconfirmed.text"))), letter(page.signal, say));
}

function password(changed) {
  return form({
    fields: [
      { name: "old_password", label: t("account.password.old"), type: "password", required: true, autocomplete: "current-password" },
      { name: "new_password", label: t("account.password.new"), type: "password", required: true, minlength: 8, maxlength: 128, autocomplete: "new-password" },
    ],
    submit: t("account.password.change"),
    send: async (values, node) => {
      await post("/auth/password/change", values);
      node.reset();
      toast("good", t("account.password.changed"));
      await changed();
    },
  });
}

function looks() {
  const languages = Object.entries(LANGUAGES).map(([code, name]) => el("option", { value: code, lang: code }, name));
  const schemes = SCHEMES.map((each) => el("option", { value: each }, t(`frame.scheme.${each}`)));
  return [
    el("label", { class: "chooser" }, t("frame.language"), el("select", { value: language(), on: { change: spoken } }, languages)),
    el("label", { class: "chooser" }, t("frame.colours"), el("select", { value: scheme(), on: { change: coloured } }, schemes)),
  ];
}

async function spoken({ target }) {
  await choose(target.value);
  await again();
}

// The same choice stands at the foot of every page.
function coloured({ target }) {
  dressed(target.value);
  document.getElementById("scheme").value = target.value;
}

function exporting() {
  return form({
    fields: [],
    submit: t("account.export"),
    kind: "quiet",
    send: async () => {
      const { id } = await post("/auth/me/export");
      await save(`/auth/me/export/${id}`, "proxyd-export.zip");
      toast("good", t("account.exported"));
    },
  });
}

function closing() {
  return form({
    fields: [
      { name: "password", label: t("account.close.password"), type: "password", required: true, autocomplete: "current-password" },
      { name: "waive_balance", label: t("account.close.waive"), type: "checkbox" },
    ],
    submit: t("account.close"),
    kind: "danger",
    send: async (values) => {
      const answer = await ask({ title: t("account.close"), text: t("account.close.text"), action: t("account.close.yes") });
      if (!answer) return;
      await post("/auth/me/close", values);
      toast("good", t("account.close.done"));
      await again();
    },
  });
}

async function drawn(signal, list) {
  const { logins } = await get("/auth/logins", null, { signal });
  const others = logins.filter((each) => !each.is_present);
  const node = table({ caption: t("account.logins.caption"), columns: columns(list), rows: logins });
  const all = button(t("account.logins.end_others"), () => endOthers(others.length, list), { kind: "danger" });
  return [node, others.length ? all : el("p", { class: "hint" }, t("account.logins.alone"))];
}

const columns = (list) => [
  { key: "when", label: t("account.logins.when"), cell: (row) => date(row.created_at) },
  { key: "program", label: t("account.logins.program"), cell: (row) => row.user_agent },
  { key: "network", label: t("account.logins.network"), cell: (row) => row.network },
  { key: "until", label: t("account.logins.until"), cell: (row) => date(row.expires_at) },
  { key: "end", label: t("account.logins.state"), cell: (row) => (row.is_present ? badge("good", t("account.logins.present")) : ending(row, list)) },
];

function ending(row, list) {
  const label = t("account.logins.end_of", { time: date(row.created_at) });
  return button(t("account.logins.end"), () => end(row, list), { "aria-label": label });
}

async function end(row, list) {
  await post(`/auth/logins/${row.id}/end`);
  toast("good", t("account.logins.ended"));
  await list();
}

async function endOthers(n, list) {
  const answer = await ask({ title: t("account.logins.end_others"), text: t("account.logins.end_others.text", { n }), action: t("account.logins.end_others.yes") });
  if (!answer) return;
  await post("/auth/logins/end-others");
  toast("good", t("account.logins.ended"));
  await list();
}
