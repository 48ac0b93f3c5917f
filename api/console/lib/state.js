// Whether the server is there: a line above every page while it is not, and on with the page after it.

import { whenAway } from "./api.js";
import { el, replace } from "./dom.js";
import { again } from "./router.js";
import { t } from "./words.js";

const FIRST_MS = 2000;
const LONGEST_MS = 15_000;
const KINDS = { draining: "state.draining", store_unavailable: "state.store", not_ready: "state.store", unreachable: "state.unreachable" };

let isWatching = false;

whenAway((code) => {
  if (!(code in KINDS)) return;
  say(KINDS[code]);
  if (!isWatching) watch(FIRST_MS);
});

// Asks again, less often each time, until the server says that everything works.
function watch(pause) {
  isWatching = true;
  setTimeout(async () => {
    const answer = await fetch("/readyz", { cache: "no-store" }).catch(() => null);
    if (!answer?.ok) return watch(Math.min(LONGEST_MS, pause * 1.5));
    isWatching = false;
    say(null);
    // A page that could not be shown is shown now; a page with a form in use is left as it is.
    if (document.querySelector("main > .failed")) again();
  }, pause);
}

function say(key) {
  const place = document.getElementById("state");
  replace(place, key ? el("p", { class: "state" }, t(key)) : null);
}
