// The tokens of one call: a cell each, with id, text and log-probability as shade; which were trained, and in which row.
import { useLayoutEffect } from "preact/hooks";
import { address, go } from "./address.js";
import { useKeys } from "./keyboard.js";
import { counted, integer, number, signed } from "./numbers.js";
import { Shown } from "./shown.js";
import { paths } from "./source.js";
import { useDoc } from "./state.js";
import { Long, Short, Text, visible } from "./text.js";
import { WINDOW, useRollout } from "./trajectory.js";

const PAGE = 600; // cells in the DOM

/** Shades by log-probability: 0 is near certain, 5 a surprise. Edges in nats. */
const EDGES = [-0.05, -0.3, -0.9, -2, -4];
const shade = (logprob) => (logprob == null ? "none" : EDGES.filter((edge) => logprob < edge).length);
const WORDS = ["p > 95%", "95–74%", "74–41%", "41–14%", "14–2%", "p < 2%"];

// What a token's text looks like in a cell: spaces and line breaks are there to be seen.
const glyphs = (text) => visible(text).replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥");

const Cell = ({ token: [id, text, logprob], index, active, given }) => (
  <button type="button" data-token={index} tabindex={active ? 0 : -1} aria-pressed={active} class={`token ${given ? "given" : `shade-${shade(logprob)}`} ${active ? "active" : ""}`}>
    <bdi>{text === null ? "?" : text === "" ? "∅" : glyphs(text)}</bdi>
    <small>{id}</small>
  </button>
);

function Detail({ doc, index }) {
  const given = index < doc.prompt.length;
  const [id, text, logprob] = given ? doc.prompt[index] : doc.sampled[index - doc.prompt.length];
  return (
    <dl class="strip detail" aria-live="polite">
      <div><dt>Token</dt><dd>{integer(index + 1)} of {integer(doc.prompt.length + doc.sampled.length)}</dd></div>
      <div><dt>Text</dt><dd class="mono">{text === null ? "not known" : <Short text={JSON.stringify(text)} limit={80} />}</dd></div>
      <div><dt>Id</dt><dd class="mono">{id}</dd></div>
      <div><dt>Log-probability</dt><dd>{logprob == null ? "–" : `${number(logprob)} (${Number((Math.exp(logprob) * 100).toPrecision(3))}%)`}</dd></div>
      <div><dt>Role</dt><dd>{given ? "prompt" : doc.trained ? "completion, trained" : "completion, not trained"}</dd></div>
    </dl>
  );
}

function Cells({ doc, index, choose }) {
  const given = doc.prompt.length;
  const total = given + doc.sampled.length;
  const first = Math.floor(index / PAGE) * PAGE;
  const last = Math.min(total, first + PAGE);
  const cells = (from, to) => {
    const list = [];
    for (let place = from; place < to; place++) {
      const token = place < given ? doc.prompt[place] : doc.sampled[place - given];
      list.push(<Cell key={place} token={token} index={place} given={place < given} active={place === index} />);
    }
    return list;
  };
  const pick = (event) => {
    const cell = event.target.closest("[data-token]");
    if (cell) choose(Number(cell.dataset.token));
  };
  const cut = Math.min(last, Math.max(first, given));
  return (
    <div onClick={pick}>
      {total > PAGE && (
        <nav class="pager" aria-label="Tokens">
          <button type="button" disabled={first === 0} onClick={() => choose(first - PAGE)}>Previous {PAGE}</button>
          <span class="soft">tokens {integer(first + 1)} to {integer(last)} of {integer(total)}</span>
          <button type="button" disabled={last >= total} onClick={() => choose(last)}>Next {PAGE}</button>
          <button type="button" disabled={index === given} onClick={() => choose(given)}>Completion</button>
        </nav>
      )}
      {cut > first && (
        <section aria-label="Prompt">
          <h2>Prompt <span class="soft">{counted(given, "token")}, not trained</span></h2>
          <div class="tokens">{cells(first, cut)}</div>
        </section>
      )}
      {last > cut && (
        <section aria-label="Completion">
          <h2>Completion <span class="soft">{counted(doc.sampled.length, "token")}, {doc.trained ? "trained" : "not trained"}</span></h2>
          <div class="tokens">{cells(cut, last)}</div>
        </section>
      )}
    </div>
  );
}

/** Every call of the window that has tokens, in order, as [turn, call]. */
function callsWithTokens(trajectory) {
  const all = [
    ...trajectory.opening_calls.map((call) => [0, call]),
    ...trajectory.turns.flatMap((turn) => turn.calls.map((call) => [turn.index, call])),
    ...trajectory.closing.map((call) => ["end", call]),
  ];
  return all.filter(([, call]) => call.tokens);
}

