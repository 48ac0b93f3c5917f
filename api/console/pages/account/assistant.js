// The assistant: a conversation, photos of good deeds, and the rewards for these.

import { ApiError, events, get, upload } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { badge, card, facts, live, meter, notice, shown, table } from "../../lib/view.js";
import { credits, date, language, t } from "../../lib/words.js";

export const words = "account";
export const title = "account.assistant.title";

const BUILT_IN = "builtin";
const OWN_TYPES = ["none", "unverified"]; // the other categories are the operator's, in their words
const TURNS_MAX = 200; // as many as the server uses

export async function render(main, page) {
  const rewards = el("div");
  const list = () => shown(rewards, () => earned(page.signal));
  main.append(card(t("account.chat"), chat(page.signal)), card(t("account.photo"), photo(page.signal, list)), card(t("account.rewards"), rewards));
  await list();
}

function chat(signal) {
  const history = [];
  const log = live(el("div", { class: "talk", role: "log", tabindex: "0", "aria-label": t("account.chat") }, el("p", { class: "hint" }, t("account.chat.empty"))));
  const node = form({
    fields: [{ name: "message", label: t("account.chat.message"), type: "textarea", rows: 3, required: true, maxlength: 8000 }],
    submit: t("account.chat.send"),
    send: async ({ message }) => {
      const text = el("span");
      const turn = [said("mine", t("account.chat.you"), message), said("theirs", t("account.chat.assistant"), text)];
      if (!history.length) replace(log);
      log.append(...turn);
      try {
        const reply = await streamed(text, { message, history: history.slice(-TURNS_MAX), lang: language(), stream: true }, signal);
        history.push({ role: "user", content: message }, { role: "assistant", content: reply });
        node.reset();
      } catch (error) {
        if (error instanceof ApiError) turn.forEach((each) => each.remove());
        throw error;
      }
    },
  });
  return [log, node, el("p", { class: "hint" }, t("account.chat.leaves"))];
}

const said = (kind, who, text) => el("div", { class: `said ${kind}` }, el("b", { class: "block" }, who), text);

// Writes a reply while it comes; says so when it is cut off, and when no model wrote it.
async function streamed(text, body, signal) {
  let reply = "";
  let done = null;
  try {
    for await (const { event, data } of events("/api/assistant/chat", { body, signal })) {
      if (event === "delta") reply += data.text;
      if (event === "done") ({ reply } = (done = data));
      text.textContent = reply;
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError) throw error;
  }
  if (!done) text.after(notice("warn", t("account.chat.cut")));
  else if (done.model === BUILT_IN) text.after(el("p", { class: "hint" }, t("account.chat.builtin")));
  else text.after(el("p", { class: "hint" }, t("account.chat.model", { model: done.model })));
  return reply;
}

function photo(signal, rewarded) {
  const preview = el("div", { class: "preview" });
  const result = live(el("div"));
  let file = null;
  let address = "";
  function chosen(next) {
    if (!next) return;
    URL.revokeObjectURL(address);
    file = next;
    address = URL.createObjectURL(file);
    replace(preview, el("img", { src: address, alt: t("account.photo.preview", { name: file.name }) }));
    replace(result);
  }
  signal.addEventListener("abort", () => URL.revokeObjectURL(address));
  const node = form({
    fields: [{ name: "description", label: t("account.photo.description"), maxlength: 2000 }],
    submit: t("account.photo.send"),
    send: async ({ description }) => {
      if (!file) return replace(result, notice("warn", t("account.photo.first")));
      const sent = new FormData();
      sent.append("file", file);
      sent.append("mode", "goodness");
      sent.append("lang", language());
      if (description) sent.append("description", description);
      replace(result, verdict(await upload("/api/assistant/analyze-image", sent, { signal })));
      await rewarded();
    },
  });
  return [el("p", null, t("account.photo.text")), chooser(chosen), preview, el("p", { class: "hint" }, t("account.photo.leaves")), node, result];
}

// A photo is dropped, chosen or taken.
function chooser(chosen) {
  const picked = (label, more) => el("label", { class: "chooser" }, label, el("input", { type: "file", accept: "image/jpeg,image/png", on: { change: ({ target }) => chosen(target.files[0]) }, ...more }));
  const zone = el("div", { class: "drop" }, el("p", null, t("account.photo.drop")), picked(t("account.photo.choose"), {}), picked(t("account.photo.take"), { capture: "environment" }));
  zone.addEventListener("dragover", (event) => event.preventDefault());
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    chosen(event.dataTransfer.files[0]);
  });
  return zone;
}

const category = (name) => (OWN_TYPES.includes(name) ? t(`account.category.${name}`) : name);

function verdict(answer) {
  const isSeen = answer.goodness_type !== "unverified";
  return [
    notice(answer.credit_reward ? "good" : "info", answer.message),
    facts([
      [t("account.photo.category"), category(answer.goodness_type)],
      [t("account.photo.real"), isSeen ? t(answer.is_real ? "common.yes" : "common.no") : null],
      [t("account.photo.seen"), answer.description],
      [t("account.photo.reward"), credits(answer.credit_reward)],
      [t("account.photo.judge"), answer.model === BUILT_IN ? badge("warn", t("account.photo.nobody")) : answer.model],
    ]),
  ];
}

async function earned(signal) {
  const { daily, left_today: left, rewards } = await get("/api/assistant/rewards", null, { signal });
  const columns = [
    { key: "when", label: t("account.rewards.when"), cell: (row) => date(row.created_at) },
    { key: "category", label: t("account.photo.category"), cell: (row) => category(row.goodness_type) },
    { key: "reward", label: t("account.photo.reward"), number: true, cell: (row) => credits(row.credit_reward) },
  ];
  return [
    meter(left, daily, t("account.rewards.left", { left: credits(left), daily: credits(daily) })),
    table({ caption: t("account.rewards.caption"), columns, rows: rewards, empty: { text: t("account.rewards.empty") } }),
  ];
}
