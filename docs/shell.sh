# Functions for the commands in docs/how-to. In the folder of the repository: . docs/shell.sh
PATH=$PWD/.venv/bin:$PATH
API=${API:-http://127.0.0.1:8080}
umask 077
# One person pays in for all pages; a service of several people needs a second person for less.
export PROXYD_STAFF__APPROVAL_USD=1000 PROXYD_STAFF__APPROVAL_CREDITS=100000

# Call the API with a body of JSON; a refusal is printed.
send() { curl -sS -H 'Content-Type: application/json' "$@"; }

# Print one field of an answer, such as `field id` or `field webhook.id`; print an answer without it, and fail.
field() { python3 -c 'import json, sys
answer = body = json.loads(sys.stdin.read() or "{}")
for name in sys.argv[1].split("."):
    body = body[name] if name in body else sys.exit(json.dumps(answer))
print(body)' "$1"; }

# Open an account, and print its token.
account() { send "$API/auth/register" -d "{\"username\": \"$1\", \"email\": \"$1@example.com\",
  \"password\": \"correct horse\"}" | field token; }

# Repeat a command until it succeeds, for a minute.
wait_for() { for _ in $(seq 600); do if "$@"; then return 0; fi; sleep 0.1; done
echo "this took more than a minute: $*" >&2; return 1; }
