// The button for another letter that confirms an address, the state of the mail server, and the time until it may be
// pressed again.

import { ApiError, get, post } from "./api.js";
import { el, replace } from "./dom.js";
import { refusal } from "./forms.js";
import { live } from "./view.js";

const PAUSE_SECONDS = 60; // between letters
const TICK_MS = 1000;

// Whether the service sends e-mails; without a mail server it writes the links into its log.
export const mails = async (signal) => (await get("/auth/terms", null, { signal })).has_mail;

// The text that is true of it: that of `key`, or its other form.
export async function worded(signal) {
  const hasMail = await mails(signal);
  return (key) => (hasMail ? key : `${key}.no_mail`);
}

// `say` has the texts, as functions: again(), againIn(n), sent(), and loggedOut() for nodes instead of a refusal.
export function letter(signal, say) {
  const said = live(el("p", { class: "hint" }));
  const send = el("button", { type: "button", class: "button" }, say.again());
  send.addEventListener("click", async () => {
    send.disabled = true;
    let pause = PAUSE_SECONDS;
    try {
      await post("/auth/verify/resend");
      replace(said, say.sent());
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) return replace(said, say.loggedOut());
      replace(said, refusal(error));
      pause = error.retryAfter ?? 1;
    }
    count(send, pause, signal, say);
  });
  return el("div", null, send, said);
}

function count(send, pause, signal, say) {
  const end = Date.now() + pause * 1000;
  const ticking = setInterval(tick, TICK_MS);
  signal.addEventListener("abort", () => clearInterval(ticking));
  tick();
  function tick() {
    const left = Math.ceil((end - Date.now()) / 1000);
    if (left > 0) return replace(send, say.againIn(left));
    clearInterval(ticking);
    send.disabled = false;
    replace(send, say.again());
  }
}
