// The console begins here: it finds the page of an address, and draws the frame around it.

import { ApiError, get, post, whenSignedOut } from "./lib/api.js";
import { el, replace } from "./lib/dom.js";
import { frame, keepBalance } from "./lib/frame.js";
import { again, go, start } from "./lib/router.js";
import "./lib/state.js";
import { begun, opening } from "./lib/stream.js";
import { failure } from "./lib/view.js";
import { name } from "./lib/site.js";
import { keep, kept } from "./lib/storage.js";
import { load, t } from "./lib/words.js";

// Of each path its module. A page requires a login, unless it is `open`; `bare` ones have no menu.
const PAGES = [
  ["/console", "overview"],
  ["/console/sessions", "traffic/sessions"],
  ["/console/sessions/new", "traffic/buy"],
  ["/console/sessions/{id}", "traffic/session"],
  ["/console/usage", "traffic/usage"],
  ["/console/wallet", "money/wallet"],
  ["/console/wallet/pay/{id}", "money/payment"],
  ["/console/wallet/receipt/{id}", "money/receipt"],
  ["/console/earnings", "money/earnings"],
  ["/console/earnings/lines", "money/lines"],
  ["/console/prices", "money/prices"],
  ["/console/devices", "work/devices"],
  ["/console/devices/{id}", "work/device"],
  ["/console/jobs", "work/jobs"],
  ["/console/jobs/new", "work/post"],
  ["/console/jobs/{id}", "work/job"],
  ["/console/market", "work/market"],
  ["/console/supply", "work/supply"],
  ["/console/deploys", "work/deploys"],
  ["/console/deploys/new", "work/order"],
  ["/console/deploys/{id}", "work/deploy"],
  ["/console/assistant", "account/assistant"],
  ["/console/referrals", "account/referrals"],
  ["/console/keys", "account/keys"],
  ["/console/webhooks", "account/webhooks"],
  ["/console/webhooks/{id}", "account/webhook"],
  ["/console/events", "account/events"],
  ["/console/account", "account/account"],
  ["/device", "entry/device", { bare: true }],
  ["/login", "entry/login", { bare: true, open: true }],
  ["/register", "entry/register", { bare: true, open: true }],
  ["/verify", "entry/verify", { bare: true, open: true }],
  ["/forgot", "entry/forgot", { bare: true, open: true }],
  ["/reset", "entry/reset", { bare: true, open: true }],
].map(([path, module, kind = {}]) => ({ path, module, ...kind, pattern: pattern(path) }));
const MISSING = { path: "", module: "missing", open: true, bare: true };
const RELOAD_MS = 10_000;
const REFRESHED = "proxyd.refreshed";
const REFRESH_MS = 3_600_000;

let leaving = new AbortController(); // of the page that is shown
let isFirst = true;
let known = null; // the last user: while the server is away the menu stays

// A name in a path is an identifier and nothing else: pages put it into the addresses that they ask for.
function pattern(path) {
  return new RegExp(`^${path.replace(/\{(\w+)\}/g, "(?<$1>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")}/?$`);
}

// The page of an address, and the values of the names in its path.
function found(pathname) {
  for (const page of PAGES) {
    const match = page.pattern.exec(pathname);
    if (match) return { page, params: match.groups ?? {} };
  }
  return { page: MISSING, params: {} };
}

async function render(url, kept) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { page, params } = found(url.pathname);
  let me = null;
  let module;
  try {
    [module, me] = await Promise.all([loaded(page), page.open ? null : who(page, signal), load("common")]);
    if (!page.open || page.module.startsWith("entry/")) known = me;
  } catch (error) {
    if (signal.aborted || error.status === 401) return; // another page is on its way
    if (!(error instanceof ApiError)) throw error;
    await load("common");
    return shown(page, url, isAway(error) ? known : null, t("common.failed"), (main) => main.append(failure(error, again)));
  }
  if (signal.aborted) return;
  if (me) refresh();
  const title = typeof module.title === "function" ? module.title(params) : t(module.title);
  await shown(page, url, me, title, (main) => module.render(main, { params, query: url.searchParams, me, signal, kept, path: url.pathname }), signal);
}

// The logged-in user, requested once the stream is open, so that later events reach the page.
async function who(page, signal) {
  if (!page.bare) await opening(signal);
  return get("/auth/me", null, { signal });
}

const isAway = (error) => error.status === 0 || error.status >= 500;

// Puts a page into its frame; if `fill` refuses, the refusal stands in the place of the page.
async function shown(page, url, me, title, fill, signal) {
  document.title = `${title} – ${name()}`;
  const heading = el("h1", { tabindex: "-1" }, title);
  const main = el("main", { id: "main" }, heading);
  replace(document.getElementById("app"), frame(main, { isBare: Boolean(page.bare), me, path: url.pathname }));
  if (me && signal && !page.bare) keepBalance(signal);
  if (!isFirst) {
    scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }
  isFirst = false;
  try {
    await fill(main);
  } catch (error) {
    if (signal?.aborted || error.status === 401) return;
    main.append(failure(error, again));
    if (!(error instanceof ApiError)) throw error; // a mistake of ours: its author looks at the console
  } finally {
    begun(signal);
  }
}

// The module of a page, with its words. A module that fails to load belongs to another version, or was requested while
// the server was away, which browsers remember: both are mended by loading this document again.
async function loaded(page) {
  try {
    const module = await import(`./pages/${page.module}.js`);
    await load(module.words ?? "common");
    return module;
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof ReferenceError) throw error;
    const shell = await get("/console"); // throws while the server is away
    const isOurs = shell.includes(new URL(import.meta.url).pathname);
    if ((!isOurs || (await isThere(page.module))) && mayReload()) {
      location.reload();
      return new Promise(() => {});
    }
    const missing = await import(`./pages/${MISSING.module}.js`);
    await load(missing.words);
    return missing;
  }
}

async function isThere(module) {
  const answer = await fetch(new URL(`./pages/${module}.js`, import.meta.url), { method: "HEAD" });
  return answer.ok;
}

// While two versions serve at once, no page flickers.
function mayReload() {
  const last = history.state?.reloaded ?? 0;
  history.replaceState({ ...history.state, reloaded: Date.now() }, "");
  return Date.now() - last > RELOAD_MS;
}

// A token is good for hours, a login for a month: regular visitors stay logged in.
async function refresh() {
  const last = Number(kept(REFRESHED));
  if (Date.now() - last < REFRESH_MS) return;
  keep(REFRESHED, Date.now());
  await post("/auth/refresh").catch(() => {}); // the next hour's visit tries again
}

whenSignedOut(() => {
  if (found(location.pathname).page.open) return;
  const next = encodeURIComponent(location.pathname + location.search);
  go(`/login?next=${next}`, { replace: true });
});

start(render);
