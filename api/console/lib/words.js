// The texts of the page, in four languages, and figures as their readers write them.

import { keep, kept } from "./storage.js";

export const LANGUAGES = { en: "English", tr: "Türkçe", ru: "Русский", ko: "한국어" };
const KEPT = "proxyd.language";
const UNITS = [
  ["year", 31_536_000],
  ["month", 2_592_000],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];
const TIME = { hour: "numeric", minute: "2-digit" };
const BYTES = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];
// The sentence of the code names no fault and no amount: the server's own one stands behind it.
const PARTICULAR = new Set(["invalid_field", "unknown_field", "payload_invalid", "insufficient_funds"]);

let chosen = preferred();
let texts = {};
const areas = new Map(); // promises of the words of each
let refusals = null; // a promise of the sentences for codes, asked for at the first refusal
const made = new Map(); // formats of Intl, which are dear to make

document.documentElement.lang = chosen;

// The language of the page: en, tr, ru or ko.
export const language = () => chosen;

// Changes the language; shown parts must be shown again.
export async function choose(code) {
  chosen = code in LANGUAGES ? code : "en";
  document.documentElement.lang = chosen;
  keep(KEPT, chosen);
  made.clear();
  refusals = null;
  texts = {};
  await Promise.all([...areas.keys()].map(fetched));
}

// Loads the words of an area; they stay.
export function load(area) {
  if (!areas.has(area)) areas.set(area, fetched(area).catch((error) => lost(area, error)));
  return areas.get(area);
}

// A file that has not come is requested again.
function lost(area, error) {
  areas.delete(area);
  throw error;
}

// The text of a key, with `{name}` replaced; of a plural, the form that `values.n` takes.
export function t(key, values = {}) {
  let text = texts[key];
  if (text === undefined) return key;
  if (typeof text === "object") text = text[format("PluralRules").select(Number(values.n))] ?? text.other;
  return text.replace(/\{(\w+)\}/g, (whole, name) => {
    const value = values[name];
    if (value === undefined || value === null) return whole;
    return typeof value === "number" ? count(value) : value;
  });
}

// The sentence for a refusal; the server's own, which is English, if the language has no sentence.
export async function errorText(code, message) {
  refusals ??= chosen === "en" ? Promise.resolve({}) : file("errors").catch(() => ({}));
  const text = (await refusals)[code] ?? texts[`error.${code}`];
  if (text === undefined) return message || code;
  return PARTICULAR.has(code) && message ? `${text} (${message})` : text;
}

export const money = (usd) => known(usd, (x) => exact("USD", x));
// An amount to the cent, rounded down; an amount below a cent is shown as it is.
export const moneyRoughly = (usd) => known(usd, (x) => (Math.abs(x) < 0.01 ? exact("USD", x) : number(x, { style: "currency", currency: "USD", roundingMode: "trunc" })));
export const creditsRoughly = (n) => known(n, (x) => (Math.abs(x) < 0.01 ? credits(x) : t("common.credits", { n: x, amount: number(x, { maximumFractionDigits: 2, roundingMode: "trunc" }) })));
export const credits = (n) => known(n, (x) => t("common.credits", { n: x, amount: number(x, { maximumFractionDigits: 6 }) }));
export const count = (n) => known(n, (x) => number(x, {}));
export const country = (code) => format("DisplayNames", { type: "region", fallback: "code" }).of(code.toUpperCase());
export const percent = (x) => known(x, (y) => number(y, { style: "percent", maximumFractionDigits: 1 }));
export const bytes = (n) => known(n, (x) => sized(x));
export const rate = (n) => known(n, (x) => t("common.rate", { amount: sized(x) }));
export const date = (iso) => moment(iso, { ...dayParts(iso), ...TIME });
export const day = (iso) => moment(iso, dayParts(iso));
export const time = (iso) => moment(iso, { timeStyle: "short" });

// "3 minutes ago", "in 2 hours".
export function ago(iso) {
  return known(iso, () => {
    const seconds = (at(iso) - Date.now()) / 1000;
    const [unit, size] = UNITS.find(([, long]) => Math.abs(seconds) >= long) ?? UNITS.at(-1);
    return format("RelativeTimeFormat", { numeric: "auto" }).format(Math.round(seconds / size), unit);
  });
}

// An unknown value is a dash, never nothing.
function known(value, show) {
  return value === null || value === undefined || value === "" || Number.isNaN(value) ? t("common.unknown") : show(value);
}

// Money has two places at the least, and more if it needs them: a micro-dollar is also money.
function exact(currency, amount) {
  return number(amount, { style: "currency", currency, minimumFractionDigits: 2, maximumFractionDigits: 6 });
}

function sized(n) {
  let unit = 0;
  let left = n;
  while (Math.abs(left) >= 999.5 && unit < BYTES.length - 1) {
    left /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || Math.abs(left) >= 100 ? 0 : Math.abs(left) >= 10 ? 1 : 2;
  return number(left, { style: "unit", unit: BYTES[unit], unitDisplay: unit ? "short" : "long", maximumFractionDigits: digits });
}

function moment(value, options) {
  return known(value, () => format("DateTimeFormat", options).format(at(value)));
}

// Of this year the year is not said.
function dayParts(value) {
  const isPresent = at(value).getFullYear() === new Date().getFullYear();
  return { month: "short", day: "numeric", ...(isPresent ? {} : { year: "numeric" }) };
}

// Times of the API are text (ISO 8601) or seconds.
function at(value) {
  return typeof value === "number" ? new Date(value * 1000) : new Date(value);
}

function number(value, options) {
  return format("NumberFormat", options).format(value);
}

function format(kind, options = {}) {
  const key = kind + JSON.stringify(options);
  if (!made.has(key)) made.set(key, new Intl[kind](chosen, options));
  return made.get(key);
}

async function fetched(area) {
  Object.assign(texts, await file(area));
}

async function file(area) {
  const answer = await fetch(new URL(`../words/${area}.${chosen}.json`, import.meta.url));
  if (!answer.ok) throw new Error(`no words of ${area}`);
  return answer.json();
}

function preferred() {
  const before = kept(KEPT);
  const wishes = [before, ...navigator.languages].map((each) => (each ?? "").slice(0, 2).toLowerCase());
  return wishes.find((each) => each in LANGUAGES) ?? "en";
}

