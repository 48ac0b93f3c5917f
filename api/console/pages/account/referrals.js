// The link for friends: the rewards of both, the people who came by it, and the code that brought me.

import { get, post } from "../../lib/api.js";
import { el, replace, update } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { name } from "../../lib/site.js";
import { follow } from "../../lib/stream.js";
import { badge, button, card, copyable, facts, notice, table } from "../../lib/view.js";
import { count, credits, date, t } from "../../lib/words.js";

export const words = "account";
export const title = "account.referrals.title";

const KINDS = { paid: "good", pending: "info", lapsed: "warn" };

export async function render(main, page) {
  const sums = el("div");
  const came = el("div");
  async function refresh() {
    const asked = { signal: page.signal };
    const [info, { referrals }] = await Promise.all([get("/api/referral/info", null, asked), get("/api/referral/list", null, asked)]);
    update(sums, facts([[t("account.referrals.total"), count(info.total_referrals)], [t("account.referrals.earned"), credits(info.total_bonus)]]));
    update(came, friends(referrals));
    return info;
  }
  follow({ types: ["referral.earned"], onEvent: () => refresh().catch(unlessRefused), refresh, signal: page.signal });
  const info = await refresh();
  main.append(card(t("account.referrals.link"), offer(info), sums), card(t("account.referrals.came"), came), card(t("account.referrals.apply"), applying(info)));
}

// A refusal, or leaving the page: the shown parts stay until the next event.
function unlessRefused(error) {
  if (error.name !== "ApiError" && error.name !== "AbortError") throw error;
}

function offer({ referral_link: url, referral_code: code, reward_per_referral: mine, referred_reward: theirs }) {
  const share = button(t("account.referrals.share"), () => shared(url), { kind: "primary" });
  return [
    el("p", null, t("account.referrals.offer", { mine: credits(mine), theirs: credits(theirs) })),
    copyable(url, t("account.referrals.link")),
    el("p", { class: "label" }, t("account.referrals.code")),
    copyable(code, t("account.referrals.code")),
    navigator.share ? share : null,
  ];
}

// A reader that closes the system's dialog has shared nothing, which is no fault.
async function shared(url) {
  try {
    await navigator.share({ title: name(), text: t("account.referrals.invitation"), url });
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

const friends = (rows) =>
  table({
    caption: t("account.referrals.caption"),
    columns: [
      { key: "when", label: t("account.referrals.when"), cell: (row) => date(row.created_at) },
      { key: "state", label: t("account.referrals.state"), cell: (row) => [badge(KINDS[row.state], t(`account.referrals.state.${row.state}`)), el("span", { class: "hint block" }, t(`account.referrals.why.${row.state}`))] },
      { key: "bonus", label: t("account.referrals.bonus"), number: true, cell: (row) => credits(row.bonus) },
    ],
    rows,
    empty: { text: t("account.referrals.empty") },
  });

function applying(info) {
  const said = el("div");
  const field = { name: "referral_code", label: t("account.referrals.their_code"), hint: t("account.referrals.their_code.hint"), required: true, minlength: 8, maxlength: 8, autocomplete: "off" };
  const node = form({
    fields: [field],
    submit: t("account.referrals.apply"),
    send: async (values) => {
      const { bonus } = await post("/api/referral/apply", values, { once: true });
      replace(said, notice("good", t("account.referrals.applied", { credits: credits(bonus) })));
      node.hidden = true;
    },
  });
  return [el("p", null, t("account.referrals.apply.text", { theirs: credits(info.referred_reward) })), node, said];
}
