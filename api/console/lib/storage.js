// The wishes of a reader that this browser remembers; nothing secret. It may be forbidden to remember.

const here = new Map();

export function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return here.get(name) ?? null;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    here.set(name, String(value));
  }
}
