// Members of the staff: their roles, locks, factors, keys, rescues and attempts to log in; and the caller's own account.

import { actButton, ask, at, done, folded, form, heading, may, moment, state, table } from "./staff_parts.js";
import { el, replace } from "./dom.js";

const WHY = ["reason", "Reason for the staff", { maxlength: 500 }];
const PASSWORD = { type: "password", autocomplete: "new-password", maxlength: 128 };

// What a member needs for the first login, until the page is left.
const factorOf = ({ email, authenticator, recovery_codes: codes }) => el("div", { role: "status" },
  el("p", {}, `Shown once, for ${email}: the address for an authenticator, and the recovery codes.`),
  el("pre", { class: "log" }, [authenticator, ...codes].join("\n")));

function memberActs(member) {
  if (member.id === state.me.id) return null;
  const act = (word, words, result) => may(`staff.${word.replace("-", "_")}`) && actButton(words, async (body) =>
    result(await ask("POST", `/staff/${at(member.id)}/${word}`, body)));
  return [
    member.locked_at ? act("unlock", "Unlock", () => "unlocked") : act("lock", "Lock", () => "locked"), " ",
    member.role !== "support" && may("staff.role") && actButton("Make support", async (body) => {
      await ask("POST", `/staff/${at(member.id)}/role`, { ...body, role: "support" });
      return "is support now";
    }), " ",
    act("reset-factor", "Replace the factor", factorOf),
  ];
}

function newMember() {
  const place = el("div", {});
  return folded("Add a member", el("p", { class: "hint" }, "The role is support. Finance and operators are made by a command on the machine."), form([
    ["email", "E-mail address of the member", { type: "email", maxlength: 254 }], ["password", "First password", PASSWORD], WHY,
  ], "Add", async (body) => replace(place, factorOf(await ask("POST", "/staff", { ...body, role: "support" })))), place);
}

function newKey() {
  const place = el("div", { role: "status" });
  return folded("Make a key", form([
    ["member", "E-mail address of its member", { type: "email", maxlength: 254 }], ["name", "Name of the key", { maxlength: 100 }],
    ["scope", "Scope", { options: [["read"], ["act"], ["abuse"]] }], ["allow_ips", "Networks of its programs, with spaces between", { maxlength: 500 }],
    ["days", "Days until the key expires", { inputmode: "numeric", pattern: "[1-9][0-9]?", value: "90" }], WHY,
  ], "Make key", async ({ scope, allow_ips: networks, days, ...body }) => {
    const made = await ask("POST", "/keys", { ...body, scopes: [scope], allow_ips: networks.split(/\s+/).filter(Boolean), expires_in_days: Number(days) });
    replace(place, el("p", {}, "Shown once: ", el("code", {}, made.key)));
  }), place);
}

export async function staffPage() {
  const none = {};
  const [{ staff }, { keys = [] }, { rescues = [] }, { attempts = [] }] = await Promise.all([
    ask("GET", "/staff"),
    may("staff.key.list") ? ask("GET", "/keys") : none,
    may("staff.rescues") ? ask("GET", "/rescues") : none,
    may("staff.attempts") ? ask("GET", "/attempts?limit=20") : none,
  ]);
  return [
    heading("Staff"),
    table("Members", staff, { address: (each) => each.email, role: (each) => each.role, state: (each) => (each.locked_at ? "locked" : "active"),
      "recovery codes": (each) => each.codes_left, acts: memberActs }),
    may("staff.create") && newMember(),
    table("Rescues", rescues, { operator: (each) => each.email, "at (UTC)": (each) => moment(each.at), acknowledged: (each) => each.acknowledged_by ??
      (may("staff.acknowledge") && actButton("Acknowledge", async (body) => {
        await ask("POST", `/rescues/${each.id}/acknowledge`, body);
        return "acknowledged";
      })) }),
    table("Keys", keys, { key: (each) => each.prefix, member: (each) => each.member, name: (each) => each.name, scopes: (each) => each.scopes.join(", "),
      networks: (each) => each.allow_ips.join(", "), state: (each) => each.status, "expires (UTC)": (each) => moment(each.expires_at),
      acts: (each) => (each.status !== "active" || !may("staff.key.revoke") ? null : actButton("Revoke", async (body) => {
        await ask("POST", `/keys/${each.id}/revoke`, body);
        return "revoked";
      })) }),
    may("staff.key.create") && newKey(),
    table("Newest attempts to log in", attempts, { "at (UTC)": (each) => moment(each.at), address: (each) => each.email ?? "unknown",
      network: (each) => each.network, result: (each) => (each.right_at ? "right" : "wrong") }),
  ];
}

// The caller's own account.
export function mePage() {
  return [
    heading("My account"),
    el("p", {}, `${state.me.email} · ${state.me.role}`),
    folded("Change my password", form([["old_password", "Present password", { ...PASSWORD, autocomplete: "current-password" }],
      ["code", "Code of the authenticator", { autocomplete: "one-time-code", maxlength: 64 }], ["new_password", "New password", PASSWORD]], "Change password", async (body) => {
      await ask("POST", "/password", body);
      await done("the password is changed; other logins have ended");
    })),
    may("staff.declare") && folded("Declare my own account as a user", el("p", { class: "hint" }, "You do no act about it from then on."),
      form([["user", "User", { maxlength: 254 }], WHY], "Declare", async (body) => {
        await ask("POST", `/staff/${at(state.me.id)}/declare`, body);
        await done("the account is declared");
      })),
  ];
}