function Body({ doc, choose, index }) {
  const total = doc.prompt.length + doc.sampled.length;
  return (
    <>
      <dl class="strip">
        <div><dt>Row</dt><dd>{doc.row == null ? "in no row" : `${integer(doc.row + 1)} of ${integer(doc.rows)}`}</dd></div>
        <div><dt>Advantage</dt><dd>{signed(doc.advantage)}</dd></div>
        <div><dt>Tokens</dt><dd>{integer(doc.prompt.length)} of the prompt, {integer(doc.sampled.length)} of the completion</dd></div>
        <div><dt>Log-probability</dt><dd>{number(doc.sampled.length ? doc.sampled.reduce((sum, token) => sum + (token[2] ?? 0), 0) / doc.sampled.length : null)} a token</dd></div>
      </dl>
      {doc.split && <Long text={`A row of its own begins here: ${doc.split}`} tone="warn" />}
      {!doc.texts && <p class="soft">The run does not keep the tokens' texts: cells show ids only.</p>}
      <p class="shades soft" aria-label="Shades by probability">
        {WORDS.map((word, place) => <span key={place} class={`shade-${place}`}>{word}</span>)}
      </p>
      {total > 0 ? (
        <>
          <Detail doc={doc} index={index} />
          <Cells doc={doc} index={index} choose={choose} />
        </>
      ) : (
        <p class="empty">No tokens were recorded.</p>
      )}
    </>
  );
}

export function Tokens({ at }) {
  const { run, part, task, rollout, turn } = at;
  const wish = Math.max(0, (Number(turn) || 1) - 1);
  const { state, place } = useRollout(at, { turn: Math.floor(wish / WINDOW) * WINDOW, limit: WINDOW });
  const calls = state.doc ? callsWithTokens(state.doc) : [];
  const ofTurn = calls.filter(([index]) => String(index) === turn);
  const chosen = calls.find(([, call]) => String(call.n) === at.query.call) ?? ofTurn.find(([, call]) => call.trained) ?? ofTurn[0];
  const n = chosen?.[1].n ?? at.query.call;
  const tokens = useDoc(n === undefined || place === undefined ? null : paths.tokens(run, part, place, n));
  const total = tokens.doc ? tokens.doc.prompt.length + tokens.doc.sampled.length : 0;
  const index = Math.max(0, Math.min(total - 1, Number(at.token) || 0));
  const here = [run, part, task, rollout, turn];
  const choose = (to) => go(address([...here, Math.max(0, Math.min(total - 1, to))], at.query), { replace: true });
  const now = chosen ? calls.indexOf(chosen) : -1;
  const call = (by) => {
    const next = calls[now + by];
    return next ? go(address([run, part, task, rollout, next[0], 0], { call: next[1].n })) : false;
  };
  // A line of cells is as wide as the page: the cell below is the next one of about the same left edge.
  const line = (by) => {
    const cells = [...document.querySelectorAll("[data-token]")];
    const from = cells.find((cell) => Number(cell.dataset.token) === index);
    if (!from) return false;
    const [left, top] = [from.offsetLeft, from.offsetTop];
    const rows = cells.filter((cell) => (by > 0 ? cell.offsetTop > top : cell.offsetTop < top));
    if (!rows.length) return false;
    const edge = by > 0 ? rows[0].offsetTop : rows.at(-1).offsetTop;
    const row = rows.filter((cell) => cell.offsetTop === edge);
    const best = row.reduce((a, b) => (Math.abs(b.offsetLeft - left) < Math.abs(a.offsetLeft - left) ? b : a));
    return choose(Number(best.dataset.token));
  };
  useKeys([
    { keys: ["l", "ArrowRight"], label: "next token", run: () => choose(index + 1) },
    { keys: ["h", "ArrowLeft"], label: "previous token", run: () => choose(index - 1) },
    { keys: ["ArrowDown"], label: "token below", run: () => line(1) },
    { keys: ["ArrowUp"], label: "token above", run: () => line(-1) },
    { keys: ["s"], label: "first token of the completion", run: () => choose(tokens.doc?.prompt.length ?? 0) },
    { keys: ["j"], label: "next call", run: () => call(1) },
    { keys: ["k"], label: "previous call", run: () => call(-1) },
  ]);
  useLayoutEffect(() => {
    const cell = document.querySelector(`[data-token="${index}"]`);
    if (!cell || document.activeElement?.matches("input, textarea")) return;
    cell.focus({ preventScroll: true });
    cell.scrollIntoView({ block: "nearest" });
  }, [index, tokens.doc]);
  const problem = state.doc && n === undefined ? { error: new Error("No call of this turn kept its tokens.") } : null;
  return (
    <>
      <div class="page-head">
        <h1 tabindex="-1">Tokens of turn <Text text={turn} />{chosen && <>, <Text text={chosen[1].role} /></>}</h1>
        <p class="facts-line">
          {chosen && <span>call {integer(chosen[1].n + 1)}</span>}
          {chosen && <span><Short text={chosen[1].model || chosen[1].engine} /></span>}
          {chosen?.[1].policy_version != null && <span>policy version {chosen[1].policy_version}</span>}
          <a href={address([run, part, task, rollout, turn === "end" || turn === "0" ? 1 : turn])}>the turn</a>
        </p>
        {calls.length > 1 && (
          <nav class="siblings" aria-label="Calls with tokens">
            {calls.filter((_, place_) => Math.abs(place_ - now) <= 6).map(([index_, one]) => (
              <a key={one.n} href={address([run, part, task, rollout, index_, 0], { call: one.n })} class={one.n === n ? "active" : ""} aria-current={one.n === n ? "page" : undefined}>
                {index_ === "end" ? "end" : `turn ${index_}`} <Text class="soft" text={one.role} />
              </a>
            ))}
          </nav>
        )}
      </div>
      <Shown state={problem ?? (state.doc ? tokens : state)}>
        {(doc) => (doc.sampled ? <Body doc={doc} choose={choose} index={index} /> : <p class="loading">Loading</p>)}
      </Shown>
    </>
  );
}
