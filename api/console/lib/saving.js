// Files that the reader saves.

import { fetchFile } from "./api.js";
import { el } from "./dom.js";

// Saves a file of the API on the reader's machine. The cookie counts beside a header alone, so a plain
// link would be refused.
export async function save(path, name) {
  const address = URL.createObjectURL(await fetchFile(path));
  opened(address, name);
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

// Saves what an address leads to.
export function opened(address, name) {
  const link = el("a", { href: address, download: name, rel: "noreferrer", hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
}
