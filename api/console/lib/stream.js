// The stream of events and of live figures. All tabs of a browser share one connection: the tab that has the lock
// reads, the others hear it by a channel. Without locks (a page that came by http from elsewhere) each reads itself.

import { events } from "./api.js";
import { language, t } from "./words.js";

const PATH = "/api/events/stream";
const NAME = "proxyd.stream"; // of the lock, and of the channel
const SILENCE_MS = 20_000; // the server says something every 15 s
const OPENING_MS = 1_000; // a page waits no longer for it
const LINGER_MS = 2_000; // from one page to the next the stream stays open
const POLL_MS = 10_000; // how often pages ask for their lists while there is no stream
const TICK_MS = 200;
const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 8_000;
const REMEMBERED = 500; // events that a replay may repeat

const followers = new Set();
const seen = new Set(); // ids of the last events
let early = null; // events since a page began
const tab = { reading: null, isHolder: false, channel: null, ticking: 0, polledAt: 0 };
// The known state of the stream; `heardAt` is the time of its last sign of life, `since` the beginning of the state.
const stream = { state: "opening", since: Date.now(), heardAt: null, lastId: "" };

// Follows the stream until `signal` is aborted.
//   types     the types of events to receive; without it all of them
//   onEvent   called with {id, type, subject_id, data, created_at}, each event once
//   onUsage   called with {session_id, bytes_used, bytes_left, bytes_per_second, connections}
//   onState   called with "live" or "lost" and {since, heardAt} (milliseconds), now if it is known, and at each change
//   refresh   requests the figures of the page: called when the stream is live again, and every 10 s while it is
//             not; an error is left for the next time
export function follow({ types, onEvent, onUsage, onState, refresh, signal }) {
  if (signal.aborted) return;
  const follower = { types: types && new Set(types), onEvent, onUsage, onState, refresh };
  followers.add(follower);
  signal.addEventListener("abort", () => {
    followers.delete(follower);
    setTimeout(rest, LINGER_MS);
  });
  begin();
  mark();
  const missed = early?.events.filter((event) => !types || follower.types.has(event.type)) ?? [];
  if (missed.length) setTimeout(() => missed.forEach((event) => signal.aborted || call(onEvent, event)));
  if (stream.state !== "opening") onState?.(stream.state, { since: stream.since, heardAt: stream.heardAt });
}

// Opens the stream for a page, and is done when it is live or known to be away, or after a while. The page requests its
// figures from then on, once; events until `begun(signal)` also reach followers that come a moment later.
export function opening(signal) {
  early = { signal, events: [] };
  return new Promise((resolve) => {
    setTimeout(resolve, OPENING_MS);
    follow({ onState: resolve, signal });
  });
}

// The page of `signal` has its figures, and follows.
export function begun(signal) {
  if (early?.signal === signal) early = null;
}

function begin() {
  if (tab.reading) return;
  const reading = new AbortController();
  tab.reading = reading;
  tab.ticking = setInterval(tick, TICK_MS);
  if (globalThis.navigator.locks) {
    tab.channel = new BroadcastChannel(NAME);
    tab.channel.addEventListener("message", ({ data }) => hear(data));
    tab.channel.postMessage({ kind: "hello" });
    navigator.locks.request(NAME, { signal: reading.signal }, () => read(reading.signal)).catch(unlessAborted);
  } else {
    read(reading.signal);
  }
}

// No page follows: another tab may read.
function rest() {
  if (!followers.size && tab.reading) ended();
}

// The next follower begins anew.
function ended() {
  tab.reading.abort();
  clearInterval(tab.ticking);
  tab.channel?.close();
  Object.assign(tab, { reading: null, isHolder: false, channel: null });
  Object.assign(stream, { state: "opening", since: Date.now(), heardAt: null });
  mark();
}

function unlessAborted(error) {
  if (error.name !== "AbortError") throw error;
}

// Reads, again and again, until the tab rests or the login is over.
async function read(signal) {
  tab.isHolder = true;
  for (let failures = 0; !signal.aborted; ) {
    let pause = 0;
    try {
      for await (const frame of listened(signal)) {
        failures = 0;
        told({ kind: "frame", frame });
      }
    } catch (error) {
      if (signal.aborted || error.status === 401) break;
      pause = (error.retryAfter ?? 0) * 1000;
    }
    if (signal.aborted) break;
    told({ kind: "lost" });
    failures += 1;
    await paused(Math.max(pause, backedOff(failures)), signal);
  }
  if (!signal.aborted) ended();
}

