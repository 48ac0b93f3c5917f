// Order a deploy: its program, its GPUs, its replicas, and the cost before the order.

import { get, post } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { facts, link, live, table } from "../../lib/view.js";
import { credits, money, t } from "../../lib/words.js";
import { paid } from "./shared.js";

export const words = "work";
export const title = "work.order.title";

const TYPES = ["Docker", "Jupyter", "Inference", "Training", "Script"];

export async function render(main, page) {
  const asked = { signal: page.signal };
  const [rates, wallet] = await Promise.all([get("/api/deploy/rates", null, asked), get("/api/wallet", null, asked)]);
  const cost = live(el("p", { class: "total" }));
  const models = el("datalist", { id: "models" }, rates.rates.map(({ gpu_model, usd_per_hour }) => el("option", { value: gpu_model }, t("work.order.rate", { price: money(usd_per_hour) }))));
  const whole = { type: "number", min: 1, step: 1, required: true };
  const node = form({
    fields: [
      { name: "job_name", label: t("work.name"), required: true, maxlength: 150 },
      { name: "job_type", label: t("work.kind"), type: "select", required: true, value: "Docker", options: TYPES.map((each) => [each, t(`work.deploy_type.${each}`)]) },
      { name: "gpu_model", label: t("work.order.model"), required: true, list: "models", value: rates.rates[0]?.gpu_model, hint: t("work.order.model.hint", { price: money(rates.default_usd_per_hour) }) },
      { name: "gpu_count", label: t("work.order.gpus"), value: 1, max: 64, ...whole },
      { name: "duration_hrs", label: t("work.order.hours"), value: 1, max: 8760, ...whole },
      { name: "replicas", label: t("work.replicas"), value: 1, max: 100, ...whole },
      { name: "payment_type", label: t("work.order.pay"), type: "select", required: true, value: "usd", options: [["usd", `USD (${money(wallet.usd_balance)})`], ["credit", credits(wallet.credit_balance)]] },
      { name: "image", label: t("work.post.image"), hint: t("work.order.image.hint") },
      { name: "command", label: t("work.order.command"), hint: t("work.order.command.hint"), spellcheck: "false" },
      { name: "port", label: t("work.order.port"), type: "number", min: 1, max: 65535, step: 1, hint: t("work.order.port.hint") },
      { name: "env", label: t("work.order.env"), type: "textarea", rows: 3, hint: t("work.order.env.hint"), spellcheck: "false" },
    ],
    submit: t("work.deploys.order"),
    send: async (values) => {
      const made = await post("/api/deploy/job", request(values), { once: true });
      await go(`/console/deploys/${made.job_id}`);
    },
  });
  const field = (name) => node.elements.namedItem(name);
  function count() {
    const model = field("gpu_model").value.trim();
    const each = rates.rates.find((rate) => rate.gpu_model.toLowerCase() === model.toLowerCase())?.usd_per_hour ?? rates.default_usd_per_hour;
    const hours = ["gpu_count", "duration_hrs", "replicas"].reduce((product, name) => product * Number(field(name).value), 1);
    const usd = each * hours;
    const currency = field("payment_type").value;
    const total = currency === "usd" ? usd : usd / rates.credit_usd;
    const left = (currency === "usd" ? wallet.usd_balance : wallet.credit_balance) - total;
    const rounded = (amount) => Math.round(amount * 1e6) / 1e6;
    replace(
      cost,
      t("work.order.cost", { cost: paid(rounded(total), currency) }),
      " ",
      left >= 0 ? t("work.order.left", { left: paid(rounded(left), currency) }) : [t("work.order.missing", { missing: paid(rounded(-left), currency) }), " ", link("/console/wallet", t("work.order.to_wallet"))],
    );
    node.querySelector("[type=submit]").disabled = left < 0;
  }
  node.addEventListener("input", count);
  count();
  node.querySelector(".actions").before(cost);
  const columns = [
    { key: "gpu_model", label: t("work.order.model") },
    { key: "usd_per_hour", label: t("work.order.per_hour"), number: true, cell: (row) => money(row.usd_per_hour) },
  ];
  main.append(
    facts([
      [t("work.order.usd"), money(wallet.usd_balance)],
      [t("work.order.credits"), credits(wallet.credit_balance)],
    ]),
    node,
    models,
    ...(rates.rates.length ? [table({ caption: t("work.order.rates"), columns, rows: rates.rates })] : []),
  );
}

function request({ port, env, ...values }) {
  const asked = { ...values };
  if (port !== undefined) {
    asked.ports = [{ name: "web", port }];
    asked.ready = { port };
  }
  const pairs = (env ?? "").split("\n").filter((each) => each.includes("="));
  if (pairs.length) asked.env = Object.fromEntries(pairs.map((each) => [each.slice(0, each.indexOf("=")).trim(), each.slice(each.indexOf("=") + 1)]));
  return asked;
}
