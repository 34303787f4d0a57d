// Text of others: always text nodes, with what would deceive its reader written out, and long text folded.
import { useState } from "preact/hooks";

// The rule of midstream.core.text.visible: controls, bidirectional overrides, lone surrogates; characters without width
// where they stand next to ASCII.
const HIDDEN =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ud800-\udfff\ufff9-\ufffb\ufffe\uffff\u{e0000}-\u{e007f}\xad\u061c\u180e\u200b-\u200f\u2060-\u2065\ufeff]+/gu;
const STEERS =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ud800-\udfff\ufff9-\ufffb\ufffe\uffff\u{e0000}-\u{e007f}]/u;
const ASCII = /[!-~]/;

const escapeUnits = (text) =>
  text
    .split("")
    .map((unit) => unit.charCodeAt(0))
    .map((code) => (code < 0x20 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`))
    .join("");

/** Pieces of a text: strings as they are, and {written} for what is written out. */
export function pieces(text) {
  const whole = String(text ?? "").replaceAll("\r\n", "\n");
  const found = [];
  let last = 0;
  for (const match of whole.matchAll(HIDDEN)) {
    const [run] = match;
    const end = match.index + run.length;
    const next = [whole[match.index - 1] ?? "", whole[end] ?? ""];
    if (!STEERS.test(run) && !next.some((letter) => ASCII.test(letter))) continue;
    if (match.index > last) found.push(whole.slice(last, match.index));
    found.push({ written: escapeUnits(run) });
    last = end;
  }
  if (last < whole.length) found.push(whole.slice(last));
  return found;
}

/** The same as one string, for titles and labels. */
export const visible = (text) => pieces(text).map((piece) => piece.written ?? piece).join("");

export const cut = (text, limit) => {
  const whole = String(text ?? "");
  return whole.length <= limit ? whole : `${whole.slice(0, limit - 1)}…`;
};

/** A text as children of an element. */
export const textNodes = (text) =>
  pieces(text).map((piece) => (typeof piece === "string" ? piece : <span class="written">{piece.written}</span>));

/** A name or a sentence in a line. */
export const Text = ({ text, class: kind = "" }) => <bdi class={kind}>{textNodes(text)}</bdi>;

/** One line of a text that may be long: cut in the DOM, all of it up to a limit in the tooltip. */
export function Short({ text, limit = 160, class: kind = "" }) {
  const whole = String(text ?? "");
  const tooltip = whole.length > limit ? visible(cut(whole, 1000)) : undefined;
  return (
    <bdi class={kind} title={tooltip}>
      {textNodes(cut(whole, limit))}
    </bdi>
  );
}

const FOLDED = 1500;
const LINES = 18; // of a box
const MORE = 200_000; // characters that one press adds; a browser draws more of them slowly

/** Where the line `count` of a text ends; its length if there are no more. */
function lineEnd(text, count) {
  let end = -1;
  for (let line = 0; line < count; line++) {
    end = text.indexOf("\n", end + 1);
    if (end < 0) return text.length;
  }
  return end;
}

/** A text as a box that keeps its line breaks (`block`) or as a paragraph; beyond `limit` characters it is folded. */
export function Long({ text, block = false, limit = FOLDED, lines = block ? LINES : Infinity, tone = "", label }) {
  const whole = String(text ?? "");
  const first = Math.min(limit, lineEnd(whole, lines));
  const [length, setLength] = useState(0);
  const folds = whole.length > first * 1.2;
  const body = folds ? whole.slice(0, Math.max(first, length)) : whole;
  const rest = whole.length - body.length;
  const kind = `long ${tone}`.trim();
  return (
    <>
      {block ? <pre class={kind}>{textNodes(body)}</pre> : <p class={kind}>{textNodes(body)}</p>}
      {folds && (
        <p class="more">
          {rest > 0 ? (
            <button type="button" class="link" onClick={() => setLength(length + MORE)}>
              {rest <= MORE ? `Show all ${whole.length.toLocaleString("en")} characters` : `Show ${MORE.toLocaleString("en")} more of ${rest.toLocaleString("en")} characters`}
              {label ? <span class="hidden"> of {label}</span> : null}
            </button>
          ) : (
            <button type="button" class="link" onClick={() => setLength(0)}>
              Show less
            </button>
          )}
        </p>
      )}
    </>
  );
}
