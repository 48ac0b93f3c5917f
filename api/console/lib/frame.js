// The frame around a page: the menu, the balance, language and colours.

import { get, post } from "./api.js";
import { el, update } from "./dom.js";
import { again, go } from "./router.js";
import * as site from "./site.js";
import { keep, kept } from "./storage.js";
import { follow } from "./stream.js";
import { button, link } from "./view.js";
import { LANGUAGES, choose, credits, creditsRoughly, language, money, moneyRoughly, t } from "./words.js";

const MENU = [
  ["traffic", ["/console", "/console/sessions", "/console/usage"]],
  ["money", ["/console/wallet", "/console/earnings", "/console/prices"]],
  ["work", ["/console/devices", "/console/jobs", "/console/market", "/console/supply", "/console/deploys"]],
  ["more", ["/console/assistant", "/console/referrals"]],
  ["account", ["/console/keys", "/console/webhooks", "/console/events", "/console/account"]],
];
const BAR = ["/console/sessions", "/console/usage", "/console/wallet"];
const BALANCE_MS = 300; // several events of one cause are one question
const SCHEME = "proxyd.scheme";
export const SCHEMES = ["auto", "light", "dark"];

const logins = new BroadcastChannel("proxyd.logins"); // a logout in one tab is a logout in all

dressed(scheme());
logins.addEventListener("message", () => get("/auth/me").catch(unlessRefused));

// A page with its frame, as nodes of the document.
export function frame(main, { isBare, me, path }) {
  const skip = el("a", { class: "skip", href: "#main" }, t("frame.skip"));
  if (isBare || me === null) {
    return [skip, el("header", { class: "top" }, brand()), el("div", { class: "bare" }, main), footer()];
  }
  const menu = el("nav", { id: "menu", class: "menu", "aria-label": t("frame.menu") }, MENU.map((group) => part(group, path)), logout());
  const body = el("div", { class: "body" }, menu, main);
  return [skip, el("header", { class: "top" }, brand(), balance(me)), body, footer(), bar(menu, path)];
}

function brand() {
  const logo = site.logo() ? el("img", { class: "logo", src: site.logo(), alt: "" }) : "";
  return el("a", { class: "brand", href: "/console" }, logo, site.name());
}

// `#live` is where the stream says how old the figures are.
function balance(me) {
  return el(
    "p",
    { class: "balance" },
    el("span", { id: "live", class: "live" }),
    el("a", { href: "/console/wallet", id: "balance", class: "is-live" }, amounts(me)),
    el("a", { href: "/console/account", class: "who" }, me.username),
  );
}

// To the cent; the exact balance stands behind it, and in the wallet.
const amounts = (me) => [
  el("span", { title: money(me.usd_balance) }, moneyRoughly(me.usd_balance)),
  " · ",
  el("span", { title: credits(me.credit_balance) }, creditsRoughly(me.credit_balance)),
];

// Keeps the balance at the top up to date until `signal`: most events move money.
export function keepBalance(signal) {
  let timer = 0;
  async function refresh() {
    const me = await get("/auth/me", null, { signal });
    const place = document.getElementById("balance");
    if (place) update(place, amounts(me));
  }
  function soon() {
    clearTimeout(timer);
    timer = setTimeout(() => refresh().catch(unlessRefused), BALANCE_MS);
  }
  follow({ signal, refresh, onEvent: soon });
}

// A refusal, or leaving the page: the next event, or the next page, asks again.
function unlessRefused(error) {
  if (error.name !== "ApiError" && error.name !== "AbortError") throw error;
}

function part([name, paths], path) {
  return el("section", null, el("h2", null, t(`menu.group.${name}`)), el("ul", null, paths.map((each) => el("li", null, entry(each, path)))));
}

function entry(to, path) {
  const isHere = to === "/console" ? path === to : path === to || path.startsWith(`${to}/`);
  return el("a", { href: to, "aria-current": isHere ? "page" : null }, t(`menu.${to.slice("/console".length + 1) || "overview"}`));
}

// On narrow screens: three pages under the thumb, and the whole menu.
function bar(menu, path) {
  const open = el("button", { type: "button", "aria-expanded": "false", "aria-controls": "menu", on: { click: turned } }, t("menu.all"));
  function turned() {
    const isOpen = menu.classList.toggle("open");
    open.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) menu.querySelector("a").focus();
  }
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.classList.contains("open")) return;
    turned();
    open.focus();
  });
  return el("nav", { class: "bar", "aria-label": t("frame.short_menu") }, BAR.map((each) => entry(each, path)), open);
}

function footer() {
  const languages = Object.entries(LANGUAGES).map(([code, name]) => el("option", { value: code, lang: code }, name));
  const schemes = SCHEMES.map((each) => el("option", { value: each }, t(`frame.scheme.${each}`)));
  return el(
    "footer",
    { class: "foot" },
    el("label", null, el("span", null, t("frame.language")), el("select", { id: "language", value: language(), on: { change: spoken } }, languages)),
    el("label", null, el("span", null, t("frame.colours")), el("select", { id: "scheme", value: scheme(), on: { change: ({ target }) => dressed(target.value) } }, schemes)),
    link("/docs", t("frame.api"), {}),
    contact(),
  );
}

// The contact of the service, which comes after the page: no page waits for it.
function contact() {
  const place = el("span", { class: "contact" });
  linked(place).catch(unlessRefused);
  return place;
}

async function linked(place) {
  const facts = await site.facts();
  const { support } = facts;
  place.append(...site.links(site.valid(facts)), el("a", { href: "/status" }, t("frame.status")));
  if (support) place.append(el("a", { href: support.includes("://") ? support : `mailto:${support}` }, t("frame.support")));
}

async function spoken({ target }) {
  await choose(target.value);
  await again();
  document.getElementById("language")?.focus();
}

// Ends this login, here and at the server.
function logout() {
  return button(
    t("frame.logout"),
    async () => {
      await post("/auth/logout");
      logins.postMessage("out");
      await go("/login");
    },
    { kind: "quiet" },
  );
}

// Shows the console in these colours from now on.
export function dressed(chosen) {
  if (chosen === "auto") delete document.documentElement.dataset.scheme;
  else document.documentElement.dataset.scheme = chosen;
  keep(SCHEME, chosen);
}

// The colours that are chosen.
export function scheme() {
  const before = kept(SCHEME);
  return SCHEMES.includes(before) ? before : "auto";
}
