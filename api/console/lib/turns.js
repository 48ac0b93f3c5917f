// Turns of requests for one thing. A page that asks again, as after an event, shows the answer to its newest request alone:
// an older one may come later.

export class Turns {
  #newest = 0;

  // Begins a turn; returns a function whose result is whether it is the newest one.
  begin() {
    this.#newest += 1;
    const mine = this.#newest;
    return () => mine === this.#newest;
  }
}
