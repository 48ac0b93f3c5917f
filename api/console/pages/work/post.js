// Put a job up: a script or a container by a form, anything else as the request itself.

import { ApiError, get, post } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { form } from "../../lib/forms.js";
import { go } from "../../lib/router.js";
import { button, facts, notice, tabs } from "../../lib/view.js";
import { credits, t } from "../../lib/words.js";
import { JOB_TYPES, jobType, some } from "./shared.js";

export const words = "work";
export const title = "work.post.title";

const PRICE_MAX = 1_000_000; // credits, as the API has it
const HELLO = { title: "hello", price_credit: 2, duration_hrs: 1, script: "print('hello')\n" };
const ADVANCED = {
  title: "hello",
  job_type: "script",
  price_credit: 2,
  duration_hrs: 1,
  payload: { script: "print('hello')\n", outputs: [{ name: "result", path: "*.txt" }] },
  resources: { cores: 1, ram_gb: 1 },
  trust: { review_hours: 24 },
};
const FEW = 3; // open jobs that make a price worth mentioning

export async function render(main, page) {
  const [wallet, open] = await Promise.all([
    get("/api/wallet", null, { signal: page.signal }),
    some("/api/marketplace/jobs", "jobs", { status: "waiting" }, { signal: page.signal }),
  ]);
  main.append(
    facts([
      [t("work.post.available"), credits(wallet.credit_balance)],
      ...JOB_TYPES.map((type) => [t("work.post.open_price", { type: jobType(type) }), prices(open.rows, type)]),
    ]),
    ...(wallet.credit_balance > 0 ? [] : [notice("warn", t("work.post.no_credits"))]),
    notice("info", t("work.post.visible")),
    tabs(
      [
        [t("work.post.script"), scripted()],
        [t("work.post.container"), contained()],
        [t("work.post.advanced"), advanced()],
      ],
      t("work.kind"),
    ),
  );
}

// The pay of open jobs of a kind per hour, from the lowest to the highest, and in the middle.
function prices(rows, type) {
  const each = rows.filter((row) => row.job_type === type && row.payment_type === "credit").map((row) => row.price_credit / row.duration_hrs);
  if (each.length < FEW) return t("work.post.too_few");
  each.sort((one, other) => one - other);
  const shown = [each[0], each[Math.floor(each.length / 2)], each.at(-1)].map((price) => credits(Math.round(price * 100) / 100));
  return t("work.post.range", { low: shown[0], middle: shown[1], high: shown[2], n: each.length });
}

const shared = () => [
  { name: "title", label: t("work.post.name"), required: true, maxlength: 200, value: HELLO.title },
  { name: "price_credit", label: t("work.post.price"), type: "number", required: true, min: 0, max: PRICE_MAX, step: "any", value: HELLO.price_credit, hint: t("work.post.price.hint") },
  { name: "duration_hrs", label: t("work.post.hours"), type: "number", required: true, min: 1, max: 8760, step: 1, value: HELLO.duration_hrs, hint: t("work.post.hours.hint") },
];
const needs = () => [
  { name: "cores", label: t("work.needs.cores"), type: "number", min: 0, step: "any" },
  { name: "ram_gb", label: t("work.needs.ram"), type: "number", min: 0, step: "any" },
  { name: "disk_gb", label: t("work.needs.disk"), type: "number", min: 0, step: "any" },
  { name: "gpus", label: t("work.needs.gpus"), type: "number", min: 0, step: 1 },
  { name: "gpu_model", label: t("work.needs.gpu_model"), hint: t("work.needs.gpu_model.hint") },
  { name: "network", label: t("work.needs.network"), type: "checkbox" },
  { name: "outputs", label: t("work.post.outputs"), hint: t("work.post.outputs.hint") },
  { name: "review_hours", label: t("work.post.review"), type: "number", min: 0, step: 1, hint: t("work.post.review.hint") },
];

function scripted() {
  return form({
    fields: [
      ...shared(),
      { name: "interpreter", label: t("work.post.interpreter"), type: "select", required: true, value: "python3", options: [["python3", "Python"], ["bash", "Bash"]] },
      { name: "script", label: t("work.post.script"), type: "textarea", required: true, value: HELLO.script, spellcheck: "false" },
      ...needs(),
    ],
    submit: t("work.post.submit"),
    send: (values) => send(request(values, "script", { script: values.script, interpreter: values.interpreter })),
  });
}

function contained() {
  const image = el("div");
  replace(
    image,
    form({
      fields: [
        { name: "job_type", label: t("work.kind"), type: "select", required: true, value: "docker", options: ["docker", "training", "inference"].map((each) => [each, jobType(each)]) },
        ...shared(),
        { name: "image", label: t("work.post.image"), required: true, hint: t("work.post.image.hint") },
        { name: "command", label: t("work.post.command"), type: "textarea", rows: 4, hint: t("work.post.command.hint"), spellcheck: "false" },
        ...needs(),
      ],
      submit: t("work.post.submit"),
      send: (values) => {
        const command = (values.command ?? "").split("\n").filter(Boolean);
        return send(request(values, values.job_type, { image: values.image, ...(command.length ? { command } : {}) }));
      },
    }),
  );
  return image;
}

// The whole request, as the API takes it.
function advanced() {
  const text = JSON.stringify(ADVANCED, null, 2);
  const problem = el("p", { class: "problem", role: "alert" });
  const input = el("textarea", { rows: 20, spellcheck: "false", id: "advanced", value: text });
  const submit = button(
    t("work.post.submit"),
    async () => {
      replace(problem);
      let body;
      try {
        body = JSON.parse(input.value);
      } catch (error) {
        replace(problem, t("work.post.no_json", { why: error.message }));
        return;
      }
      try {
        await send(body);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        replace(problem, error.field ? `${error.field}: ${error.message}` : error.message);
      }
    },
    { kind: "primary" },
  );
  return el("div", null, el("p", null, t("work.post.advanced.text")), el("label", { for: "advanced" }, "POST /api/jobs"), input, problem, el("div", { class: "actions" }, submit));
}

function request(values, type, payload) {
  const { title: name, price_credit, duration_hrs, cores, ram_gb, disk_gb, gpus, gpu_model, network, outputs, review_hours } = values;
  const paths = (outputs ?? "").split(/[\s,]+/).filter(Boolean);
  const asked = Object.entries({ cores, ram_gb, disk_gb, gpus, gpu_model }).filter(([, value]) => value !== undefined);
  return {
    title: name,
    job_type: type,
    price_credit,
    duration_hrs,
    payload: {
      ...payload,
      ...(network ? { network: "egress" } : {}),
      ...(paths.length ? { outputs: paths.map((path, index) => ({ name: `output-${index + 1}`, path })) } : {}),
    },
    ...(asked.length ? { resources: Object.fromEntries(asked) } : {}),
    ...(review_hours === undefined ? {} : { trust: { review_hours } }),
  };
}

async function send(body) {
  const { job_id } = await post("/api/jobs", body, { once: true });
  await go(`/console/jobs/${job_id}`);
}
