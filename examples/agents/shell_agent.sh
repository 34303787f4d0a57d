#!/bin/sh
# An agent in sh: curl asks the model, awk calculates, python3 reads and writes JSON.
set -eu
directory=$(mktemp -d)
trap 'rm -r "$directory"' EXIT
chat=$directory/chat.json

calculate() {
  found=''
  case $1 in
    *[!0-9.+*/\ \(\)-]*) ;;
    *) found=$(awk "BEGIN { printf \"%.12g\", $1 }" 2>/dev/null) || found='' ;;
  esac
  case $found in
    *[0-9]*) echo "$found" ;;
    *) echo "error: only numbers, + - * / and brackets are known" ;;
  esac
}

# Reads the chat as `chat`, a reply as `reply`; $1 is Python, the rest its arguments `a`.
json() {
  python3 -c "import json, os, sys; a = sys.argv[2:]; path = '$chat'
chat = json.load(open(path)) if os.path.exists(path) else []
add = lambda message: json.dump([*chat, message], open(path, 'w'))
$1" "$@"
}

run() {  # the answer to question $1; nothing if the model still calls tools after all turns
  json 'add({"role": "system", "content": "Use the tool to calculate. Then answer with the number alone."})'
  json 'add({"role": "user", "content": a[0]})' "$1"
  for _ in 1 2 3 4 5 6 7 8; do
    json 'expression = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
tool = {"name": "calculate", "description": "Computes numbers, + - * / and brackets.", "parameters": expression}
tools = [{"type": "function", "function": tool}]
print(json.dumps({"model": a[0], "messages": chat, "tools": tools}))' "$OPENAI_MODEL" >"$directory/body"
    curl -sS --fail "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" \
      -H "Content-Type: application/json" -d "@$directory/body" >"$directory/reply"
    json 'message = json.load(open(a[0]))["choices"][0]["message"]
add(message)
for call in message.get("tool_calls") or []:
    given = json.loads(call["function"]["arguments"])
    print(call["id"], *str(given.get("expression", "")).split() * (call["function"]["name"] == "calculate"))' "$directory/reply" >"$directory/calls"
    if ! [ -s "$directory/calls" ]; then
      json 'print(chat[-1]["content"])'
      return
    fi
    while read -r id expression; do
      json 'add({"role": "tool", "tool_call_id": a[0], "content": a[1]})' "$id" "$(calculate "$expression")"
    done <"$directory/calls"
  done
}

# midstream: begin
question=$(python3 -c 'import json, os; print(json.load(open(os.environ["MIDSTREAM_TASK"]))["question"])')
run "$question" >"$MIDSTREAM_ANSWER"
# midstream: end
