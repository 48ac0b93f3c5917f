// The secret of a letter's link: out of the address at once, so that neither the history nor a
// screenshot keeps it. It stays in this page's memory, since the page may be drawn again.

const kept = new Map();

export function taken({ path, query }) {
  const token = query.get("token");
  if (token) {
    kept.set(path, token);
    history.replaceState(history.state, "", path);
  }
  return kept.get(path) ?? "";
}
