// The public side: notices on the page of the status, invitations, and the published texts.

import { actButton, ask, done, folded, form, heading, may, moment, table } from "./staff_parts.js";

const WHY = ["reason", "Reason for the staff", { maxlength: 500 }];

// A text in Markdown. A new version of the terms or the policy is valid 14 days later at the earliest.
const publishing = () => folded("Publish a text", form([
  ["kind", "Kind", { options: [["terms"], ["privacy"], ["imprint"]] }], ["locale", "Language", { maxlength: 8, value: "en" }],
  ["text", "Text in Markdown", { rows: 12, maxlength: 100_000 }],
  ["day", "Valid from (UTC day), empty for now", { type: "date", required: false }],
  ["version", "Version that it translates, empty for a new one", { inputmode: "numeric", pattern: "[1-9][0-9]{0,5}", required: false }], WHY,
], "Publish", async ({ day, version, ...body }) => {
  const more = { ...(day ? { valid_from: `${day}T00:00:00Z` } : {}), ...(version ? { version: Number(version) } : {}) };
  await ask("POST", "/site/texts", { ...body, ...more });
  await done("the text is published");
}));

export async function sitePage() {
  const { texts, notices, invitations } = await ask("GET", "/site");
  return [
    heading("Public side"),
    table("Notices", notices, { title: (each) => each.title, severity: (each) => each.severity, text: (each) => each.text,
      "began (UTC)": (each) => moment(each.began_at), "ended (UTC)": (each) => moment(each.ended_at),
      acts: (each) => (each.ended_at || !may("status.notice") ? null : actButton("End", async (body) => {
        await ask("POST", `/site/notices/${each.id}/end`, body);
        return "ended";
      })) }),
    may("status.notice") && folded("Show a notice", form([["title", "Title", { maxlength: 120 }],
      ["text", "Text", { rows: 2, maxlength: 2000, required: false }],
      ["severity", "Severity", { options: [["info"], ["warning"], ["outage"]] }], WHY], "Show notice", async (body) => {
      await ask("POST", "/site/notices", body);
      await done("the notice is shown");
    })),
    table("Invitations", invitations, { id: (each) => each.id, uses: (each) => `${each.uses_left} of ${each.uses} left`,
      "expires (UTC)": (each) => moment(each.expires_at),
      acts: (each) => (!each.uses_left || !may("site.invite") ? null : actButton("Withdraw", async (body) => {
        await ask("POST", `/site/invitations/${each.id}/withdraw`, body);
        return "withdrawn";
      })) }),
    may("site.invite") && folded("Invite", form([["uses", "Number of accounts", { inputmode: "numeric", pattern: "[1-9][0-9]{0,4}", value: "1" }],
      ["days", "Days until it expires", { inputmode: "numeric", pattern: "[1-9][0-9]{0,2}", value: "30" }], WHY], "Invite", async ({ uses, days, reason }) => {
      const { link: shown } = await ask("POST", "/site/invitations", { uses: Number(uses), days: Number(days), reason });
      await done(`Shown once: ${shown}`);
    })),
    table("Published texts", texts, { kind: (each) => each.kind, version: (each) => each.version, language: (each) => each.locale,
      "valid from (UTC)": (each) => moment(each.valid_from) }),
    may("site.publish") && publishing(),
  ];
}
