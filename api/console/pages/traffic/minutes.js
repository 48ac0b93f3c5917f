// Use of sessions in the last 15 minutes, in steps of 5 seconds; a step in which the stream was away is unknown.

const STEP_MS = 5_000;
const STEPS = 180;

export class Minutes {
  constructor(now) {
    this.steps = new Map(); // by number: {session: bytes}
    this.last = null; // of a session: the bytes that it had used when it was last told
    this.early = []; // frames that came before the sessions' first counts were known
    this.isLive = false;
    this.turned(false, now);
  }

  // The stream is there from now on, or is not.
  turned(isLive, now) {
    this.fill(now);
    this.isLive = isLive;
    if (isLive) return;
    this.last = null; // bytes of the meantime belong to no step
    this.early = [];
  }

  // Counts of the active sessions as the stream begins; later sessions begin with nothing.
  begin(sessions, now) {
    this.last = new Map(sessions.map((each) => [each.id, each.bytes_used]));
    for (const frame of this.early.splice(0)) this.moved(frame, now);
  }

  moved(frame, now) {
    this.fill(now);
    if (this.last === null) {
      this.early.push(frame);
      return;
    }
    const { session_id: id, bytes_used: used } = frame;
    const before = this.last.get(id) ?? 0;
    if (used <= before) return;
    this.last.set(id, used);
    const step = this.step(Math.floor(now / STEP_MS));
    step[id] = (step[id] ?? 0) + used - before;
  }

  // Steps in which the stream was there are known, also if nothing was used.
  fill(now) {
    const present = Math.floor(now / STEP_MS);
    if (this.isLive) for (let each = this.filled + 1; each <= present; each += 1) this.step(each);
    this.filled = present;
    for (const each of this.steps.keys()) if (each <= present - STEPS) this.steps.delete(each);
  }

  step(number) {
    if (!this.steps.has(number)) this.steps.set(number, {});
    return this.steps.get(number);
  }

  // The steps until now, the sessions that are in them, and how many bytes they have used together.
  points(now) {
    this.fill(now);
    const present = Math.floor(now / STEP_MS);
    const points = [];
    const sums = new Map();
    for (let each = present - STEPS + 1; each <= present; each += 1) {
      const parts = this.steps.get(each) ?? null;
      points.push({ at: (each * STEP_MS) / 1000, parts, isOpen: each === present });
      for (const [id, used] of Object.entries(parts ?? {})) sums.set(id, (sums.get(id) ?? 0) + used);
    }
    const sessions = [...sums.keys()].toSorted((one, other) => sums.get(other) - sums.get(one));
    return { points, sessions, total: [...sums.values()].reduce((one, other) => one + other, 0) };
  }
}
