// The one door to the server: the public API, as /openapi.json describes it.

import { errorText, language } from "./words.js";

const RETRIES_MS = [400, 1500]; // between attempts at what may be done once only
const AWAY = new Set([502, 503, 504]);
const waiting = new Map(); // Idempotency-Keys of requests without an answer
let onSignedOut = () => {};
let onAway = () => {};

// A refusal. `message` is in the reader's language, `detail` is the server's own sentence, `retryAfter`
// seconds or null. Without an answer, `status` is 0 and `code` "unreachable".
export class ApiError extends Error {
  constructor(status, { code, message, field }, text, retryAfter = null) {
    super(text);
    this.name = "ApiError";
    Object.assign(this, { status, code, field: field ?? null, detail: message, retryAfter });
  }
}

// Sets the action for an answer without a login.
export function whenSignedOut(act) {
  onSignedOut = act;
}

// Sets the callback for refusals that are not the request's fault; it receives the code.
export function whenAway(act) {
  onAway = act;
}

export const get = (path, query, options) => ask("GET", address(path, query), undefined, options);
export const post = (path, body = {}, options) => ask("POST", path, body, options);
export const put = (path, body = {}, options) => ask("PUT", path, body, options);
export const patch = (path, body = {}, options) => ask("PATCH", path, body, options);
export const del = (path, options) => ask("DELETE", path, undefined, options);
export const upload = (path, form, options) => ask("POST", path, form, options);

// A file, as a Blob.
export async function fetchFile(path, options) {
  const answer = await send("GET", path, undefined, options ?? {});
  if (!answer.ok) throw await refused(answer);
  return answer.blob();
}

// One part of a long list after the other; `listKey` names the list in the answer.
export async function* pages(path, listKey, query = {}, options) {
  let place = {};
  for (;;) {
    const answer = await get(path, { ...query, ...place }, options);
    yield answer[listKey];
    if (answer.next_cursor) place = { cursor: answer.next_cursor };
    else if (answer.next) place = { after: answer.next };
    else return;
  }
}

// The events of a stream: {event, id, data}. `body` makes it a POST. With `heartbeats`, a comment of the
// server is {event: "heartbeat"}. Ends when the server ends it; throws when it breaks.
export async function* events(path, { body, query, signal, lastEventId, heartbeats } = {}) {
  const headers = { Accept: "text/event-stream" };
  if (lastEventId) headers["Last-Event-ID"] = lastEventId;
  const method = body === undefined ? "GET" : "POST";
  const answer = await send(method, address(path, query), body, { signal, headers });
  const type = answer.headers.get("Content-Type") ?? "";
  if (!answer.ok || !type.startsWith("text/event-stream")) throw await refused(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const found = parsed(block);
      if (found.event !== "heartbeat" || heartbeats) yield found;
    }
  }
}

function parsed(block) {
  const fields = { event: "message", id: "" };
  const data = [];
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    const value = line.slice(at + 1).replace(/^ /, "");
    if (line.startsWith("data:")) data.push(value);
    else if (at > 0) fields[line.slice(0, at)] = value;
  }
  if (!data.length) return { event: "heartbeat", id: "", data: null };
  return { event: fields.event, id: fields.id, data: JSON.parse(data.join("\n")) };
}

function address(path, query) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") asked.set(name, value);
  }
  return asked.size ? `${path}?${asked}` : path;
}

async function ask(method, path, body, options = {}) {
  const answer = options.once ? await sendOnce(method, path, body, options) : await send(method, path, body, options);
  if (!answer.ok) throw await refused(answer);
  const type = answer.headers.get("Content-Type") ?? "";
  return type.startsWith("application/json") ? answer.json() : answer.text();
}

async function send(method, path, body, { signal, headers } = {}) {
  const sent = { "X-Requested-By": "console", "Accept-Language": language(), ...headers };
  let content = body;
  if (body !== undefined && !(body instanceof FormData)) {
    sent["Content-Type"] = "application/json";
    content = JSON.stringify(body);
  }
  try {
    return await fetch(path, { method, headers: sent, body: content, signal, credentials: "same-origin" });
  } catch (error) {
    if (signal?.aborted) throw error;
    onAway("unreachable");
    throw new ApiError(0, { code: "unreachable", message: "" }, await errorText("unreachable", ""));
  }
}

// A request that must not be done twice has a key, which the same request keeps until it is answered.
async function sendOnce(method, path, body, options) {
  const name = `${method} ${path} ${JSON.stringify(body)}`;
  const key = waiting.get(name) ?? random();
  waiting.set(name, key);
  for (let attempt = 0; ; attempt += 1) {
    try {
      const answer = await send(method, path, body, { ...options, headers: { "Idempotency-Key": key } });
      const isOver = !AWAY.has(answer.status) && answer.status !== 500;
      if (isOver) waiting.delete(name);
      if (isOver || attempt >= RETRIES_MS.length) return answer;
    } catch (error) {
      if (!(error instanceof ApiError) || attempt >= RETRIES_MS.length) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRIES_MS[attempt]));
  }
}

async function refused(answer) {
  const reply = await answer.json().catch(() => ({}));
  const error = reply.error ?? { code: "unreachable", message: answer.statusText };
  const after = Number(answer.headers.get("Retry-After"));
  const text = await errorText(error.code, error.message);
  const refusal = new ApiError(answer.status, error, text, after > 0 ? after : null);
  if (answer.status >= 500) onAway(error.code);
  if (answer.status === 401 && error.code === "unauthorized") onSignedOut(refusal);
  return refusal;
}

// crypto.randomUUID() is there over https alone.
function random() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