// One connection. It is given up when it is silent for longer than the server ever is.
async function* listened(signal) {
  const connection = new AbortController();
  const leave = () => connection.abort();
  signal.addEventListener("abort", leave);
  let timer = setTimeout(leave, SILENCE_MS);
  try {
    const options = { signal: connection.signal, lastEventId: stream.lastId, heartbeats: true };
    for await (const frame of events(PATH, options)) {
      clearTimeout(timer);
      timer = setTimeout(leave, SILENCE_MS);
      if (frame.event === "bye") return;
      yield frame;
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", leave);
    connection.abort();
  }
}

// Half of it by chance: the clients of a restarted server do not come back together.
function backedOff(failures) {
  const longest = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (failures - 1));
  return longest * (0.5 + Math.random() / 2);
}

// Ends early when the network is back.
function paused(milliseconds, signal) {
  return new Promise((resolve) => {
    const over = new AbortController();
    const end = () => {
      clearTimeout(timer);
      over.abort();
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    addEventListener("online", end, { signal: over.signal });
    signal.addEventListener("abort", end, { signal: over.signal });
  });
}

// Tells this tab and the others what the reader has heard.
function told(message) {
  const dated = { ...message, at: Date.now() };
  tab.channel?.postMessage(dated);
  hear(dated);
}

function hear({ kind, frame, at, known }) {
  if (kind === "hello") {
    if (tab.isHolder) tab.channel.postMessage({ kind: "known", known: { ...stream } });
  } else if (kind === "known") {
    if (stream.heardAt === null) turn(known.state, known);
  } else if (kind === "lost") {
    turn("lost", { since: at });
  } else {
    turn("live", { since: at, heardAt: at });
    if (frame.event === "usage") each("onUsage", frame.data);
    else if (frame.event !== "heartbeat") happened(frame);
  }
}

function turn(state, { since, heardAt, lastId }) {
  const before = stream.state;
  if (heardAt) stream.heardAt = heardAt;
  if (lastId) stream.lastId = lastId;
  if (state === before || state === "opening") return;
  Object.assign(stream, { state, since });
  tab.polledAt = Date.now();
  mark();
  each("onState", state, { since, heardAt: stream.heardAt });
  if (state === "live") refreshed();
}

// An event that comes a second time, by a replay, is the same event.
function happened({ id, data }) {
  if (seen.has(id)) return;
  seen.add(id);
  if (seen.size > REMEMBERED) seen.delete(seen.values().next().value);
  stream.lastId = id;
  if (early && early.events.length < REMEMBERED) early.events.push(data);
  for (const follower of [...followers]) {
    if (!follower.types || follower.types.has(data.type)) call(follower.onEvent, data);
  }
}

function each(name, ...values) {
  for (const follower of [...followers]) call(follower[name], ...values);
}

// An error of one page must not end the stream for the others.
function call(handler, ...values) {
  try {
    handler?.(...values);
  } catch (error) {
    reportError(error);
  }
}

function refreshed() {
  for (const { refresh } of [...followers]) {
    refresh?.().catch((error) => {
      if (error.name !== "ApiError" && error.name !== "AbortError") reportError(error);
    });
  }
}

function tick() {
  const now = Date.now();
  if (stream.state === "live" && now - stream.heardAt > SILENCE_MS) turn("lost", { since: now });
  if (stream.state === "lost" && now - tab.polledAt > POLL_MS) {
    tab.polledAt = now;
    refreshed();
  }
  mark();
}

// The age of the figures, in the top bar; while they are not live, elements of the class "is-live" are grey.
function mark() {
  document.documentElement.dataset.live = stream.state;
  const place = document.getElementById("live");
  if (!place) return;
  const { state, heardAt } = stream;
  let text = "";
  if (heardAt !== null) text = t(`live.${state}`, { age: aged(Date.now() - heardAt) });
  else if (state === "lost") text = t("live.away");
  if (place.textContent !== text) place.textContent = text;
}

function aged(milliseconds) {
  const seconds = Math.max(0, milliseconds) / 1000;
  const form = { style: "unit", unit: "second", unitDisplay: "narrow", maximumFractionDigits: seconds < 10 ? 1 : 0 };
  return new Intl.NumberFormat(language(), form).format(seconds);
}
