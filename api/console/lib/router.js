// Addresses without reloading: links of the console are followed here.

let show = () => {};
let place = ""; // the shown page, without the part of it that an address may name
let entry = ""; // of the history, that is shown
let count = 0;
const ENTRIES_MAX = 100; // more than browsers remember
const entries = new Map(); // of each: its scroll position, and the state that the page keeps there itself
const OURS = /^\/(console(\/|$)|(login|register|verify|forgot|reset|device)\/?$)/;

// Shows the page of the present address, and of each one after it; `render(url, kept)` does. `kept` is an object that
// is the same when the reader comes back to that page.
export function start(render) {
  history.scrollRestoration = "manual"; // a page has to be filled first
  entry = history.state?.entry ?? "";
  show = (url) => {
    place = url.pathname + url.search;
    return render(url, here().kept);
  };
  document.addEventListener("click", followed);
  addEventListener("popstate", returned);
  return again();
}

function here() {
  if (!entries.has(entry)) entries.set(entry, { top: 0, kept: {} });
  if (entries.size > ENTRIES_MAX) entries.delete(entries.keys().next().value);
  return entries.get(entry);
}

async function returned() {
  if (location.pathname + location.search === place) return;
  here().top = scrollY;
  entry = history.state?.entry ?? "";
  const to = entry;
  await again();
  if (entry === to) scrollTo(0, here().top);
}

// Shows the page at a path of the console; with `replace`, "back" does not lead here.
export function go(path, { replace = false } = {}) {
  const url = new URL(path, location.href);
  here().top = scrollY;
  count += 1;
  if (!replace) entry = `${performance.timeOrigin}-${count}`;
  history[replace ? "replaceState" : "pushState"]({ entry }, "", url);
  if (replace) entries.delete(entry);
  return show(url);
}

// Shows the present page again.
export const again = () => show(new URL(location.href));

// A path of this console that may be gone to after logging in; anything else is the overview. The address decides where
// a person goes, so it must not lead to another site.
export function local(path) {
  try {
    const url = new URL(path ?? "", location.origin);
    const isLocal = path.startsWith("/") && url.origin === location.origin && OURS.test(url.pathname);
    return isLocal ? url.pathname + url.search : "/console";
  } catch {
    return "/console";
  }
}

function followed(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.target || link.hasAttribute("download")) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !OURS.test(url.pathname)) return;
  if (url.hash && url.pathname === location.pathname && url.search === location.search) return;
  event.preventDefault();
  go(url.pathname + url.search + url.hash);
}
