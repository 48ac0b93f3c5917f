"""The pages that links in e-mails and referrals lead to, where there is no web application.

A page shows a form. Its script reads the secret from the address bar and posts it as JSON when the
button is pressed: merely fetching the page, as mail scanners do, does not use the secret up. The
server never reads the query string.
"""

import base64
import hashlib

from api.pages import Page

_STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 24rem; margin: 4rem auto; padding: 0 1rem }
label { display: block; margin: 1rem 0 }
input { display: block; width: 100%; box-sizing: border-box; font: inherit; padding: .4rem }
button { font: inherit; padding: .4rem 1rem }
[hidden] { display: none }
"""

_SCRIPT = """
"use strict";
const form = document.querySelector("form");
const button = form.querySelector("button");
const output = document.querySelector("output");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = Object.fromEntries(new FormData(form));
  const secret = new URLSearchParams(location.search).get(form.dataset.secret);
  if (secret) body[form.dataset.secret] = secret;
  button.disabled = true;
  try {
    const answer = await fetch(form.dataset.path, {
      method: "POST",
      headers: {"Content-Type": "application/json"},
      body: JSON.stringify(body),
    });
    const reply = await answer.json();
    output.textContent = reply.ok ? form.dataset.done : reply.error.message;
    form.hidden = reply.ok;
    if (reply.referral_applied === false) output.textContent += " The referral code is not valid.";
  } catch {
    output.textContent = "The server does not answer; try again.";
  }
  button.disabled = false;
});
"""

_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<form method="post" data-path="auth/{path}" data-secret="{secret}" data-done="{done}">
{fields}<button>{title}</button>
</form>
<p><output></output></p>
<noscript><p>This page needs JavaScript.</p></noscript>
<script>{script}</script>
</body>
</html>
"""

_CHOICE = """<label>{label}
<input name="password" type="password" autocomplete="new-password" minlength="8" maxlength="128"
 required></label>
"""
_NAME_AND_ADDRESS = """<label>User name
<input name="username" autocomplete="username" maxlength="50" required></label>
<label>E-mail address
<input name="email" type="email" autocomplete="email" maxlength="254" required></label>
"""


def landing_pages() -> dict[str, Page]:
    """Return the pages, by path."""
    return {
        "/verify": _page("Confirm my address", "verify", "token", "Your address is confirmed."),
        "/reset": _page(
            "Choose a new password",
            "password/reset",
            "token",
            "Your password has been changed; log in with the new one.",
            _CHOICE.format(label="New password"),
        ),
        "/register": _page(
            "Open an account",
            "register",
            "ref",
            "Your account is open; an e-mail asks you to confirm your address.",
            _NAME_AND_ADDRESS + _CHOICE.format(label="Password"),
        ),
    }


def _page(title: str, path: str, secret: str, done: str, fields: str = "") -> Page:
    html = _HTML.format(
        title=title,
        path=path,
        secret=secret,
        done=done,
        fields=fields,
        style=_STYLE,
        script=_SCRIPT,
    )
    policy = (
        f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(_STYLE)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",  # the address holds a secret
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return Page("text/html; charset=utf-8", html.encode(), headers)


def _source(text: str) -> str:
    """Return what allows this one text in a page (Content Security Policy, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
