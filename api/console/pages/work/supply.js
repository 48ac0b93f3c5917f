// The supply of the market: the devices that ask for work, by GPU, cores, memory, sandbox and country.

import { get } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { facts, link, table } from "../../lib/view.js";
import { count, money, percent, t } from "../../lib/words.js";

export const words = "supply";
export const title = "supply.title";

const NAMES = { "": "supply.no_gpu", other: "supply.other" };

const named = (name) => (name in NAMES ? t(NAMES[name]) : name);

export async function render(main, page) {
  const supply = await get("/api/market/supply", {}, { signal: page.signal });
  const { total, prices } = supply;
  main.append(
    el("p", null, t("supply.text")),
    facts([
      [t("supply.devices"), count(total.devices)],
      [t("supply.free"), count(total.free)],
      [t("supply.network"), count(supply.network.devices)],
      [t("supply.prices"), prices ? t("supply.quartiles", { low: money(prices.low_usd_per_hour), median: money(prices.median_usd_per_hour), high: money(prices.high_usd_per_hour) }) : t("common.unknown")],
    ]),
    ...(total.devices ? tables(supply) : [el("div", { class: "empty" }, el("p", null, t("supply.empty")))]),
    ...(supply.attribution.length ? [el("p", { class: "hint" }, supply.attribution.join(" "))] : []),
    el("div", { class: "actions" }, link("/console/jobs/new", t("supply.post"), { kind: "primary" })),
  );
}

function tables(supply) {
  return [
    rows(t("supply.gpus"), t("supply.model"), supply.gpus, (row) => named(row.gpu), [
      { key: "gpus", label: t("supply.count"), number: true, cell: (row) => (row.gpu ? count(row.gpus) : null) },
      { key: "vram", label: t("supply.vram"), number: true, cell: (row) => (row.vram_gb ? count(row.vram_gb) : null) },
      { key: "paid", label: t("supply.paid"), number: true, cell: (row) => money(row.paid_usd_per_hour) },
    ]),
    rows(t("supply.cores"), t("supply.least"), supply.cores, (row) => count(row.least)),
    rows(t("supply.memory"), t("supply.least_gb"), supply.memory_gb, (row) => count(row.least)),
    rows(t("supply.sandboxes"), t("supply.sandbox"), supply.sandboxes, (row) => row.sandbox),
    rows(t("supply.countries"), t("supply.country"), supply.countries, (row) => (row.country === "other" ? t("supply.other") : row.country.toUpperCase())),
  ];
}

// A table of one list; `more` are columns that it has beside those of all lists.
function rows(caption, label, list, nameOf, more = []) {
  const columns = [
    { key: "name", label, cell: nameOf },
    { key: "devices", label: t("supply.devices"), number: true, cell: (row) => count(row.devices) },
    { key: "free", label: t("supply.free"), number: true, cell: (row) => count(row.free) },
    ...more,
    { key: "from", label: t("supply.from"), number: true, cell: (row) => money(row.from_usd_per_hour) },
    { key: "reputation", label: t("supply.reputation"), number: true, cell: (row) => percent(row.reputation) },
  ];
  return list.length ? table({ caption, columns, rows: list }) : el("div", { class: "empty" }, el("p", null, caption, ": ", t("supply.empty")));
}
