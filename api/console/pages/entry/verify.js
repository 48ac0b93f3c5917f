// Confirm an address by the secret of a letter, or ask for another letter.

import { ApiError, post } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { refusal } from "../../lib/forms.js";
import { button, link, live, notice } from "../../lib/view.js";
import { t } from "../../lib/words.js";
import { taken } from "./secret.js";

const PAUSE_SECONDS = 60; // between letters
const TICK_MS = 1000;

export const words = "entry";
export const title = "entry.verify.title";

export function render(main, page) {
  const token = taken(page);
  const place = el("div");
  main.append(place);
  // A look at the address confirms nothing: scanners of mail look, too. The button does.
  if (token) replace(place, el("p", null, t("entry.verify.ready")), button(t("entry.verify.submit"), () => confirmed(place, token, page), { kind: "primary" }));
  else replace(place, el("p", null, t("entry.verify.sent")), again(page), onward());
}

async function confirmed(place, token, page) {
  try {
    await post("/auth/verify", { token });
    replace(place, notice("good", t("entry.verify.done")), onward());
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    replace(place, notice("bad", refusal(error)), el("p", null, t("entry.verify.other")), again(page), onward());
  }
}

const onward = () => el("p", { class: "links" }, link("/console", t("entry.onward"), { kind: "primary" }));

// The button for another letter, and how long until it may be pressed again.
function again(page) {
  const said = live(el("p", { class: "hint" }));
  const send = el("button", { type: "button", class: "button" }, t("entry.verify.again"));
  send.addEventListener("click", async () => {
    send.disabled = true;
    let pause = PAUSE_SECONDS;
    try {
      await post("/auth/verify/resend");
      replace(said, t("entry.verify.sent_again"));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) return replace(said, t("entry.verify.log_in"), " ", link("/login?next=/verify", t("entry.login.submit")));
      replace(said, refusal(error));
      pause = error.retryAfter ?? 1;
    }
    count(send, pause, page.signal);
  });
  return el("div", null, send, said);
}

function count(send, pause, signal) {
  const end = Date.now() + pause * 1000;
  const ticking = setInterval(tick, TICK_MS);
  signal.addEventListener("abort", () => clearInterval(ticking));
  tick();
  function tick() {
    const left = Math.ceil((end - Date.now()) / 1000);
    if (left > 0) return replace(send, t("entry.verify.again_in", { n: left }));
    clearInterval(ticking);
    send.disabled = false;
    replace(send, t("entry.verify.again"));
  }
}
