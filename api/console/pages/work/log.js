// The log of a job while it is written: bounded, followed over broken connections.

import { ApiError, events } from "../../lib/api.js";
import { el, replace } from "../../lib/dom.js";
import { count, t } from "../../lib/words.js";
import { Line } from "./terminal.js";

const KEPT_CHARACTERS = 200_000; // of the end; the whole is a download
const AGAIN_MS = [500, 2000, 5000, 10_000];

// Shows the log of a job as it comes: {node, endsWith}. `onEnd` is called when no more will come; `endsWith(text)` says
// then whether what the program has printed ends with a text.
export function logOf(jobId, signal, onEnd) {
  const text = el("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": t("work.log") });
  const note = el("p", { class: "hint", role: "status" }, t("work.log.waiting"));
  const node = el("div", null, note, text);
  let length = 0;
  let open = null; // the line at the end: {kind, line, node}
  let isOver = false;

  function write(piece, kind) {
    const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 20;
    if (open?.kind !== kind) open = { kind, line: new Line(), node: text.appendChild(el("span", { class: kind })) };
    const over = open.line.write(piece);
    length += over.length + open.line.text.length - open.node.textContent.length;
    if (over) open.node.before(el("span", { class: kind }, over));
    open.node.textContent = open.line.text;
    while (length > KEPT_CHARACTERS && text.childNodes.length > 1) {
      length -= text.firstChild.textContent.length;
      text.firstChild.remove();
    }
    if (isAtEnd) text.scrollTop = text.scrollHeight;
  }

  function take({ event, data }) {
    if (event === "attempt") write(`${t("work.log.attempt", { n: data.attempt })}\n`, "mark");
    else if (event === "log") write(data.text, data.stream === "err" ? "err" : "out");
    else if (event === "cut") write(`${t("work.log.cut", { n: count(data.next_offset - data.offset) })}\n`, "mark");
  }

  async function follow() {
    let lastEventId;
    for (let failed = 0; !signal.aborted; failed += 1) {
      try {
        for await (const told of events(`/api/jobs/${jobId}/log`, { signal, lastEventId })) {
          failed = 0;
          lastEventId = told.id || lastEventId;
          replace(note, t("work.log.live"));
          take(told);
          if (told.event !== "end") continue;
          isOver = true;
          replace(note, length ? t("work.log.over") : t("work.log.empty"));
          return onEnd?.();
        }
      } catch (error) {
        if (signal.aborted) return;
        const isFinal = error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429;
        if (isFinal) return replace(note, error.message);
      }
      replace(note, t("work.log.lost"));
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS[Math.min(failed, AGAIN_MS.length - 1)]));
    }
  }

  function endsWith(result) {
    const printed = [...text.querySelectorAll(".out")].map((each) => each.textContent).join("");
    return isOver && printed.trimEnd().endsWith(result.trimEnd());
  }

  follow();
  return { node, endsWith };
}
