// All prices, fees and bounds, as the API has them.

import { get } from "../../lib/api.js";
import { el } from "../../lib/dom.js";
import { card, facts, link, table } from "../../lib/view.js";
import { country, language, money, percent, t } from "../../lib/words.js";
import { worded } from "../traffic/shared.js";
import { provider } from "./shared.js";

export const words = "money";
export const title = "money.prices.title";

export async function render(main, page) {
  const asked = { signal: page.signal };
  const [prices, { countries }] = await Promise.all([get("/api/prices", null, asked), get("/api/exits/coverage", null, asked)]);
  main.append(
    card(t("money.prices.money"), el("p", null, t("money.prices.rate", { credits: rate(prices), usd: money(prices.credit_usd) })), el("p", null, t("money.prices.rate_hint"))),
    card(t("money.prices.traffic"), traffic(prices), countries.length ? ofCountries(countries) : null),
    card(t("money.prices.work"), work(prices)),
    card(t("money.prices.in"), payments(prices)),
    card(t("money.prices.out"), payouts(prices)),
  );
}

// The credits of a dollar.
const rate = ({ credit_usd: usd }) => (usd > 0 ? new Intl.NumberFormat(language(), { maximumFractionDigits: 2 }).format(1 / usd) : t("common.unknown"));

const traffic = ({ traffic: each }) => [
  facts([
    [t("money.prices.per_gb"), el("strong", null, money(each.price_per_gb))],
    [t("money.prices.floor"), money(each.price_per_gb_floor)],
    [t("money.prices.least"), money(each.cost_floor_usd)],
    each.exit_share_percent === null ? null : [t("money.prices.share"), percent(each.exit_share_percent / 100)],
  ]),
  el("p", { class: "hint" }, t("money.prices.gb_hint")),
];

const ofCountries = (countries) =>
  table({
    caption: t("money.prices.countries"),
    columns: [
      { key: "country", label: t("money.prices.country"), cell: (row) => country(row.country) },
      { key: "exits", label: t("money.prices.exits") },
      { key: "floor", label: t("money.prices.from"), number: true, cell: (row) => money(row.price_per_gb_floor) },
    ],
    rows: countries,
  });

// A deploy is paid in USD or in credits; the pay of a job is the buyer's to decide.
const work = ({ work: { gpus, default_usd_per_hour: usual, fee_percent: fee }, credit_usd: credit }) => [
  table({
    caption: t("money.prices.gpus"),
    columns: [
      { key: "gpu", label: t("money.prices.gpu"), cell: (row) => row.gpu_model },
      { key: "usd", label: t("money.prices.usd_hour"), number: true, cell: (row) => money(row.usd_per_hour) },
      { key: "credits", label: t("money.prices.credits_hour"), number: true, cell: (row) => inCredits(row.usd_per_hour, credit) },
    ],
    rows: [...gpus, { gpu_model: t(gpus.length ? "money.prices.other_gpu" : "money.prices.any_gpu"), usd_per_hour: usual }],
  }),
  facts([[t("money.prices.fee"), percent(fee / 100)]]),
  el("p", { class: "hint" }, t("money.prices.fee_hint")),
];

const inCredits = (usd, credit) => (credit > 0 ? t("common.credits", { n: usd / credit, amount: new Intl.NumberFormat(language(), { maximumFractionDigits: 2 }).format(usd / credit) }) : null);

function payments({ payments: { providers, min_usd: least, max_usd: most, refund_days: days } }) {
  if (!providers.length) return el("p", null, t("money.wallet.pay_in"));
  return [
    facts([
      [t("money.pay.by"), providers.map(provider).join(", ")],
      [t("money.prices.pay_least"), money(least)],
      [t("money.prices.pay_most"), money(most)],
    ]),
    el("p", null, t("money.prices.refund", { n: days })),
    el("p", { class: "links" }, link("/console/wallet", t("money.pay"))),
  ];
}

function payouts({ payouts: { methods, minimum_usd: least, fee_usd: fee } }) {
  if (!methods.length) return el("p", null, t("money.payout.off"));
  return [
    facts([
      [t("money.payout.ways"), methods.map((each) => worded("money.method", each)).join(", ")],
      [t("money.payout.minimum"), money(least)],
      [t("money.payout.fee"), money(fee)],
    ]),
    el("p", { class: "links" }, link("/console/earnings", t("money.payout.ask"))),
  ];
}
