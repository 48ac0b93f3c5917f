// Buying a session: its cost is shown before the purchase, its password once behind it.

import { get, post } from "../../lib/api.js";
import { el, update } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { follow } from "../../lib/stream.js";
import { button, card, facts, link, live, notice, secret } from "../../lib/view.js";
import { country, money, t } from "../../lib/words.js";
import { remember, unlessRefused } from "./shared.js";

export const words = "traffic";
export const title = "traffic.buy";

const MICRO = 1_000_000;
const GB = 1_000_000_000;

export async function render(main, page) {
  const asked = { signal: page.signal };
  let balance = page.me.usd_balance;
  let reckoned = () => {};
  async function refresh() {
    balance = (await get("/auth/me", null, asked)).usd_balance;
    reckoned();
  }
  follow({ onEvent: () => refresh().catch(unlessRefused), refresh, signal: page.signal });
  const [terms, { countries }] = await Promise.all([get("/api/bandwidth/terms", null, asked), get("/api/exits/coverage", null, asked)]);
  const bill = live(el("div", { class: "bill" }));
  const node = form({ fields: fields(terms, countries), submit: t("traffic.buy.submit"), send: buy, note: t("traffic.buy.note", { days: Math.round(terms.lifetime_seconds / 86_400) }) });
  const input = (name) => node.querySelector(`[name=${name}]`);

  reckoned = () => {
    const floor = floorOf(input("country")?.value, terms, countries);
    const price = input("price_per_gb").value === "" ? Math.max(terms.price_per_gb, floor) : Number(input("price_per_gb").value);
    const gb = Number(input("gb").value);
    const cost = gb > 0 && price >= 0 ? costOf(gb, price) : null;
    const left = cost === null ? null : (Math.round(balance * MICRO) - cost) / MICRO;
    const isPoor = left !== null && left < 0;
    update(
      bill,
      facts([
        [t("traffic.price_per_gb"), money(price)],
        [t("traffic.buy.cost"), el("strong", { data: { cost: cost ?? "" } }, money(cost === null ? null : cost / MICRO))],
        [t("traffic.buy.available"), money(balance)],
        [t("traffic.buy.left"), money(isPoor ? null : left)],
      ]),
      price < floor ? notice("warn", t("traffic.buy.floor", { price: money(floor) })) : null,
      cost !== null && cost < terms.cost_floor_usd * MICRO ? notice("warn", t("traffic.buy.small", { cost: money(terms.cost_floor_usd) })) : null,
      isPoor ? notice("warn", t("traffic.buy.poor", { missing: money(-left) }), " ", link("/console/wallet", t("traffic.buy.to_wallet"))) : null,
    );
    node.querySelector("[type=submit]").disabled = isPoor;
  };

  node.addEventListener("input", () => reckoned());
  node.querySelector(".actions").before(bill);
  if (terms.has_passwordless) input("allow_ips").after(mine(input("allow_ips")));
  main.append(card(null, node));
  reckoned();
}

function fields(terms, countries) {
  const exits = countries.map((each) => [each.country, t("traffic.buy.exits_in", { country: country(each.country), exits: each.exits, price: money(each.price_per_gb_floor) })]);
  return [
    { name: "gb", type: "number", label: t("traffic.buy.gb"), value: 1, min: 0.000001, max: terms.gb_max, required: true, hint: t("traffic.buy.gb_hint") },
    { name: "price_per_gb", type: "number", label: t("traffic.buy.price"), min: 0, hint: t("traffic.buy.price_hint", { usual: money(terms.price_per_gb), least: money(terms.price_per_gb_floor) }) },
    exits.length ? { name: "country", type: "select", label: t("traffic.buy.country"), options: [["", t("traffic.buy.direct")], ...exits], hint: t("traffic.buy.country_hint") } : null,
    terms.has_passwordless ? { name: "allow_ips", label: t("traffic.buy.allow"), hint: t("traffic.buy.allow_hint") } : null,
  ].filter(Boolean);
}

// The price in micro-dollars, as the server rounds it: up. A session has whole bytes.
function costOf(gb, price) {
  const parts = BigInt(Math.round(gb * GB)) * BigInt(Math.round(price * MICRO));
  return Number((parts + BigInt(GB - 1)) / BigInt(GB));
}

function floorOf(code, terms, countries) {
  const exit = countries.find((each) => each.country === code);
  return Math.max(terms.price_per_gb_floor, exit?.price_per_gb_floor ?? 0);
}


function mine(input) {
  return button(
    t("traffic.buy.mine"),
    async () => {
      const { ip } = await get("/ip");
      const named = listed(input.value) ?? [];
      if (!named.includes(ip)) input.value = [...named, ip].join(", ");
    },
    { kind: "quiet" },
  );
}

function listed(text) {
  const named = (text ?? "").split(/[\s,;]+/).filter(Boolean);
  return named.length ? named : undefined;
}

async function buy({ gb, price_per_gb, country: code, allow_ips }) {
  const body = { gb, price_per_gb, allow_ips: listed(allow_ips), exit: code ? { country: code } : undefined };
  const { session_id: id, proxy } = await post("/api/bandwidth/create", body, { once: true });
  remember(id, proxy);
  await secret({
    title: t("traffic.bought"),
    value: [
      [t("traffic.proxy"), `${proxy.host}:${proxy.port}`],
      [t("traffic.username"), proxy.username],
      [t("traffic.password"), proxy.password],
    ],
    note: t("traffic.bought.note"),
  });
  await go(`/console/sessions/${id}`);
}
