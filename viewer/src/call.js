// One call of a model: its completion, its exact prompt on demand with what changed, and the way to its tokens.
import { useState } from "preact/hooks";
import { address } from "./address.js";
import { counted, integer } from "./numbers.js";
import { Shown } from "./shown.js";
import { paths } from "./source.js";
import { useDoc } from "./state.js";
import { Long, Short, Text, textNodes } from "./text.js";

const EDGE = 160; // characters of an unchanged part that stay in view at each end

/** A part of a message: unchanged parts are folded in the middle, new and gone ones marked in words and by a sign. */
function Piece({ piece, changes }) {
  const [whole, setWhole] = useState(false);
  const limit = piece.op === "same" && changes ? 4 * EDGE : 4000;
  if (whole || piece.text.length <= limit) {
    if (piece.op === "new" && changes) return <ins>{textNodes(piece.text)}</ins>;
    if (piece.op === "gone") return <del>{textNodes(piece.text)}</del>;
    return <span class={changes ? "same" : ""}>{textNodes(piece.text)}</span>;
  }
  const [head, tail] = piece.op === "same" && changes ? [EDGE, EDGE] : [3000, 300];
  const Kind = { new: changes ? "ins" : "span", gone: "del", same: "span" }[piece.op] ?? "span";
  return (
    <Kind class={piece.op}>
      {textNodes(piece.text.slice(0, head))}
      <button type="button" class="gap" onClick={() => setWhole(true)}>
        {counted(piece.text.length - head - tail, "character")} {piece.op === "same" && changes ? "unchanged" : "more"}
      </button>
      {textNodes(piece.text.slice(piece.text.length - tail))}
    </Kind>
  );
}

function Prompt({ where, n }) {
  const state = useDoc(paths.call(where.run, where.part, where.place, n));
  return (
    <Shown state={state}>
      {(doc) => {
        const changes = doc.previous !== null;
        const size = (op) => doc.messages.reduce((sum, message) => sum + message.pieces.reduce((all, piece) => all + (piece.op === op ? piece.text.length : 0), 0), 0);
        return (
          <div class="prompt">
            <p class="soft">
              {changes ? (
                <>Against the previous call as <Text text={doc.role} />: <ins>{integer(size("new"))} characters new</ins>, <del>{integer(size("gone"))} gone</del>, {integer(size("same"))} the same.</>
              ) : (
                <>The first call as <Text text={doc.role} />: {integer(size("new") + size("same"))} characters.</>
              )}
            </p>
            {doc.messages.map((message, index) => (
              <div class="message" key={index}>
                <h5><Text text={message.role} /></h5>
                <pre>{message.pieces.map((piece, place) => <Piece key={place} piece={piece} changes={changes} />)}</pre>
              </div>
            ))}
            {Object.keys(doc.settings).length > 0 && (
              <p class="soft mono"><Short text={Object.entries(doc.settings).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  ")} limit={600} /></p>
            )}
          </div>
        );
      }}
    </Shown>
  );
}

export function Call({ call, where }) {
  const [asked, setAsked] = useState(false);
  return (
    <div class="call">
      <p class="call-line">
        <b><Text text={call.role} /></b>
        <Short class="soft" text={call.model || call.engine} limit={60} />
        <span class="soft">{integer(call.prompt_tokens)} → {integer(call.completion_tokens)} tokens</span>
        {call.finish && call.finish !== "stop" && <span class="warn"><Text text={call.finish} /></span>}
        {call.policy_version != null && <span class="soft">policy version {integer(call.policy_version)}</span>}
        {call.trained && <span class="mark c1">trained</span>}
        {where && (
          <button type="button" class="link" aria-expanded={asked} onClick={() => setAsked(!asked)}>
            {asked ? "Hide prompt" : "Prompt"}
          </button>
        )}
        {where && call.tokens && <a href={address([...where.names, where.turn, 0], { call: call.n })} data-tokens>Tokens</a>}
      </p>
      {call.error && <Long block text={call.error} tone="bad" />}
      {call.retries.map((retry, index) => <Long key={index} text={`retry: ${retry}`} tone="soft" />)}
      {asked && <Prompt where={where} n={call.n} />}
      <Long block text={call.completion} tone="completion" />
    </div>
  );
}
