// The service as its operator presents it: the name and the logo are in the shell, the rest the API knows.

import { get } from "./api.js";

const shown = document.querySelector('meta[name="application-name"]');

// The name of the service.
export const name = () => shown.content;

// The address of its logo; "" without one.
export const logo = () => shown.dataset.logo;

let asked = null;

// The public facts of the service: its contact, the mode of registration, its texts. Asked for once; after a failure again.
export function facts() {
  asked ??= get("/api/site").catch((error) => {
    asked = null;
    throw error;
  });
  return asked;
}
